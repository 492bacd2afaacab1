"""`adapler export` as users meet it: a graph that is measured, predicts like the model, and needs no torch to do so."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from adapler.classifier import Classifier
from adapler.cli.export import export as export_verb
from adapler.errors import BadConfig, BadModel, GateMissed
from adapler.export import measure
from adapler.export.measure import Comparison
from tests.e2e.test_cli import adapler, check_rows, in_process_without_torch
from tests.tiny import tiny_classifier, tiny_texts

TEXTS = tiny_texts(60, seed=3)
GOOD = Comparison(
    n=60,
    metric="accuracy",
    score=0.9,
    score_torch=0.9,
    answers_changed=0,
    texts_per_second=200.0,
    texts_per_second_torch=100.0,
    spread=0.1,
    spread_torch=0.1,
    repeats=7,
    threads=1,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_classifier(layers=2, spread=2.0).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def labelled(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts with the labels the model gives them, so that its score is 1."""
    path = tmp_path_factory.mktemp("data") / "labelled.jsonl"
    answers = Classifier.from_pretrained(model)(TEXTS)
    rows = [{"text": text, "label": answer.label} for text, answer in zip(TEXTS, answers, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def exported(model: Path, labelled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by the command itself, measured on the way."""
    out = tmp_path_factory.mktemp("exported") / "tiny-onnx"
    done = adapler("export", model, "--data", labelled, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert (report["runtime"], report["n"], report["score"], report["score_torch"]) == ("onnx", 60, 1.0, 1.0)
    assert report["answers_changed"] == 0
    assert report["wall_speedup"] >= 1
    assert report["bytes"] == sum(file.stat().st_size for file in out.iterdir())
    return out


def test_an_exported_model_predicts_without_torch(model: Path, exported: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "texts.txt", tmp_path / "answers.jsonl"
    source.write_text("".join(text + "\n" for text in TEXTS), encoding="utf-8")
    done = in_process_without_torch("predict", str(exported), str(source), "--out", str(out), "--tokens", "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "imported:\n"
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    check_rows(rows, Classifier.from_pretrained(model)(TEXTS))


def test_info_tells_what_was_exported(exported: Path) -> None:
    done = in_process_without_torch("info", str(exported), "--json")
    told = json.loads(done.stdout.splitlines()[0])
    assert done.stdout.splitlines()[1] == "imported:"
    assert (told["runtime"], told["layers"], told["method"], told["reduced"]) == ("onnx", 2, "adapler", True)
    assert "runtime" in adapler("info", exported).stdout


def test_verbs_that_need_a_checkpoint_refuse_an_export(exported: Path, labelled: Path, tmp_path: Path) -> None:
    for arguments in (("evaluate", exported, "--data", labelled), ("export", exported, "--out", tmp_path / "again")):
        done = adapler(*arguments)
        assert done.returncode == 3
        assert "holds an exported graph, not a checkpoint" in done.stderr


@pytest.mark.parametrize(
    ("comparison", "said"),
    [
        (replace(GOOD, score=0.88, answers_changed=3), "loses 2.00 points, allowed are 0.5: accuracy 88.00 against 90.00"),
        (
            replace(GOOD, texts_per_second=99.0),
            "slower than torch: accuracy 90.00 against 90.00 .* 99 against 100 texts/s, 0.99x",
        ),
    ],
    ids=["worse", "slower"],
)
def test_a_worse_or_slower_export_is_refused_and_not_written(
    model: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comparison: Comparison, said: str
) -> None:
    monkeypatch.setattr("adapler.export.write._serialised", lambda *_: b"a graph")
    monkeypatch.setattr("adapler.cli.export._compared", lambda *_: comparison)
    with pytest.raises(GateMissed, match=said) as refused:
        export_verb(str(model), tmp_path / "out", data=str(labelled))
    assert refused.value.exit_code == 5
    assert not list(tmp_path.iterdir())


def test_what_is_within_the_loss_allowed_is_accepted() -> None:
    measure.require(replace(GOOD, score=0.89), 1.0)  # as floats have it, a little more than one point
    with pytest.raises(GateMissed, match=r"loses 1\.00 points, allowed are 0\.99"):
        measure.require(replace(GOOD, score=0.89), 0.99)
    measure.require(replace(GOOD, score=0.95), 0.0)
    measure.require(replace(GOOD, texts_per_second=100.0), 0.0)


def test_mistakes_are_told_before_anything_is_loaded(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adapler.checkpoint", None)
    with pytest.raises(BadConfig, match="--to 'tflite' is not known; choose one of onnx, onnx-int8"):
        export_verb(str(model), tmp_path / "out", to="tflite")
    with pytest.raises(BadConfig, match="--calibrate needs --to onnx-int8 and --data"):
        export_verb(str(model), tmp_path / "out", calibrate=8)
    with pytest.raises(BadModel, match="no model folder"):
        export_verb(str(tmp_path / "nothing"), tmp_path / "out")
    (tmp_path / "there").mkdir()
    with pytest.raises(BadModel, match=r"there exists; choose another folder or give --overwrite$"):
        export_verb(str(model), tmp_path / "there")
