"""The recipes of docs/scale.md, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tiny import tiny_classifier, tiny_texts

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


def recipe(heading: str) -> str:
    """The code under a heading of the page."""
    found = re.search(rf"^## {heading}\n.*?^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_recipe_for_datasets_gives_the_classifiers_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    classifier = tiny_classifier(layers=2)
    classifier.save_pretrained(tmp_path / "path" / "to" / "model")
    texts = tiny_texts(30)
    (tmp_path / "in").mkdir()
    for file, some in enumerate((texts[:20], texts[20:])):
        pq.write_table(pa.table({"text": some}), tmp_path / "in" / f"{file}.parquet")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "recipe"}
    exec(compile(recipe("datasets"), str(PAGE), "exec"), names)
    rows = list(names["dataset"])  # type: ignore[call-overload]
    assert [row["text"] for row in rows] == texts
    for row, wanted in zip(rows, classifier(texts), strict=True):
        assert (row["answer"], row["tokens"], row["tokens_kept"]) == (wanted.label, len(wanted.tokens), wanted.lengths[-1])
        assert row["score"] == pytest.approx(wanted.score, abs=1e-6)  # float32, another batch


def test_the_recipe_for_spark_can_be_compiled() -> None:
    """Java is no part of the tests; `python -m benchmarks.spark_recipe` runs it."""
    compile(recipe("Spark"), str(PAGE), "exec")
