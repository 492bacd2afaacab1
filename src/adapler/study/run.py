"""Runs a study cell by cell; each method's operating point is chosen on dev, then looks at test once.

A study folder holds `plan.json` (the plan as resolved), `cells/NAME/` (the runs, each of which resumes by itself), and
`results/study-TASK-METHOD-SEED.json`: the record of the point that dev chose. What is there is not done again.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from adapler import checkpoint
from adapler.cost import ModelCost, Speedups, speedups
from adapler.data.load import load_dataset, read_split
from adapler.data.text import EncodedText, TextEncoder
from adapler.engine import model_cost
from adapler.errors import BadConfig
from adapler.evaluation.metrics import score
from adapler.evaluation.outcome import Outcome, run
from adapler.problems import Label
from adapler.records import Record, write_records
from adapler.study.places import CELL_FILE, PLAN_FILE, cell_done, cell_folder, record_file
from adapler.study.plan import STATIC, Cell, Plan, cells, joined
from adapler.study.static import best_full_length
from adapler.study.words import bag_of_words, beginnings
from adapler.training.borrow import same_finetuning
from adapler.training.run import train
from adapler.training.session import Progress
from adapler.training.setup import model_folder
from adapler.training.snapshot import read_json, write_json

Say = Callable[[str], None]


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


def run_study(plan: Plan, out: Path, progress: Callable[[], AbstractContextManager[Progress]], say: Say) -> None:
    """Run what is not done yet, records as they come."""
    _claim(plan, out)
    for task in plan.tasks:
        for seed in plan.seeds:
            group = [cell for cell in cells(plan) if (cell.task, cell.seed) == (task, seed)]
            for method in dict.fromkeys(cell.method for cell in group):
                own = [cell for cell in group if cell.method == method]
                done = method == "words" or all(cell_done(out, cell) for cell in own)
                if done and record_file(out, task, method, seed).exists():
                    continue
                if method == "words":
                    record = _words_record(plan, out, own[0])
                else:
                    for cell in own:
                        say(f"{cell.name} ...")
                        with progress() as shown:
                            run_cell(plan, cell, out, shown)
                    record = _record(plan, out, own)
                write_records(record_file(out, task, method, seed), [record])
                fast = "" if record.flops_speedup is None else f" at {record.flops_speedup:.2f}x"
                say(
                    f"{task} {method} seed {seed}: {record.metric} {100 * (record.score or 0):.2f}{fast}, "
                    f"loss {record.loss_points:.2f}"
                )


def run_cell(plan: Plan, cell: Cell, out: Path, progress: Progress) -> None:
    """Train one cell, if it is not done."""
    if cell_done(out, cell):
        return
    folder = cell_folder(out, cell)
    if cell.method in STATIC:
        epochs = plan.full_epochs or cell.config.epochs
        prepared, dev, rate = best_full_length(cell.config, folder, epochs=epochs, rates=plan.full_rates, progress=progress)
        model = folder / "model"
        checkpoint.save(model, prepared.backbone, prepared.tokenizer, None, prepared.max_length, overwrite=True)
        made: dict[str, Any] = {"points": [{"scale": None, "score": dev, "flops_speedup": 1.0}], "lr": rate, "epochs": epochs}
        made |= {"metric": prepared.dataset.metric, "max_length": prepared.max_length}
        made |= {"n_train": len(prepared.dataset.train), "n_dev": len(prepared.dataset.dev)}
    else:
        report = train(cell.config, folder / "run", progress, finetuned_from=_finetuned(plan, cell, out))
        points = [{key: point[key] for key in ("scale", "score", "flops_speedup")} for point in report["curve"]]
        made = {"points": [point for point in points if point["scale"]], "metric": report["metric"]}
        made |= {"n_train": report["n_train"]}
    write_json(folder / CELL_FILE, made)


def _finetuned(plan: Plan, cell: Cell, out: Path) -> Path | None:
    """A finished run of the study with the same phase 1, of this cell's own method where there is one."""
    others = [other for other in cells(plan) if other.method not in STATIC and cell_done(out, other)]
    same = [other for other in others if same_finetuning(other.config, cell.config)]
    same.sort(key=lambda other: other.method != cell.method)
    return cell_folder(out, same[0]) / "run" if same else None


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
    """The model of a cell."""
    return checkpoint.load(cell_folder(out, cell) / ("model" if cell.method in STATIC else "run"))


def test_texts(plan: Plan, cell: Cell, model: checkpoint.Checkpoint, limit: int) -> tuple[list[EncodedText], list[Label]]:
    """The test split as token ids, cut to `limit` tokens, and its labels."""
    examples, _ = read_split(cell.config.data, "test", model.backbone.labels, model.backbone.problem)
    chosen = examples.only(range(min(len(examples), plan.test_limit or len(examples))))
    return TextEncoder(model.tokenizer, limit)(chosen.texts), chosen.labels


def _record(plan: Plan, out: Path, own: list[Cell]) -> Record:
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
        variant=", ".join(f"{key} {value:g}" for key, value in cell.knob.items()) or None,
        backbone=Path(cell.config.model).name,
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
            "model": Path(cell.config.model).name,
            "dev_score": choice.dev,
            "dev_flops_speedup": choice.dev_speedup,
            "within_margin": choice.within,
            "against": Path(plan.model).name,
            **({"lr": about["lr"], "epochs": about["epochs"]} if cell.method in STATIC else {}),
            **({"dataset": _dataset(about, outcome.counts)} if cell.method == "full" else {}),
        },
        flops_speedup=saved.flops_speedup,
        flops_speedup_executed=saved.flops_speedup_executed,
        flops_speedup_padded=saved.flops_speedup_padded,
        flops_speedup_authors=saved.flops_speedup_authors,
    )


def _words_record(plan: Plan, out: Path, cell: Cell) -> Record:
    """The bag of words on the same examples, of which it reads no more than the others."""
    from transformers import AutoTokenizer

    train = load_dataset(cell.config.data, cell.seed)
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
        config={"against": Path(plan.model).name},
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
    other = checkpoint_cost(plan.model, len(model.backbone.labels))
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


def checkpoint_cost(model: str, labels: int) -> ModelCost:
    """What a backbone costs with a head for so many labels; its weights are not looked at."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from adapler.backbones import view

    config = AutoConfig.from_pretrained(model_folder(model), local_files_only=True, trust_remote_code=False, num_labels=labels)
    return model_cost(view(AutoModelForSequenceClassification.from_config(config)), None)


def _full_dev(plan: Plan, out: Path, cell: Cell) -> float:
    for other in cells(plan):
        if (other.task, other.method, other.seed) == (cell.task, "full", cell.seed):
            return float(read_json(cell_folder(out, other) / CELL_FILE)["points"][0]["score"])
    raise BadConfig("a study needs the method `full`: every other is held against it")


def _full_score(out: Path, cell: Cell) -> float:
    record = json.loads(record_file(out, cell.task, "full", cell.seed).read_text(encoding="utf-8"))[0]
    return float(record["score"])


def _claim(plan: Plan, out: Path) -> None:
    """Write the plan into the study's folder; into an old one, together with what was planned there before."""
    if "full" not in plan.methods:
        raise BadConfig("a study needs the method `full`: every other is held against it")
    file = out / PLAN_FILE
    whole = joined(Plan.model_validate(read_json(file)), plan, out) if file.exists() else plan
    out.mkdir(parents=True, exist_ok=True)
    write_json(file, json.loads(whole.model_dump_json()))
