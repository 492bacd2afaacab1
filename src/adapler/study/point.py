"""The operating point of a method on a task that dev chooses, and its one look at test: the record of a cell."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from adapler import checkpoint
from adapler.cost import ModelCost, Speedups, speedups
from adapler.data.load import load_dataset, read_split
from adapler.data.text import EncodedText, TextEncoder
from adapler.engine import model_cost
from adapler.errors import BadInput
from adapler.evaluation.metrics import score
from adapler.evaluation.outcome import Outcome, run
from adapler.problems import SINGLE, Label
from adapler.records import Record, model_name
from adapler.study.places import CELL_FILE, cell_folder, read_record
from adapler.study.plan import STATIC, Cell, Plan, cells
from adapler.study.words import bag_of_words, beginnings
from adapler.training.setup import model_folder
from adapler.training.snapshot import read_json


@dataclass(frozen=True)
class Choice:
    """The operating point of a method on a task that dev chose."""

    cell: Cell
    scale: float | None
    """None: the model as it is."""
    dev: float
    dev_speedup: float
    within: bool
    """Whether dev lies within the allowed loss."""


def choose(plan: Plan, out: Path, own: list[Cell]) -> Choice:
    """Of all models and scales of a method, the fastest whose dev score lies within the margin of the full model's; if none
    does, the best-scoring one."""
    found = [
        Choice(cell, point["scale"], point["score"], point["flops_speedup"], within=True)
        for cell in own
        for point in read_json(cell_folder(out, cell) / CELL_FILE)["points"]
    ]
    if own[0].method in STATIC:
        return found[0]
    least = _full_dev(plan, out, own[0]) - plan.max_loss / 100
    within = [choice for choice in found if choice.dev > least]
    if within:
        return max(within, key=lambda choice: choice.dev_speedup)
    best = max(found, key=lambda choice: (choice.dev, choice.dev_speedup))
    return Choice(best.cell, best.scale, best.dev, best.dev_speedup, within=False)


def opened(out: Path, cell: Cell) -> checkpoint.Checkpoint:
    """The model of a cell, which reads no more of a text than it was trained on. A folder without a reduction does not say how
    much that was: by itself such a model reads as much as it can, more than the others may."""
    folder = cell_folder(out, cell)
    if cell.method not in STATIC:
        return checkpoint.load(folder / "run")
    return replace(checkpoint.load(folder / "model"), max_length=read_json(folder / CELL_FILE)["max_length"])


def test_texts(plan: Plan, cell: Cell, model: checkpoint.Checkpoint, limit: int) -> tuple[list[EncodedText], list[Label]]:
    """The test split as token ids, cut to `limit` tokens, and its labels."""
    examples, _ = read_split(cell.config.data, "test", model.backbone.labels, model.backbone.problem)
    chosen = examples.only(range(min(len(examples), plan.test_limit or len(examples))))
    return TextEncoder(model.tokenizer, limit)(chosen.texts), chosen.labels


def point_record(plan: Plan, out: Path, own: list[Cell]) -> Record:
    """Of a method whose cells are trained."""
    choice = choose(plan, out, own)
    cell = choice.cell
    model = opened(out, cell)
    about = read_json(cell_folder(out, cell) / CELL_FILE)
    texts, labels = test_texts(plan, cell, model, model.max_length)
    scale = None if choice.scale in (None, 1.0) else choice.scale
    outcome = run(model.backbone, model.reducer, texts, scale=scale)
    saved = _against_backbone(plan, cell, model, outcome) if cell.method in STATIC else outcome.speedups
    full = None if cell.method == "full" else _full_score(out, cell)
    reached = score(about["metric"], labels, outcome.predictions)
    source = {**cell.config.model_dump()["data"], "source": Path(cell.config.data.source).name}
    return Record(
        kind="study",
        task=cell.task,
        method=cell.method,
        variant=cell.variant,
        backbone=model_name(cell.config.model),
        point=None if choice.scale is None else f"scale {choice.scale:g}",
        seed=cell.seed,
        split="test",
        n=len(texts),
        n_train=about["n_train"],
        metric=about["metric"],
        score=reached,
        score_full=reached if full is None else full,
        loss_points=0.0 if full is None else 100 * (full - reached),
        threads=torch.get_num_threads(),
        config={
            **cell.config.model_dump(),
            "data": source,
            "model": model_name(cell.config.model),
            "dev_score": choice.dev,
            "dev_flops_speedup": choice.dev_speedup,
            "within_margin": choice.within,
            "against": model_name(plan.model),
            **({"lr": about["lr"], "epochs": about["epochs"]} if cell.method in STATIC else {}),
            **({"dataset": _dataset(about, outcome.counts)} if cell.method == "full" else {}),
        },
        flops_speedup=saved.flops_speedup,
        flops_speedup_executed=saved.flops_speedup_executed,
        flops_speedup_padded=saved.flops_speedup_padded,
        flops_speedup_authors=saved.flops_speedup_authors,
    )


def words_record(plan: Plan, out: Path, cell: Cell) -> Record:
    """The bag of words on the same examples, of which it reads no more than the others."""
    from transformers import AutoTokenizer

    train = load_dataset(cell.config.data, cell.seed)
    if train.problem != SINGLE:
        raise BadInput(f"{cell.task} is a {train.problem} problem; a bag of words knows one label a text: leave `words` out")
    examples, metric = read_split(cell.config.data, "test", train.labels, train.problem)
    test = examples.only(range(min(len(examples), plan.test_limit or len(examples))))
    tokenizer = AutoTokenizer.from_pretrained(model_folder(plan.model), local_files_only=True, trust_remote_code=False)
    learnt, asked = (beginnings(texts, tokenizer, train.max_length) for texts in (train.train.texts, test.texts))
    reached = score(metric, test.labels, bag_of_words(learnt, train.train.labels, asked))
    full = _full_score(out, cell)
    return Record(
        kind="study",
        task=cell.task,
        method="words",
        seed=cell.seed,
        split="test",
        n=len(test),
        n_train=len(train.train),
        metric=metric,
        score=reached,
        score_full=full,
        loss_points=100 * (full - reached),
        backbone="none",
        config={"against": model_name(plan.model)},
    )


def _dataset(about: dict[str, Any], counts: list[int]) -> dict[str, Any]:
    return {
        "n_dev": about["n_dev"],
        "max_length": about["max_length"],
        "tokens_mean": round(statistics.mean(counts), 2),
        "tokens_median": statistics.median(counts),
    }


def _against_backbone(plan: Plan, cell: Cell, model: checkpoint.Checkpoint, outcome: Outcome) -> Speedups:
    """What another encoder costs beside the study's backbone, both at full length."""
    if cell.method == "full":
        return speedups(model_cost(model.backbone, None), outcome.counts, outcome.lengths)
    other = _checkpoint_cost(plan.model, len(model.backbone.labels))
    own = model_cost(model.backbone, None)
    counts = outcome.counts
    return Speedups(
        flops_speedup=sum(map(other.full, counts)) / sum(map(own.full, counts)),
        flops_speedup_executed=sum(other.full(n, executed=True) for n in counts)
        / sum(own.full(n, executed=True) for n in counts),
        flops_speedup_padded=speedups(other, counts, [[n] * len(other.layers) for n in counts]).flops_speedup_padded
        * sum(map(other.full, counts))
        / sum(map(own.full, counts)),
    )


def _checkpoint_cost(model: str, labels: int) -> ModelCost:
    """What a backbone costs with a head for so many labels; its weights are not looked at."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from adapler.backbones import view

    config = AutoConfig.from_pretrained(model_folder(model), local_files_only=True, trust_remote_code=False, num_labels=labels)
    return model_cost(view(AutoModelForSequenceClassification.from_config(config)), None)


def _full_dev(plan: Plan, out: Path, cell: Cell) -> float:
    (full,) = (other for other in cells(plan) if (other.task, other.method, other.seed) == (cell.task, "full", cell.seed))
    return float(read_json(cell_folder(out, full) / CELL_FILE)["points"][0]["score"])


def _full_score(out: Path, cell: Cell) -> float:
    return float(read_record(out, cell.task, "full", cell.seed)["score"])
