"""The end of a run: choose the operating point, measure against the phase-1 model, write model and report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adapler import checkpoint
from adapler.backbones.base import Backbone
from adapler.config import TrainConfig
from adapler.data.labels import Examples
from adapler.data.text import EncodedText, TextEncoder
from adapler.dial import measure
from adapler.evaluation.evaluate import FULL_FOLDER
from adapler.evaluation.examples import stories, story_dict
from adapler.evaluation.metrics import score
from adapler.evaluation.outcome import run
from adapler.folder import REDUCTION_JSON, REPORT_JSON
from adapler.methods import METHODS
from adapler.methods.base import Reducer
from adapler.points import Dial
from adapler.problems import Label, changed, named
from adapler.records import commit, machine, today, versions
from adapler.report.page import write_report
from adapler.training.finetune import Finetune
from adapler.training.reducing import Given, Reducing
from adapler.training.selection import Point, choose_point
from adapler.training.setup import Prepared
from adapler.training.snapshot import write_json, writing

REPORT_FILE = REPORT_JSON
REPORT_PAGE = "report.html"
WORK = "work"
EXAMPLES = 20
TARGET_TOLERANCE = 0.1
"""How far, as a share, a run may end from the speedup that was asked for without its account saying so."""


@dataclass(frozen=True)
class SplitResult:
    """One split at full length (the phase-1 model) and reduced."""

    n: int
    score_full: float
    score: float
    tokens: float
    """Mean tokens of a text, all of which enter every layer of the full model."""
    lengths: list[float]
    flops_speedup: float
    flops_speedup_executed: float
    flops_speedup_padded: float
    flops_speedup_authors: float | None

    @property
    def loss_points(self) -> float:
        """Points lost against the phase-1 model."""
        return 100 * (self.score_full - self.score)


def finish_steps(prepared: Prepared, config: TrainConfig) -> int:
    """What the end counts on the progress bar, in updates: dev at every scale of the dial, a forward pass being a third of an
    update."""
    return -(-len(METHODS[config.method].scales) * len(prepared.dev) // (3 * config.finetune.batch_size))


def finish(given: Given, out: Path, finetune: Finetune, reduced: Reducing) -> None:
    """Measure the kept epoch against the phase-1 model, write model and report."""
    config, prepared, session = given.config, given.prepared, given.session
    session.progress.phase("evaluate")
    session.saved()
    dataset = prepared.dataset
    splits: dict[str, tuple[list[EncodedText], Examples]] = {"dev": (prepared.dev, dataset.dev)}
    if prepared.test is not None and dataset.test is not None:
        splits["test"] = (prepared.test, dataset.test)
    finetune.load_epoch(finetune.best()[-1])
    full = {name: run(prepared.backbone, None, texts).predictions for name, (texts, _) in splits.items()}
    with writing(out / FULL_FOLDER):
        checkpoint.save(out / FULL_FOLDER, prepared.backbone, prepared.tokenizer, None, prepared.max_length, overwrite=True)
    reduced.load_best()
    point, dial, curve = _settle(given, reduced, score(dataset.metric, dataset.dev.labels, full["dev"]))
    results = {
        name: _result(dataset.metric, prepared.backbone, reduced.reducer, texts, examples.labels, full[name])
        for name, (texts, examples) in splits.items()
    }
    kept = {**(reduced.kept or {}), "within_margin": point.score > reduced.selection.threshold}
    report: dict[str, Any] = {
        "account": _account(dataset.metric, results, kept, config.steer.target_speedup),
        "task": dataset.name,
        "metric": dataset.metric,
        "method": config.method,
        "n_train": len(dataset.train),
        "within_margin": kept.get("within_margin", False),
        "kept_epoch": kept.get("epoch"),
        "kept_scale": point.scale,
        "splits": {name: {**vars(result), "loss_points": result.loss_points} for name, result in results.items()},
        "curve": curve,
        "history": session.history,
        "notes": list(prepared.notes),
        "config": config.model_dump(),
        "machine": machine(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "commit": commit(),
        "date": today(),
    }
    if config.run.report_examples:
        report["examples"] = _examples(prepared, reduced.reducer, full["dev"])
    with writing(out):
        _install_model(out, prepared, reduced.reducer, dial)
    write_json(out / REPORT_FILE, report)
    write_report(report, out / REPORT_PAGE, examples=config.run.report_examples)


def _settle(given: Given, reduced: Reducing, score_full: float) -> tuple[Point, Dial, list[dict[str, float]]]:
    """Move the kept epoch's reducer to the operating point that dev says the user wants.

    Returns that point; the model's dial; and dev score and speedups at every scale tried. Scales are relative to the point.
    """
    config, prepared, session = given.config, given.prepared, given.session
    dataset = prepared.dataset
    counted = finish_steps(prepared, config) / session.total_steps
    low, high = reduced.reducer.scale_range()
    dial, measured = measure(
        prepared.backbone,
        reduced.reducer,
        prepared.dev,
        dataset.dev.labels,
        dataset.metric,
        data=f"{dataset.name}, dev",
        reference=("the full-length model it was made from", score_full),
        advance=lambda share: session.progress.advance(share * counted),
    )
    high = min(high, reduced.reducer.farthest)
    points = [Point(point.scale, point.score, point.flops_speedup) for point in measured if low <= point.scale <= high]
    chosen = choose_point(points, reduced.selection.threshold, config.steer.target_speedup)
    reduced.reducer.rescale(chosen.scale)
    curve = [
        {
            "scale": round(point.scale / chosen.scale, 9),
            "score": point.score,
            "flops_speedup": point.flops_speedup,
            "flops_speedup_executed": point.flops_speedup_executed,
        }
        for point in measured
    ]
    return chosen, dial.rescaled(chosen.scale), curve


def _examples(prepared: Prepared, reducer: Reducer, full: NDArray[Any]) -> dict[str, list[dict[str, Any]]]:
    """Dev texts as they went through the layers: the first ones, and ones that removal alone got wrong."""
    dataset = prepared.dataset
    reduced = run(prepared.backbone, reducer, prepared.dev).predictions
    labels = np.asarray(dataset.dev.labels)
    spoilt = np.flatnonzero(~changed(full, labels) & changed(reduced, labels))
    chosen = {"sample": range(min(EXAMPLES, len(labels))), "errors_by_removal": spoilt[:EXAMPLES].tolist()}
    encoder = TextEncoder(prepared.tokenizer, prepared.max_length)
    told: dict[str, list[dict[str, Any]]] = {}
    for kind, indices in chosen.items():
        found = stories(prepared.backbone, reducer, encoder, [dataset.dev.texts[index] for index in indices])
        told[kind] = [
            story_dict(story, *(named(said[index], dataset.labels, dataset.problem) for said in (labels, reduced, full)))
            for index, story in zip(indices, found, strict=True)
        ]
    return told


def _install_model(out: Path, prepared: Prepared, reducer: Reducer, dial: Dial) -> None:
    """Move the finished files into the run folder; the one that makes it a model comes last."""
    staging = out / WORK / "model"
    parts = (prepared.backbone, prepared.tokenizer, reducer, prepared.max_length)
    checkpoint.save(staging, *parts, dial=dial, overwrite=True)
    for file in sorted(staging.iterdir(), key=lambda path: path.name == REDUCTION_JSON):
        file.replace(out / file.name)
    checkpoint.sync(out)


def _result(
    metric: str,
    backbone: Backbone,
    reducer: Reducer,
    texts: list[EncodedText],
    labels: list[Label],
    full: NDArray[Any],
) -> SplitResult:
    outcome = run(backbone, reducer, texts)
    return SplitResult(
        n=len(texts),
        score_full=score(metric, labels, full),
        score=score(metric, labels, outcome.predictions),
        tokens=round(float(np.mean(outcome.counts)), 3),
        lengths=np.mean(outcome.lengths, axis=0).round(3).tolist(),
        flops_speedup=outcome.speedups.flops_speedup,
        flops_speedup_executed=outcome.speedups.flops_speedup_executed,
        flops_speedup_padded=outcome.speedups.flops_speedup_padded,
        flops_speedup_authors=outcome.speedups.flops_speedup_authors,
    )


def _account(metric: str, results: dict[str, SplitResult], kept: dict[str, Any], target_speedup: float | None) -> str:
    """The whole run in one sentence."""
    split = "test" if "test" in results else "dev"
    result = results[split]
    change = f"{abs(result.loss_points):.1f} points {'less' if result.loss_points >= 0 else 'more'}"
    saved = result.flops_speedup
    cost = f"{saved:.2f}x fewer FLOPs" if saved > 1 else f"{1 / saved:.2f}x the FLOPs"
    sentence = (
        f"{metric} {100 * result.score:.1f} on {result.n} {split} texts at {cost}, "
        f"{change} than the full-length model it was made from ({100 * result.score_full:.1f})"
    )
    reached = results["dev"].flops_speedup  # it was steered by dev
    if target_speedup is not None and abs(reached / target_speedup - 1) > TARGET_TOLERANCE:
        sentence += f"; {target_speedup:g}x was asked for, {reached:.2f}x was reached on dev"
    if saved <= 1:
        sentence += "; it saves nothing, the full-length model is the better choice"
    if not kept.get("within_margin", False):
        sentence += "; no epoch stayed within the allowed dev loss, so the best-scoring one was kept"
    return sentence + "."
