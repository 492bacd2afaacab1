"""Texts without labels: which are taken, what is refused, and that a network learns from the teacher's answers to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from adapler.config import DataSettings, build_config
from adapler.data.load import load_dataset
from adapler.errors import BadConfig, BadInput
from adapler.training.borrow import same_finetuning
from adapler.training.progress import Silent
from adapler.training.run import train
from benchmarks.pairs import main as write_pairs
from tests.planted import planted_settings, write_planted_data

SETTLES: dict[str, Any] = {"epochs": 2, "settle_epochs": 2, "lr": 1e-3, "predictor_lr": 1e-2}


def write_texts(path: Path, texts: list[str]) -> str:
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")
    return str(path)


def test_what_a_limit_leaves_over_is_taken_without_its_labels(tmp_path: Path) -> None:
    source = str(write_planted_data(tmp_path / "data", train=100))
    dataset = load_dataset(DataSettings(source=source, train_limit=30, unlabelled="rest"), seed=0)
    whole = load_dataset(DataSettings(source=source), seed=0)
    assert len(dataset.train) == 30 and set(dataset.unlabelled) == set(whole.train.texts) - set(dataset.train.texts)
    assert "70 texts without labels" in dataset.notes
    with pytest.raises(BadInput, match="leaves no texts over"):
        load_dataset(DataSettings(source=source, unlabelled="rest"), seed=0)


def test_a_limit_draws_some_of_them_and_leaves_the_examples_alone(tmp_path: Path) -> None:
    source = str(write_planted_data(tmp_path / "data", train=100))
    settings = DataSettings(source=source, train_limit=30, unlabelled="rest")
    limited = settings.model_copy(update={"unlabelled_limit": 20})
    whole, drawn, again, other = (
        load_dataset(each, seed) for each, seed in ((settings, 0), (limited, 0), (limited, 0), (limited, 1))
    )
    assert drawn.train.texts == whole.train.texts
    assert len(set(drawn.unlabelled)) == 20 and set(drawn.unlabelled) < set(whole.unlabelled)
    assert drawn.unlabelled == again.unlabelled and set(drawn.unlabelled) != set(other.unlabelled)
    assert "70 texts without labels; limited to 20" in drawn.notes
    with pytest.raises(BadConfig, match=r"set data\.unlabelled, or leave it out"):
        build_config({"data": {"source": "data", "unlabelled_limit": 20}})


def test_no_text_with_a_label_and_none_to_be_judged_by_is_taken(tmp_path: Path) -> None:
    source = str(write_planted_data(tmp_path / "data", train=20))
    known = load_dataset(DataSettings(source=source), seed=0)
    assert known.test is not None
    held = [known.train.texts[0], known.dev.texts[0], known.test.texts[0]]
    texts = [str(text) for text in held]
    file = write_texts(tmp_path / "texts.jsonl", [*texts, "new and great", "new and great", " "])
    found = load_dataset(DataSettings(source=source, unlabelled=file), seed=0)
    assert found.unlabelled == ("new and great",) and any("5 empty, double" in note for note in found.notes)
    with pytest.raises(BadInput, match="none of its 3 texts is new"):
        load_dataset(DataSettings(source=source, unlabelled=write_texts(tmp_path / "old.jsonl", texts)), seed=0)
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"text": "a", "text_pair": "b"}), encoding="utf-8")
    with pytest.raises(BadInput, match="texts are single, these not"):
        load_dataset(DataSettings(source=source, unlabelled=str(pairs)), seed=0)


def test_pairs_changed_a_little_are_taken_as_such(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    sides = [(f"number {number} of the first kind of these", f"number {number} of another kind") for number in range(20)]
    sides.append((sides[0][1], sides[0][0]))  # swapped, the first pair is one that has a label
    rows = [{"text": one, "text_pair": other, "label": place % 2} for place, (one, other) in enumerate(sides)]
    for split, part in {"train": rows, "dev": rows[:4]}.items():
        (folder / f"{split}.jsonl").write_text("\n".join(json.dumps(row) for row in part), encoding="utf-8")
    write_pairs(folder, out=tmp_path / "pairs.jsonl", share=0.5)
    made = [(row["text"], row["text_pair"]) for row in map(json.loads, (tmp_path / "pairs.jsonl").read_text().splitlines())]
    assert len(set(made)) == len(made) and not set(made) & set(sides)
    assert {(other, one) for one, other in sides[1:20]} <= set(made)
    words = {word for pair in sides for word in " ".join(pair).split()}
    assert {word for pair in made for word in " ".join(pair).split()} <= words and all(one and other for one, other in made)
    dataset = load_dataset(DataSettings(source=str(folder), unlabelled=str(tmp_path / "pairs.jsonl")), seed=0)
    assert dataset.unlabelled == tuple(made)


@pytest.mark.parametrize(("change", "group"), [({}, "reduce"), ({"method": "trbert", "reduce": SETTLES}, "trbert")])
def test_they_need_a_phase_that_reads_them(change: dict[str, Any], group: str) -> None:
    with pytest.raises(BadConfig, match=rf"set {group}\.settle_epochs"):
        build_config({"data": {"source": "data", "unlabelled": "rest"}}, change)


@pytest.mark.parametrize(
    ("method", "last", "own"),
    [
        ("power", "retrain", {"power": {"epochs": 1, "retrain_epochs": 1, "lr": 1e-3, "retention_lr": 3e-2}}),
        ("trbert", "settle", {"trbert": {"policy_epochs": 1, "joint_epochs": 1, "copies": 2, "settle_epochs": 1}}),
    ],
)
def test_other_methods_learn_from_them_too(tmp_path: Path, method: str, last: str, own: dict[str, Any]) -> None:
    settings = planted_settings(tmp_path) | own | {"method": method}
    settings["finetune"] = {**settings["finetune"], "epochs": 2}
    settings["data"] = {**settings["data"], "train_limit": 100}
    first, other = tmp_path / "without", tmp_path / "with"
    train(build_config(settings), first, Silent())
    settings["data"]["unlabelled"] = "rest"
    train(build_config(settings), other, Silent(), finetuned_from=first)
    losses = []
    for folder in (first, other):
        history = json.loads((folder / "report.json").read_text(encoding="utf-8"))["history"]
        losses.append({row["phase"]: row.get("label_loss") for row in history})
    # What comes before is untouched by them; the phase that reads them is not.
    assert all((losses[0][phase] == losses[1][phase]) == (phase != last) for phase in losses[0])


def test_phase_1_is_the_same_with_them() -> None:
    with_them = build_config({"data": {"source": "data", "unlabelled": "rest", "unlabelled_limit": 9}, "reduce": SETTLES})
    assert same_finetuning(with_them, build_config({"data": {"source": "data"}}))


def test_a_network_learns_from_the_teachers_answers(tmp_path: Path) -> None:
    settings = planted_settings(tmp_path)
    settings["reduce"] = SETTLES
    settings["data"]["train_limit"] = 400
    report = train(build_config(settings), tmp_path / "without", Silent())
    settings["data"]["unlabelled"] = "rest"
    taught = train(build_config(settings), tmp_path / "with", Silent(), finetuned_from=tmp_path / "without")
    kept = [load_file(tmp_path / name / "work" / "settled.safetensors") for name in ("without", "with")]
    assert not torch.equal(*(weights["model.classifier.weight"] for weights in kept))
    assert "200 texts without labels" in taught["notes"] and taught["n_train"] == report["n_train"] == 400
    assert taught["splits"]["test"]["loss_points"] <= 3.0
    # A run that is not finished must not go on with other texts.
    (tmp_path / "with" / "report.json").unlink()
    write_planted_data(tmp_path / "data", train=599)
    with pytest.raises(BadConfig, match="the data is not what it was"):
        train(build_config(settings), tmp_path / "with", Silent())
