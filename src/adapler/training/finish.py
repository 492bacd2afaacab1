"""The end of a run: choose the operating point, measure against the phase-1 model, write model and report."""

from __future__ import annotations

import json
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
from adapler.methods.base import Reducer
from adapler.points import Dial
from adapler.problems import Label, changed, named
from adapler.records import commit, machine, today, versions
from adapler.report.page import write_report
from adapler.training.finetune import Finetune
from adapler.training.reducing import Given, Reducing
from adapler.training.selection import Point, choose_point
from adapler.training.setup import Prepared

REPORT_FILE = REPORT_JSON
REPORT_PAGE = "report.html"
WORK = "work"
EXAMPLES = 20


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


def finish(given: Given, out: Path, finetune: Finetune, reduced: Reducing) -> None:
    """Measure the kept epoch against the phase-1 model, write model and report."""
    config, prepared, session = given.config, given.prepared, given.session
    session.progress.phase("evaluate")
    dataset = prepared.dataset
    splits: dict[str, tuple[list[EncodedText], Examples]] = {"dev": (prepared.dev, dataset.dev)}
    if prepared.test is not None and dataset.test is not None:
        splits["test"] = (prepared.test, dataset.test)
    finetune.load_epoch(finetune.best()[-1])
    full = {name: run(prepared.backbone, None, texts).predictions for name, (texts, _) in splits.items()}
    checkpoint.save(out / FULL_FOLDER, prepared.backbone, prepared.tokenizer, None, prepared.max_length, overwrite=True)
    reduced.load_best()
    point, dial, curve = _settle(config, prepared, reduced, score(dataset.metric, dataset.dev.labels, full["dev"]))
    results = {
        name: _result(dataset.metric, prepared.backbone, reduced.reducer, texts, examples.labels, full[name])
        for name, (texts, examples) in splits.items()
    }
    kept = {**(reduced.kept or {}), "within_margin": point.score > reduced.selection.threshold}
    report: dict[str, Any] = {
        "account": _account(dataset.metric, results, kept),
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
    _install_model(out, prepared, reduced.reducer, dial)
    write_json(out / REPORT_FILE, report)
    write_report(report, out / REPORT_PAGE, examples=config.run.report_examples)


def _settle(
    config: TrainConfig, prepared: Prepared, reduced: Reducing, score_full: float
) -> tuple[Point, Dial, list[dict[str, float]]]:
    """Move the kept epoch's reducer to the operating point that dev says the user wants.

    Returns that point; the model's dial; and dev score and speedups at every scale tried. Scales are relative to the point.
    """
    dataset = prepared.dataset
    low, high = reduced.reducer.scale_range()
    dial, measured = measure(
        prepared.backbone,
        reduced.reducer,
        prepared.dev,
        dataset.dev.labels,
        dataset.metric,
        data=f"{dataset.name}, dev",
        reference=("the full-length model it was made from", score_full),
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


def _account(metric: str, results: dict[str, SplitResult], kept: dict[str, Any]) -> str:
    """The whole run in one sentence."""
    split = "test" if "test" in results else "dev"
    result = results[split]
    change = f"{abs(result.loss_points):.1f} points {'less' if result.loss_points >= 0 else 'more'}"
    sentence = (
        f"{metric} {100 * result.score:.1f} on {result.n} {split} texts at {result.flops_speedup:.2f}x fewer FLOPs, "
        f"{change} than the full-length model it was made from ({100 * result.score_full:.1f})"
    )
    if not kept.get("within_margin", False):
        sentence += "; no epoch stayed within the allowed dev loss, so the best-scoring one was kept"
    return sentence + "."


def read_json(path: Path) -> dict[str, Any]:
    """A table from a file of the run."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """A file of the run, whole or not at all."""
    staging = path.with_name(path.name + ".tmp")
    staging.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    checkpoint.sync(staging)
    staging.replace(path)
