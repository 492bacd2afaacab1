"""Datasets as the hub gives them, read by the library that reads the hub, from local files in the hub's own form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adapler.config import DataSettings
from adapler.data.load import load_dataset, read_split
from adapler.errors import BadInput

datasets = pytest.importorskip("datasets")
NAMES = ["negative", "positive"]


def rows(count: int, label: int | None = None) -> dict[str, list[Any]]:
    return {
        "sentence": [f"text number {number}" for number in range(count)],
        "label": [number % 2 if label is None else label for number in range(count)],
    }


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the library finds what it would find on the hub."""
    features = datasets.Features({"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=NAMES)})
    for split, table in {"train": rows(20), "validation": rows(6), "test": rows(4, label=-1)}.items():
        datasets.Dataset.from_dict(table, features=features).to_parquet(tmp_path / f"{split}.parquet")
    real, cache = datasets.load_dataset, str(tmp_path / "cache")

    def load(name: str, configuration: str | None, **options: Any) -> Any:
        assert (name, configuration) == ("stanfordnlp/sst2", None)
        return real("parquet", data_files={f.stem: str(f) for f in tmp_path.glob("*.parquet")}, cache_dir=cache)

    monkeypatch.setattr(datasets, "load_dataset", load)
    return tmp_path


def test_a_named_task_is_read_and_a_test_split_without_labels_left_out(hub: Path) -> None:
    dataset = load_dataset(DataSettings(source="sst2"), seed=0)
    assert (len(dataset.train), len(dataset.dev), dataset.test) == (20, 6, None)
    assert dataset.labels == tuple(NAMES) and dataset.train.texts[1] == "text number 1" and dataset.train.labels[1] == 1
    with pytest.raises(BadInput, match="no test split; there are: train, dev"):
        read_split(DataSettings(source="sst2"), "test", NAMES)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("label", -1, "row 4: column 'label' holds -1"),
        ("label", None, "row 4: column 'label' holds null"),
        ("sentence", None, "row 4: column 'sentence' holds null"),
        ("sentence", "", "row 4: column 'sentence' is empty"),
    ],
)
def test_a_label_or_text_that_is_missing_is_named_with_its_row(
    hub: Path, column: str, value: int | str | None, words: str
) -> None:
    table = rows(20)
    table[column][3] = value
    features = datasets.Features({"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=NAMES)})
    datasets.Dataset.from_dict(table, features=features).to_parquet(hub / "train.parquet")
    with pytest.raises(BadInput, match=words):
        load_dataset(DataSettings(source="sst2"), seed=0)


def test_a_column_that_is_not_there_is_answered_with_those_that_are(hub: Path) -> None:
    for settings, flag in (
        (DataSettings(source="sst2", label="stars"), "label"),
        (DataSettings(source="sst2", text="stars"), "text"),
    ):
        with pytest.raises(BadInput, match=f"train: no column 'stars'; there are: 'sentence', 'label'. Choose with --{flag}"):
            load_dataset(settings, seed=0)


def test_a_task_that_the_hub_has_only_in_parts_asks_for_a_folder() -> None:
    with pytest.raises(BadInput, match="give a folder of splits with the columns 'text' and 'label'"):
        load_dataset(DataSettings(source="hatexplain"), seed=0)
