"""What a reduced model costs and loses on labelled data, against itself at full length and the model it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapler import checkpoint
from adapler.config import DataSettings
from adapler.data.keep import AlwaysKeep, keeper
from adapler.data.load import read_split
from adapler.data.text import TextEncoder
from adapler.evaluation.metrics import METRICS, check_metric, score
from adapler.evaluation.outcome import Outcome, run
from adapler.problems import REGRESSION, changed

FULL_FOLDER = Path("work") / "full"
"""Where a run folder keeps the phase-1 model."""
_RESAMPLES = 1000
_DECILES = 10


def evaluate(
    model: str | Path,
    data: DataSettings,
    split: str,
    *,
    against: str | Path | None = None,
    device: str = "cpu",
    always_keep: AlwaysKeep | None = None,
) -> dict[str, Any]:
    """Score, losses with paired 95% bootstrap intervals, FLOPs speedups, tokens per layer, loss by class and by length.

    `against` is a full-length classifier to measure the loss against; by default the phase-1 model of a run folder. What
    `always_keep` names stays, as in `Classifier`.
    """
    opened = checkpoint.load(model, device=device)
    names, problem = opened.backbone.labels, opened.backbone.problem
    examples, metric = read_split(data, split, names, problem)
    check_metric(metric, problem)
    texts = TextEncoder(opened.tokenizer, opened.max_length, keep=keeper(always_keep))(examples.texts)
    labels = np.asarray(examples.labels)
    reduced = run(opened.backbone, opened.reducer, texts)
    same = run(opened.backbone, None, texts)
    if against is None and (Path(model) / FULL_FOLDER).is_dir():
        against = Path(model) / FULL_FOLDER
    report: dict[str, Any] = {
        "model": str(model),
        "data": data.source,
        "split": split,
        "n": len(texts),
        "metric": metric,
        "score": score(metric, labels, reduced.predictions),
        **reduced.speedups.to_dict(),
        "tokens": float(np.mean(reduced.counts)),
        "tokens_per_layer": np.mean(reduced.lengths, axis=0).round(3).tolist(),
        "truncated": sum(text.truncated for text in texts),
        "against_own_full_length": _loss(metric, labels, reduced, same.predictions),
        "by_class": [] if problem == REGRESSION else _by_class(labels, reduced, same, names),
        "by_length": _by_length(metric, labels, reduced, same),
    }
    if against is not None:
        original = checkpoint.load(against, device=device)
        original_texts = TextEncoder(original.tokenizer, opened.max_length)(examples.texts)
        full = run(original.backbone, None, original_texts)
        report["against_phase_1"] = {"model": str(against), **_loss(metric, labels, reduced, full.predictions)}
    return report


def _loss(metric: str, labels: NDArray[Any], reduced: Outcome, full: NDArray[Any]) -> dict[str, Any]:
    low, high = paired_bootstrap(metric, labels, full, reduced.predictions)
    whole = score(metric, labels, full)
    return {
        "score_full": whole,
        "loss_points": 100 * (whole - score(metric, labels, reduced.predictions)),
        "loss_points_95": [low, high],
        "answers_changed": int(changed(full, reduced.predictions).sum()),
    }


def paired_bootstrap(
    metric: str, labels: NDArray[Any], full: NDArray[Any], reduced: NDArray[Any], seed: int = 0
) -> tuple[float, float]:
    """95% interval of the loss in points, resampling texts; both models see the same resample."""
    random = np.random.default_rng(seed)
    measure = METRICS[metric]
    losses = []
    for _ in range(_RESAMPLES):
        chosen = random.integers(0, len(labels), len(labels))
        losses.append(100 * (measure(labels[chosen], full[chosen]) - measure(labels[chosen], reduced[chosen])))
    low, high = np.percentile(losses, [2.5, 97.5])
    return float(low), float(high)


def _by_class(labels: NDArray[Any], reduced: Outcome, same: Outcome, names: Sequence[str]) -> list[dict[str, Any]]:
    """Share of each class found, reduced and at full length, and how much of its FLOPs it saves in tokens."""
    rows = []
    for number, name in enumerate(names):
        of_class = labels[:, number] == 1 if labels.ndim > 1 else labels == number
        if of_class.any():
            rows.append(
                {
                    "label": name,
                    "n": int(of_class.sum()),
                    "recall": _recall(reduced.predictions[of_class], number),
                    "recall_full": _recall(same.predictions[of_class], number),
                    "tokens_kept": _kept_share(reduced, np.flatnonzero(of_class)),
                }
            )
    return rows


def _recall(answers: NDArray[Any], number: int) -> float:
    return float((answers[:, number] if answers.ndim > 1 else answers == number).mean())


def _by_length(metric: str, labels: NDArray[Any], reduced: Outcome, same: Outcome) -> list[dict[str, Any]]:
    """The same for tenths of the texts by length, shortest first."""
    rows = []
    for tenth in np.array_split(np.argsort(reduced.counts, kind="stable"), _DECILES):
        if len(tenth):
            lengths = [reduced.counts[i] for i in tenth]
            rows.append(
                {
                    "tokens": [int(min(lengths)), int(max(lengths))],
                    "n": len(tenth),
                    "score": score(metric, labels[tenth], reduced.predictions[tenth]),
                    "score_full": score(metric, labels[tenth], same.predictions[tenth]),
                    "tokens_kept": _kept_share(reduced, tenth),
                }
            )
    return rows


def _kept_share(outcome: Outcome, chosen: NDArray[np.int64]) -> float:
    """Share of token-layers that were computed."""
    kept = sum(sum(outcome.lengths[i]) for i in chosen)
    return float(kept / sum(outcome.counts[i] * len(outcome.lengths[i]) for i in chosen))
