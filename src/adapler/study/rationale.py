"""Runs a pilot row by row: fine-tune and test on only the words a row chooses, against full input.

A pilot's folder holds `rationale.json` (the plan as resolved), `cells/NAME/` (each resumes by itself; the one of `full` keeps
its model and the scores that choose words), and `results/rationale-*.json`: a record a cell, and of each task the rows held
against each other on the same test documents.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adapler import checkpoint
from adapler.engine import model_cost
from adapler.errors import BadConfig
from adapler.evaluation.metrics import accuracy
from adapler.evaluation.outcome import run
from adapler.records import Record, model_name, write_records
from adapler.study.rationale_plan import CHOSEN_BY, RationaleCell, RationalePlan, rationale_cells
from adapler.study.rationale_texts import Material, choosing_scores, gather, prepared, texts_of
from adapler.study.static import best_full_length
from adapler.training.session import Progress
from adapler.training.snapshot import read_json, write_json, writing

PLAN_FILE, CELL_FILE = "rationale.json", "cell.json"
RESAMPLES = 1000
PAIRS = (
    ("saliency", "full"),
    ("human", "full"),
    ("full", "attention_all"),
    ("full", "attention_cls"),
    ("human", "attention_all"),
    ("human", "attention_cls"),
    ("saliency", "random"),
)
"""Rows held against each other, the first minus the second."""


def run_pilot(
    plan: RationalePlan, out: Path, progress: Callable[[], AbstractContextManager[Progress]], say: Callable[[str], None]
) -> None:
    """Run what is not done yet, records as they come."""
    _claim(plan, out)
    torch.set_flush_denormal(True)  # denormal floats make a CPU crawl

    @lru_cache(maxsize=1)
    def material(task: str, seed: int) -> Material:
        return gather(plan, next(cell for cell in rationale_cells(plan) if (cell.task, cell.seed) == (task, seed)))

    for cell in rationale_cells(plan):
        if not rationale_done(out, cell):
            say(f"{cell.name} ...")
            with progress() as shown:
                _run_cell(plan, cell, out, material(cell.task, cell.seed), shown)
        for rest in (*cell_folder(out, cell).glob("snapshots-*"), *cell_folder(out, cell).glob("weights-*")):
            shutil.rmtree(rest)  # a cell that is done needs neither, and they are large
        file = _record_file(out, cell)
        if not file.exists():
            record = _record(plan, cell, out)
            write_records(file, [record])
            say(f"{cell.name}: accuracy {100 * (record.score or 0):.2f} at {record.flops_speedup:.2f}x")
    for task in dict.fromkeys(cell.task for cell in rationale_cells(plan)):
        write_records(out / "results" / f"rationale-{task}-pairs.json", _pairs(plan, task, out))


def rationale_done(out: Path, cell: RationaleCell) -> bool:
    """Whether a cell is trained and tested."""
    return (cell_folder(out, cell) / CELL_FILE).exists()


def cell_folder(out: Path, cell: RationaleCell) -> Path:
    """Where a cell's run lies."""
    return out / "cells" / cell.name


def _run_cell(plan: RationalePlan, cell: RationaleCell, out: Path, material: Material, progress: Progress) -> None:
    folder = cell_folder(out, cell)
    scores: dict[str, dict[str, list[Any]]] | None = None
    if cell.row in CHOSEN_BY:
        full = out / "cells" / f"{cell.task}-full-{cell.seed}"
        progress.phase("choosing words")
        scores = choosing_scores(plan, material, full / "model", full / "scores")
    texts = {
        split: texts_of(plan, cell, windows, None if scores is None else scores[split][CHOSEN_BY[cell.row]])
        for split, windows in material.windows.items()
    }
    best = best_full_length(
        cell.config,
        folder,
        epochs=cell.config.finetune.epochs,
        rates=plan.rates,
        progress=progress,
        start=lambda: prepared(plan, cell, material, texts),
    )
    found = best.prepared
    if cell.row == "full":
        checkpoint.save(folder / "model", found.backbone, found.tokenizer, None, found.max_length, overwrite=True)
    outcome = run(found.backbone, None, texts["test"])
    windows = material.windows["test"]
    predictions, labels = _by_document(outcome.logits, [w.document for w in windows], [w.label for w in windows])
    cost = model_cost(found.backbone, None)
    made = {
        "predictions": predictions.tolist(),
        "labels": labels.tolist(),
        "texts": material.test_texts,
        "dev_score": best.dev,
        "lr": best.lr,
        "flops": sum(map(cost.full, outcome.counts)),
        "tokens_mean": round(float(np.mean(outcome.counts)), 2),
        "n_train": material.documents["train"],
        "windows": {split: len(found) for split, found in material.windows.items()},
        "marked_words_mean": round(float(np.mean([window.annotated.sum() for window in windows])), 2),
    }
    write_json(folder / CELL_FILE, made)


def _by_document(
    logits: NDArray[np.float32], documents: Sequence[int], labels: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A document's answer is that of its windows' mean probabilities; and its label."""
    _, owner = np.unique(documents, return_inverse=True)
    each = torch.from_numpy(logits).double().softmax(dim=-1).numpy()
    summed = np.zeros((owner.max() + 1, each.shape[1]))
    np.add.at(summed, owner, each)
    truth = np.zeros(len(summed), dtype=np.int64)
    truth[owner] = labels
    return np.asarray(summed.argmax(axis=1), dtype=np.int64), truth


def _record(plan: RationalePlan, cell: RationaleCell, out: Path) -> Record:
    own = read_json(cell_folder(out, cell) / CELL_FILE)
    full = read_json(out / "cells" / f"{cell.task}-full-{cell.seed}" / CELL_FILE)
    labels, answers, others = (np.asarray(each) for each in (own["labels"], own["predictions"], full["predictions"]))
    reached, whole = accuracy(labels, answers), accuracy(labels, others)
    config = json.loads(cell.config.model_dump_json())
    before, after = ((each == labels).astype(float)[None] for each in (others, answers))
    _, low, high = paired(before, after, own["texts"])
    return Record(
        kind="rationale",
        task=cell.task,
        variant=cell.row,
        backbone=model_name(plan.model),
        seed=cell.seed,
        split="test",
        n=len(labels),
        n_train=own["n_train"],
        metric="accuracy",
        score=reached,
        score_full=whole,
        loss_points=100 * (whole - reached),
        flops_speedup=full["flops"] / own["flops"],
        threads=torch.get_num_threads(),
        config={
            "finetune": {**config["finetune"], "lr": own["lr"]},
            "data": {**config["data"], "source": cell.task},
            **{key: getattr(plan, key) for key in ("window", "max_windows", "positions", "target", "dev_limit", "test_limit")},
            **{key: own[key] for key in ("dev_score", "tokens_mean", "windows", "marked_words_mean")},
            "texts": len(set(own["texts"])),
            "majority": float(np.bincount(labels).max() / len(labels)),
            "loss_points_95": [low, high],
        },
    )


def _pairs(plan: RationalePlan, task: str, out: Path) -> list[Record]:
    """Differences in points over the seeds that both rows have, with 95% intervals over texts."""
    texts: list[int] = []
    right: dict[str, dict[int, NDArray[np.float64]]] = {}
    for cell in rationale_cells(plan):
        if cell.task == task and rationale_done(out, cell):
            found = read_json(cell_folder(out, cell) / CELL_FILE)
            hits = np.asarray(found["predictions"]) == np.asarray(found["labels"])
            texts = found["texts"]
            right.setdefault(cell.row, {})[cell.seed] = hits.astype(float)
    base = Record(kind="rationale", task=task, backbone=model_name(plan.model), split="test", metric="accuracy")
    made = []
    for first, second in PAIRS:
        seeds = sorted(set(right.get(first, {})) & set(right.get(second, {})))
        if seeds:
            one, other = (np.stack([right[row][seed] for seed in seeds]) for row in (first, second))
            value, low, high = paired(one, other, texts)
            about = {"interval_95": [low, high], "seeds": seeds, "resampled": "texts", "texts": len(set(texts))}
            made.append(
                replace(
                    base,
                    variant=f"{first} - {second}",
                    n=len(right[first][seeds[0]]),
                    value=value,
                    unit="points",
                    spread=high - low,
                    config=about,
                )
            )
    return made


def paired(
    first: NDArray[np.float64], second: NDArray[np.float64], texts: Sequence[int], seed: int = 0
) -> tuple[float, float, float]:
    """Difference in points of two rows of (seeds, documents) right answers, and its 95% interval over texts: both rows and all
    seeds see the same resample, and documents that share a text are drawn together."""
    each = 100 * (first - second).mean(axis=0)
    _, owner = np.unique(texts, return_inverse=True)
    sums, sizes = np.bincount(owner, weights=each), np.bincount(owner)
    drawn = np.random.default_rng(seed).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=RESAMPLES)
    low, high = np.percentile(drawn @ sums / (drawn @ sizes), [2.5, 97.5])
    return float(each.mean()), float(low), float(high)


def _record_file(out: Path, cell: RationaleCell) -> Path:
    return out / "results" / f"rationale-{cell.name}.json"


def _claim(plan: RationalePlan, out: Path) -> None:
    """Write the plan into a new folder. In an old one it may grow by tasks, rows and seeds, but not change."""
    file, resolved = out / PLAN_FILE, json.loads(plan.model_dump_json())
    if file.exists():
        before, may_grow = read_json(file), {"tasks", "rows", "seeds", "by_task", "data"}
        changed = [key for key in resolved if key not in may_grow and before.get(key) != resolved[key]]
        changed += [f"by_task.{task}" for task, own in before["by_task"].items() if plan.by_task.get(task, own) != own]
        if changed:
            raise BadConfig(f"{out} holds a pilot with other {', '.join(changed)}; choose another --out")
    with writing(file):
        out.mkdir(parents=True, exist_ok=True)
    write_json(file, resolved)
