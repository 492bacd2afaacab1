"""Model cards hold what was measured, and go to the hub with the model. The hub itself is stood in for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapler.card import CARD, model_card
from adapler.classifier import Classifier
from adapler.doctor import Cost, Diagnosis
from adapler.errors import BadModel
from adapler.points import Dial, Point
from tests.tiny import tiny_classifier

POINTS = tuple(
    Point(name=name, scale=scale, score=score, loss_points=loss, flops_speedup=speed, flops_speedup_executed=speed)
    for name, scale, score, loss, speed in (("full", 0.0, 0.912, 0.0, 1.0), ("trained", 1.0, 0.905, 0.7, 4.25))
)
REPORT: dict[str, Any] = {
    "account": "accuracy 90.5 on 100 test texts at 4.25x fewer FLOPs.",
    "metric": "accuracy",
    "splits": {"test": {"n": 100, "score_full": 0.912, "score": 0.905, "loss_points": 0.7, "flops_speedup": 4.25}},
    "config": {"model": "some/encoder"},
}


@pytest.fixture
def classifier(tmp_path: Path) -> Classifier:
    made = tiny_classifier()
    made.dial = Dial(data="toy, dev", n=50, metric="accuracy", reference="itself", reference_score=0.912, points=POINTS)
    (tmp_path / "report.json").write_text(json.dumps(REPORT), encoding="utf-8")
    made.folder = tmp_path
    return made


def test_the_card_says_what_was_measured(classifier: Classifier) -> None:
    card = model_card(classifier, "me/toy")
    assert "| test | 100 | 91.20 | 90.50 | 0.70 | 4.25 |" in card
    assert "| trained | 90.50 | 0.70 | 4.25 |" in card
    assert 'base_model: "some/encoder"' in card
    assert "texts a second" not in card  # nobody timed it
    assert card.index("library_name") < card.index("# toy")


def test_speeds_are_told_with_their_machine(classifier: Classifier) -> None:
    costs = {
        point.name: Cost(texts_per_second=rate, latency_ms=1.0) for point, rate in zip(POINTS, (100.0, 321.4), strict=True)
    }
    classifier.diagnosis = Diagnosis(machine="a machine", runtime="torch", threads=2, texts="made-up", points=costs)
    card = model_card(classifier, "me/toy")
    assert "| trained | 90.50 | 0.70 | 4.25 | 321 |" in card
    assert "torch, 2 threads, a machine" in card


def test_a_model_without_a_past_has_a_card_too() -> None:
    card = model_card(tiny_classifier(), "toy", reduced=True)
    assert "import adapler.auto" in card
    assert "points lost" not in card


class Hub:
    """Takes what it is given."""

    taken: dict[str, Any]

    def __init__(self) -> None:
        Hub.taken = {}

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
        Hub.taken["private"] = private

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> str:
        Hub.taken |= {"files": {file.name for file in folder_path.iterdir()}, "card": (folder_path / CARD).read_text()}
        return f"https://hub/{repo_id}"


def test_model_and_card_are_uploaded_together(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    assert classifier.push_to_hub("me/toy", private=True) == "https://hub/me/toy"
    assert Hub.taken["files"] >= {"config.json", "model.safetensors", "reduction.json", "tokenizer.json", CARD}
    assert Hub.taken["private"] is True
    assert 'Classifier.from_pretrained("me/toy")' in Hub.taken["card"]


def test_a_hub_that_refuses_is_told_as_such(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Hub, repo_id: str, *, private: bool, exist_ok: bool) -> None:
        raise PermissionError("401")

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    monkeypatch.setattr(Hub, "create_repo", refuse)
    with pytest.raises(BadModel, match="hf auth login"):
        classifier.push_to_hub("me/toy")
