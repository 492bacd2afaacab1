"""Training end to end on a task whose answer is known: the planted words decide, so they are what must be kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from adapler.classifier import Classifier
from adapler.config import build_config
from adapler.data.load import load_dataset
from adapler.errors import BadConfig, BadInput
from adapler.evaluation.outcome import run
from adapler.training import finetune, finish, reducing, steering
from adapler.training.progress import Silent
from adapler.training.run import train
from tests.planted import PLANTED, planted_settings, write_planted_data


class Heard(Silent):
    """Progress that remembers what was said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """A finished run's folder, its settings and its report."""
    folder = tmp_path_factory.mktemp("planted")
    settings = planted_settings(folder)
    return folder, settings, train(build_config(settings), folder / "run", Silent())


def test_speedup_over_two_at_equal_accuracy(finished: tuple[Path, dict[str, Any], dict[str, Any]]) -> None:
    _, _, report = finished
    test = report["splits"]["test"]
    assert test["score_full"] >= 0.98 and test["loss_points"] <= 1.0
    assert test["flops_speedup"] > 2
    assert report["within_margin"]


def test_what_was_said_while_training_is_true_of_the_weights_kept(
    finished: tuple[Path, dict[str, Any], dict[str, Any]],
) -> None:
    _, _, report = finished
    tuned = [row["score"] for row in report["history"] if row["phase"] == "finetune"]
    assert max(tuned) == report["splits"]["dev"]["score_full"]
    kept = next(row for row in report["history"] if row["phase"] == "reduce" and row["epoch"] == report["kept_epoch"])
    again = next(point for point in report["curve"] if point["scale"] == round(1 / report["kept_scale"], 9))
    assert kept["score"] == again["score"] and kept["flops_speedup"] == pytest.approx(again["flops_speedup"], rel=1e-9)


def test_losses_fall(finished: tuple[Path, dict[str, Any], dict[str, Any]]) -> None:
    _, _, report = finished
    tuning = [row["label_loss"] for row in report["history"] if row["phase"] == "finetune"]
    reducing = [row["contribution_loss"] for row in report["history"] if row["phase"] == "reduce"]
    assert tuning[-1] < tuning[0] / 2 and reducing[-1] < reducing[0] / 2


def test_the_planted_words_are_the_ones_kept(finished: tuple[Path, dict[str, Any], dict[str, Any]]) -> None:
    folder, _, _ = finished
    classifier = Classifier.from_pretrained(folder / "run")
    rows = [json.loads(line) for line in (folder / "data" / "test.jsonl").read_text().splitlines()]
    predictions = classifier([row["text"] for row in rows])
    assert sum(p.label == row["label"] for p, row in zip(predictions, rows, strict=True)) >= 0.98 * len(rows)
    first = [[p.tokens[i] for i in p.kept[0]] for p in predictions]
    assert sum(any(token in PLANTED for token in tokens) for tokens in first) >= 0.95 * len(rows)
    # Once [CLS] has read the word it may go too; but what stays to the end beside [CLS] is hardly ever another one.
    left = [token for p in predictions for token in (p.tokens[i] for i in p.kept[-1]) if token != "[CLS]"]
    assert left and sum(token in PLANTED for token in left) >= 0.8 * len(left)


def test_the_run_folder_opens_plain_and_reduced(finished: tuple[Path, dict[str, Any], dict[str, Any]]) -> None:
    folder, _, _ = finished
    assert Classifier.from_pretrained(folder / "run").reducer is not None
    assert Classifier.from_pretrained(folder / "run" / "work" / "full").reducer is None
    assert AutoModelForSequenceClassification.from_pretrained(folder / "run").config.num_labels == len(PLANTED)
    assert build_config(json.loads((folder / "run" / "train.json").read_text())).reduce.phi == 0.02


def test_a_finished_run_is_not_run_again_and_other_settings_are_refused(
    finished: tuple[Path, dict[str, Any], dict[str, Any]],
) -> None:
    folder, settings, report = finished
    heard = Heard()
    again = train(build_config(settings), folder / "run", heard)
    assert again == json.loads(json.dumps(report)) and "finished" in heard.lines[0]
    with pytest.raises(BadConfig, match=r"reduce\.gamma: 0\.1 -> 0\.2"):
        train(build_config(settings, {"reduce": {"gamma": 0.2}}), folder / "run", heard)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(BadConfig, match="holds no run"):
        train(build_config({"data": {"source": "x"}}), tmp_path, Silent())
    assert [file.name for file in tmp_path.iterdir()] == ["precious.txt"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "empty"),
        ([{"text": "a", "label": 1}, {"text": "b", "label": 1}], "at least two"),
        ([{"text": "a", "label": 1}, {"text": None, "label": 0}], "line 2: column 'text'"),
        ([{"text": "a", "label": 1}, {"text": "b", "label": None}], "line 2: column 'label'"),
        ([{"text": "a", "label": 1}, {"text": "b", "label": float("nan")}], "line 2: column 'label'"),
        ([{"words": "a", "other": "b", "label": 1}], "no column 'text'"),
        ([{"text": "a", "text_pair": "b", "label": 1}, {"text": "a", "label": 0}], "no column 'text_pair'"),
        ([{"text": "a", "gold": 1}], "no column 'label'"),
    ],
)
def test_bad_data_is_told_with_file_and_line(tmp_path: Path, lines: list[dict[str, Any]], words: str) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(BadInput, match=words.replace("(", r"\(")) as caught:
        load_dataset(build_config({"data": {"source": str(file)}}).data, seed=0)
    assert "train.jsonl" in str(caught.value)


def test_a_missing_dev_split_is_carved_and_said(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("text,label\n" + "".join(f"text {i},{i % 2}\n" for i in range(100)))
    first = load_dataset(build_config({"data": {"source": str(file)}}).data, seed=3)
    again = load_dataset(build_config({"data": {"source": str(file)}}).data, seed=3)
    assert (len(first.train), len(first.dev)) == (90, 10) and first == again
    assert "carved" in first.notes[0] and not set(first.train.texts) & set(first.dev.texts)


def test_a_limit_of_dev_draws_some_and_leaves_train_alone(tmp_path: Path) -> None:
    source = str(write_planted_data(tmp_path, train=60, dev=40))
    asked = {"source": source, "train_limit": 50, "unlabelled": "rest"}
    passes = {"reduce": {"settle_epochs": 1}}
    whole, *limited = (
        load_dataset(build_config({"data": {**asked, **limit}}, passes).data, seed=seed)
        for limit, seed in (({}, 0), ({"dev_limit": 15}, 0), ({"dev_limit": 15}, 0), ({"dev_limit": 99}, 0))
    )
    drawn, again, all_of_them = limited
    assert drawn == again and len(set(drawn.dev.texts)) == 15 and set(drawn.dev.texts) < set(whole.dev.texts)
    assert (drawn.train, drawn.unlabelled) == (whole.train, whole.unlabelled)
    assert "dev limited to 15 examples (seed 0)" in drawn.notes and all_of_them == whole


def test_half_precision_is_for_training_and_not_for_what_is_said_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, set[bool]] = {}
    for module in (finetune, reducing, steering, finish):
        halves: set[bool] = set()
        seen[module.__name__.rpartition(".")[2]] = halves

        def noting(*args: Any, halves: set[bool] = halves, **kwargs: Any) -> Any:
            halves.add(torch.is_autocast_enabled("cpu"))
            return run(*args, **kwargs)

        monkeypatch.setattr(module, "run", noting)
    short = {"data": {"train_limit": 64}, "finetune": {"epochs": 1}, "reduce": {"epochs": 1}, "run": {"precision": "bf16"}}
    steer = {"steer": {"target_speedup": 2.0, "distill": 0.5}}
    train(build_config(planted_settings(tmp_path), short, steer), tmp_path / "run", Silent())
    assert seen == {"finetune": {False}, "reducing": {True}, "steering": {True}, "finish": {False}}


def test_mixed_precision_and_accumulated_updates_train(tmp_path: Path) -> None:
    settings = planted_settings(tmp_path)
    short = {
        "data": {"train_limit": 128},
        "finetune": {"epochs": 2},
        "reduce": {"epochs": 1},
        "run": {"precision": "bf16", "accumulate": 2},
    }
    report = train(build_config(settings, short), tmp_path / "run", Silent())
    losses = [row["label_loss"] for row in report["history"]]
    assert report["n_train"] == 128 and all(0 < loss < 2 for loss in losses)
