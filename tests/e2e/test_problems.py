"""Texts with any number of labels, and texts with a quantity: learnt, reduced, told, exported. All from generated tasks whose
answer depends on planted words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapler.checkpoint import load
from adapler.classifier import Classifier
from adapler.config import DataSettings, build_config
from adapler.data.load import load_dataset
from adapler.errors import BadConfig, BadInput
from adapler.evaluation.evaluate import evaluate
from adapler.export.write import export
from adapler.training.progress import Silent
from adapler.training.run import train
from tests.planted import FILLERS, PLANTED, write_tiny_encoder

SETTINGS: dict[str, Any] = {
    "finetune": {"epochs": 12, "lr": 3e-3},
    "reduce": {"epochs": 4, "lr": 1e-3, "phi": 0.02, "predictor_lr": 1e-2},
    "steer": {"distill": 0.5, "max_loss": 5.0},
}


def write_data(folder: Path, label: Any, count: int = 480) -> Path:
    """Sentences of fillers, each planted word in every second of them; `label` makes of the words that are in one its label."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for split, size in (("train", count), ("dev", 120), ("test", 120)):
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as stream:
            for _ in range(size):
                words = random.choice(FILLERS, int(random.integers(8, 16))).tolist()
                there = [word for word in PLANTED if random.random() < 0.5]
                for word in there:
                    words.insert(int(random.integers(len(words) + 1)), word)
                stream.write(json.dumps({"text": " ".join(words), "label": label(there)}) + "\n")
    return folder


def weighed(there: list[str]) -> float:
    return sum({"great": 1.25, "boring": -1.0, "sweet": 0.5}[word] for word in there)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("several"), lambda there: there)


@pytest.fixture(scope="module")
def quantity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("quantity"), weighed)


def run(folder: Path, label: Any) -> Path:
    torch.set_num_threads(1)
    data = {"source": str(write_data(folder / "data", label)), "max_length": 64}
    config = build_config(SETTINGS, {"model": str(write_tiny_encoder(folder / "encoder")), "data": data})
    train(config, folder / "run", Silent())
    return folder


def report_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "run" / "report.json").read_text(encoding="utf-8"))
    return content


def test_several_labels_are_learnt_and_told(several: Path) -> None:
    report = report_of(several)
    assert report["metric"] == "micro_f1"
    assert report["splits"]["test"]["score"] > 0.9
    assert report["splits"]["test"]["flops_speedup"] > 1.2
    classifier = Classifier.from_pretrained(several / "run")
    both, none = classifier(["film plot great story sweet again time", "film plot story again time other part"])
    assert both.labels == ["great", "sweet"]
    assert both.to_dict()["labels"] == ["great", "sweet"]
    assert none.labels == []
    assert sum(both.scores.values()) > 1  # each label has a probability of its own


def test_thresholds_decide_and_are_kept(several: Path, tmp_path: Path) -> None:
    classifier = Classifier.from_pretrained(several / "run")
    text = "film plot great story again time"
    assert classifier(text).labels == ["great"]
    classifier.set_thresholds({"great": 1.0, "boring": 0.0})
    assert classifier(text).labels == ["boring"]
    classifier.save_pretrained(tmp_path / "saved")
    assert Classifier.from_pretrained(tmp_path / "saved")(text).labels == ["boring"]
    export(load(tmp_path / "saved"), tmp_path / "onnx", to="onnx")
    assert Classifier.from_pretrained(tmp_path / "onnx")(text).labels == ["boring"]
    with pytest.raises(BadConfig, match="no label 'dull'"):
        classifier.set_thresholds({"dull": 0.5})


def test_a_quantity_is_learnt_and_told(quantity: Path) -> None:
    report = report_of(quantity)
    assert report["metric"] == "pearson"
    assert report["splits"]["test"]["score"] > 0.9
    classifier = Classifier.from_pretrained(quantity / "run")
    low, high = classifier(["film plot boring story again", "film plot great story again sweet"])
    assert high.score - low.score == pytest.approx(2.75, abs=1.0)


def test_both_are_evaluated_like_any_other(several: Path, quantity: Path) -> None:
    for folder in (several, quantity):
        found = evaluate(folder / "run", DataSettings(source=str(folder / "data")), "test")
        assert found["score"] == pytest.approx(report_of(folder)["splits"]["test"]["score"])
        assert bool(found["by_class"]) == (folder is several)


def test_what_does_not_fit_is_refused(several: Path, quantity: Path) -> None:
    with pytest.raises(BadConfig, match="does not fit a regression"):
        evaluate(quantity / "run", DataSettings(source=str(quantity / "data"), metric="accuracy"), "test")
    with pytest.raises(BadConfig, match="class weights"):
        data = {"source": str(several / "data"), "class_weights": True}
        train(build_config({"model": str(several / "encoder"), "data": data}), several / "refused", Silent())
    assert not (several / "refused" / "report.json").exists()
    with pytest.raises(BadConfig, match="unsure"):
        Classifier.from_pretrained(several / "run")("good", escalate=0.9)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["a"], "b"], "write lists throughout"),
        ([0.5, "much"], "no number"),
        ([[], []], "nothing to learn"),
    ],
)
def test_labels_that_mean_nothing_are_refused(tmp_path: Path, rows: list[Any], message: str) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps({"text": "good", "label": label}) + "\n" for label in rows), encoding="utf-8")
    problem = "regression" if "much" in rows else None
    with pytest.raises(BadInput, match=message):
        load_dataset(DataSettings(source=str(tmp_path), problem=problem), 0)


def test_a_table_writes_several_labels_in_one_cell(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\none,a|b\ntwo,\nthree,b\n", encoding="utf-8")
    (tmp_path / "dev.csv").write_text("text,label\nfour,b\n", encoding="utf-8")
    made = load_dataset(DataSettings(source=str(tmp_path), problem="multi_label_classification"), 0)
    assert made.labels == ("a", "b")
    assert made.train.labels == [(1.0, 1.0), (0.0, 0.0), (0.0, 1.0)]
