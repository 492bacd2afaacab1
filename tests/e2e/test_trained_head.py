"""A finished classifier is taken as it is: phase 1 is skipped, its labels hold, losses are measured against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from adapler.classifier import Classifier
from adapler.config import build_config
from adapler.errors import BadInput, BadModel
from adapler.training.progress import Lines, Silent
from adapler.training.run import train
from tests.planted import planted_settings


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A fine-tuned classifier as transformers would leave it, in `model`, and settings of a run on its data."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained")
    settings = planted_settings(folder)
    settings["finetune"]["epochs"] = 4
    settings["reduce"]["epochs"] = 2
    train(build_config(settings), folder / "first", Silent())
    (folder / "first" / "work" / "full").rename(folder / "model")
    return folder, settings


class Says(Lines):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def test_phase_1_is_skipped_and_the_loss_is_against_the_model_given(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, settings = made
    said = Says()
    report = train(build_config(settings, {"model": str(folder / "model")}), tmp_path / "run", said)
    assert any("phase 1 is skipped" in line for line in said.lines)
    assert any(line.startswith("finetune: dev accuracy") for line in said.lines)
    assert [row["phase"] for row in report["history"]].count("finetune") == 1  # its score, no training
    given, kept = (load_file(path / "model.safetensors") for path in (folder / "model", tmp_path / "run" / "work" / "full"))
    assert all(torch.equal(given[name], kept[name]) for name in given)
    alone = Classifier.from_pretrained(folder / "model")
    rows = [json.loads(line) for line in (folder / "data" / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    right = sum(found.label == row["label"] for found, row in zip(alone([row["text"] for row in rows]), rows, strict=True))
    assert report["splits"]["test"]["score_full"] == pytest.approx(right / len(rows))
    assert report["splits"]["test"]["flops_speedup"] > 1.2


def test_labels_are_numbered_as_the_model_has_them(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Data that names labels by number means the model's order, not that of the alphabet."""
    folder, settings = made
    names = json.loads((folder / "model" / "config.json").read_text(encoding="utf-8"))["id2label"]
    number = {name: int(key) for key, name in names.items()}
    (tmp_path / "data").mkdir()
    for split in ("train", "dev", "test"):
        rows = [json.loads(line) for line in (folder / "data" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]
        lines = [json.dumps({**row, "label": number[row["label"]]}) + "\n" for row in rows]
        (tmp_path / "data" / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    change = {"model": str(folder / "model"), "data": {"source": str(tmp_path / "data")}, "reduce": {"epochs": 1}}
    report = train(build_config(settings, change), tmp_path / "run", Silent())
    assert report["splits"]["test"]["score_full"] > 0.9
    assert Classifier.from_pretrained(tmp_path / "run").labels == list(names.values())


def test_a_head_for_other_labels_is_replaced_or_refused(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, settings = made
    (tmp_path / "data").mkdir()
    for split in ("train", "dev"):
        lines = [json.dumps({"text": f"a {word} film", "label": word}) + "\n" for word in ("good", "bad") * 8]
        (tmp_path / "data" / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    change = {"model": str(folder / "model"), "data": {"source": str(tmp_path / "data")}}
    few = {"finetune": {"epochs": 1}, "reduce": {"epochs": 1}}
    said = Says()
    train(build_config(settings, change, few), tmp_path / "run", said)
    assert any("label 'bad'" in line and "new one" in line for line in said.lines)
    with pytest.raises(BadInput, match="trained for"):
        train(build_config(settings, change, {"head": "trained"}), tmp_path / "other", Silent())
    with pytest.raises(BadModel, match="no trained head"):
        train(build_config(settings, {"head": "trained"}), tmp_path / "other", Silent())


def test_a_fresh_head_can_be_asked_for(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, settings = made
    few = {"finetune": {"epochs": 1}, "reduce": {"epochs": 1}}
    report = train(build_config(settings, few, {"model": str(folder / "model"), "head": "fresh"}), tmp_path / "run", Silent())
    assert not any("skipped" in note for note in report["notes"])
