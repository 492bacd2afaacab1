"""A whole run: fine-tune, saliencies, reduce, choose, write. Resumes by itself; ends in a model folder with its account.

A run folder holds the model itself (so `Classifier.from_pretrained(out)` opens it), `train.json` (the settings as resolved),
`report.json`, `report.html`, and `work/` with snapshots, checkpoints and saliencies.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adapler import checkpoint
from adapler.backbones.base import Backbone
from adapler.config import TrainConfig, build_config
from adapler.data.load import Examples
from adapler.data.text import EncodedText
from adapler.dial import measure
from adapler.errors import BadConfig
from adapler.evaluation.evaluate import FULL_FOLDER
from adapler.evaluation.examples import stories, story_dict
from adapler.evaluation.outcome import class_weights, run, score
from adapler.folder import REDUCTION_JSON
from adapler.methods.adapler import AdapLeR
from adapler.methods.base import Reducer
from adapler.methods.settings import ETA_RANGE
from adapler.points import Dial
from adapler.records import commit, machine, today, versions
from adapler.report.page import write_report
from adapler.training.finetune import Finetune
from adapler.training.processes import join
from adapler.training.progress import Silent
from adapler.training.reduce import Reduce
from adapler.training.saliency import PART_TEXTS, extract
from adapler.training.selection import Point, choose_point
from adapler.training.session import Progress, Session
from adapler.training.setup import Prepared, load_backbone, prepare
from adapler.training.snapshot import Snapshots

CONFIG_FILE = "train.json"
REPORT_FILE = "report.json"
REPORT_PAGE = "report.html"
WORK = "work"
FARTHEST = 1.5
"""Scale of all thresholds up to which a finished model may be moved: farther it was not trained for."""
EXAMPLES = 20
_PART_STEPS = 3 * PART_TEXTS // 64
"""What a part of the saliencies counts on the progress bar, in steps of training."""


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


def train(config: TrainConfig, out: str | Path, progress: Progress | None = None) -> dict[str, Any]:
    """Run all phases into the folder `out`, or go on where a stopped run left it; returns the report."""
    out = Path(out)
    progress = progress or Silent()
    torch.set_flush_denormal(True)  # denormal floats make a CPU crawl
    processes = join(config.run.device, config.run.tracker)
    if not processes.leads:
        progress = Silent()
    finished = processes.first(lambda: _claim(config, out, progress))
    if finished is not None:
        return finished
    prepared = prepare(config, processes.device)
    for note in prepared.dataset.notes:
        progress.say(note)
    work = out / WORK
    snapshots = Snapshots(work / "snapshots", config.run.keep, progress.say)
    session = Session(snapshots, progress, config.run.snapshot_seconds, processes=processes)
    with session.signals(), processes.tracking(config.run.tracker, work / "tracker", config.model_dump()):
        return _run_phases(config, out, prepared, session, work)


def _run_phases(config: TrainConfig, out: Path, prepared: Prepared, session: Session, work: Path) -> dict[str, Any]:
    dataset, backbone = prepared.dataset, prepared.backbone
    processes, device = session.processes, str(backbone.model.device)
    weights = class_weights(dataset.train.labels, len(dataset.labels)).to(device) if config.data.class_weights else None
    processes.part_ways()
    snapshot = session.resume()
    finetune = Finetune(prepared, config.finetune, config.run, session, work / "finetuned", weights)
    reducing = config.reduce.epochs * -(-len(dataset.train) // (config.reduce.batch_size * config.run.accumulate))
    parts = -(-len(dataset.train) // PART_TEXTS)
    session.total_steps = finetune.total + parts * _PART_STEPS + reducing
    if snapshot is not None and snapshot.state["phase"] == Reduce.name:
        finetune.load_state(_finetune_state(work))
        session.progress.advance(finetune.total / session.total_steps)
        session.logged = finetune.total
    else:
        session.run(finetune, snapshot)
        if processes.leads:
            _write_json(work / "finetuned.json", finetune.state())

    def part_done(parts: int) -> None:
        session.progress.advance(parts * _PART_STEPS / session.total_steps)
        session.stop_if_asked()

    session.progress.phase("saliency")
    best = finetune.best()
    saliencies = extract(
        backbone,
        prepared.train,
        dataset.train.labels,
        [lambda epoch=epoch: finetune.load_epoch(epoch) for epoch in best],  # type: ignore[misc]
        work / "saliency",
        part_done,
        processes,
    )

    finetune.load_epoch(best[-1])
    teacher = _logits(backbone, prepared.train) if config.steer.distill > 0 else None
    if config.reduce.start == "pretrained":
        fresh, _ = load_backbone(config.model, dataset.labels, config.run.seed, device)
        backbone.model.load_state_dict(fresh.model.state_dict())
    torch.manual_seed(config.run.seed)
    reducer = AdapLeR.for_backbone(backbone).to(device)
    processes.part_ways()
    reduce = Reduce(
        prepared,
        reducer,
        saliencies,
        teacher,
        max(finetune.scores),
        config.reduce,
        config.steer,
        config.run,
        session,
        work,
        weights,
    )
    session.run(reduce, snapshot)
    if processes.leads:
        _finish(config, out, prepared, session, finetune, reduce)
    processes.wait()
    return _read_json(out / REPORT_FILE)


def _finish(config: TrainConfig, out: Path, prepared: Prepared, session: Session, finetune: Finetune, reduce: Reduce) -> None:
    """Measure the kept epoch against the phase-1 model, write model and report."""
    session.progress.phase("evaluate")
    dataset = prepared.dataset
    splits: dict[str, tuple[list[EncodedText], Examples]] = {"dev": (prepared.dev, dataset.dev)}
    if prepared.test is not None and dataset.test is not None:
        splits["test"] = (prepared.test, dataset.test)
    finetune.load_epoch(finetune.best()[-1])
    full = {name: run(prepared.backbone, None, texts).predictions for name, (texts, _) in splits.items()}
    checkpoint.save(out / FULL_FOLDER, prepared.backbone, prepared.tokenizer, None, prepared.max_length, overwrite=True)
    reduce.load_best()
    point, dial, curve = _settle(config, prepared, reduce, score(dataset.metric, dataset.dev.labels, full["dev"]))
    results = {
        name: _result(dataset.metric, prepared.backbone, reduce.reducer, texts, examples.labels, full[name])
        for name, (texts, examples) in splits.items()
    }
    kept = {**(reduce.kept or {}), "within_margin": point.score > reduce.selection.threshold}
    report: dict[str, Any] = {
        "account": _account(dataset.metric, results, kept),
        "task": dataset.name,
        "metric": dataset.metric,
        "n_train": len(dataset.train),
        "within_margin": kept.get("within_margin", False),
        "kept_epoch": kept.get("epoch"),
        "kept_scale": point.scale,
        "splits": {name: {**vars(result), "loss_points": result.loss_points} for name, result in results.items()},
        "curve": curve,
        "history": session.history,
        "notes": list(dataset.notes),
        "config": config.model_dump(),
        "machine": machine(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "commit": commit(),
        "date": today(),
    }
    if config.run.report_examples:
        report["examples"] = _examples(prepared, reduce.reducer, full["dev"])
    _install_model(out, prepared, reduce.reducer, dial)
    _write_json(out / REPORT_FILE, report)
    write_report(report, out / REPORT_PAGE, examples=config.run.report_examples)


def _settle(
    config: TrainConfig, prepared: Prepared, reduce: Reduce, score_full: float
) -> tuple[Point, Dial, list[dict[str, float]]]:
    """Move the kept epoch's thresholds to the operating point that dev says the user wants.

    Returns that point; the model's dial; and dev score and speedups at every scale tried. Scales are relative to the point.
    """
    dataset, eta = prepared.dataset, reduce.reducer.eta.detach()
    low, high = ETA_RANGE
    dial, measured = measure(
        prepared.backbone,
        reduce.reducer,
        prepared.dev,
        dataset.dev.labels,
        dataset.metric,
        data=f"{dataset.name}, dev",
        reference=("the full-length model it was made from", score_full),
    )
    points = [
        Point(point.scale, point.score, point.flops_speedup)
        for point in measured
        if point.scale <= FARTHEST and float(eta.min()) * point.scale >= low and float(eta.max()) * point.scale <= high
    ]
    chosen = choose_point(points, reduce.selection.threshold, config.steer.target_speedup)
    eta.mul_(chosen.scale)  # shares the parameter's memory
    curve = [
        {
            "scale": round(point.scale / chosen.scale, 3),
            "score": point.score,
            "flops_speedup": point.flops_speedup,
            "flops_speedup_executed": point.flops_speedup_executed,
        }
        for point in measured
    ]
    return chosen, dial.rescaled(chosen.scale), curve


def _examples(prepared: Prepared, reducer: Reducer, full: NDArray[np.int64]) -> dict[str, list[dict[str, Any]]]:
    """Dev texts as they went through the layers: the first ones, and ones that removal alone got wrong."""
    dataset = prepared.dataset
    reduced = run(prepared.backbone, reducer, prepared.dev).predictions
    labels = np.asarray(dataset.dev.labels)
    spoilt = np.flatnonzero((full == labels) & (reduced != labels))
    chosen = {"sample": range(min(EXAMPLES, len(labels))), "errors_by_removal": spoilt[:EXAMPLES].tolist()}
    return {
        kind: [
            story_dict(story, int(labels[index]), int(full[index]), dataset.labels)
            for index, story in zip(
                indices, stories(prepared.backbone, reducer, [prepared.dev[i] for i in indices]), strict=True
            )
        ]
        for kind, indices in chosen.items()
    }


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
    labels: list[int],
    full: NDArray[np.int64],
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


def _claim(config: TrainConfig, out: Path, progress: Progress) -> dict[str, Any] | None:
    """Write the settings into a new run folder; in an old one check that they are the same. The report, if it is finished."""
    file = out / CONFIG_FILE
    resolved = json.loads(config.model_dump_json())
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        if build_config(before) != config:
            raise BadConfig(f"{out} holds a run with other settings ({_difference(before, resolved)}); choose another --out")
        if (out / REPORT_FILE).exists():
            progress.say(f"{out} is finished; nothing to do")
            report: dict[str, Any] = json.loads((out / REPORT_FILE).read_text(encoding="utf-8"))
            if not (out / REPORT_PAGE).exists():  # killed between the two
                write_report(report, out / REPORT_PAGE, examples=config.run.report_examples)
            return report
        return None
    if out.exists() and any(out.iterdir()):
        raise BadConfig(f"{out} exists and holds no run of adapler; choose an empty or a new folder")
    out.mkdir(parents=True, exist_ok=True)
    _write_json(file, resolved)
    return None


def _difference(before: dict[str, Any], after: dict[str, Any], prefix: str = "") -> str:
    changed = []
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            changed.append(_difference(old, value, f"{prefix}{key}."))
        elif old != value:
            changed.append(f"{prefix}{key}: {old} -> {value}")
    return ", ".join(filter(None, changed))


def _finetune_state(work: Path) -> dict[str, Any]:
    return _read_json(work / "finetuned.json")


def _logits(backbone: Backbone, texts: list[EncodedText]) -> Tensor:
    return torch.from_numpy(run(backbone, None, texts).logits)


def _read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _write_json(path: Path, content: dict[str, Any]) -> None:
    staging = path.with_name(path.name + ".tmp")
    staging.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    checkpoint.sync(staging)
    staging.replace(path)
