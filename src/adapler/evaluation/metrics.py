"""Scores of answers against true labels, all better the larger, and which of them fit a problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adapler.errors import BadConfig, UnknownName
from adapler.problems import METRICS_OF, Label, Problem


def accuracy(labels: NDArray[Any], answers: NDArray[Any]) -> float:
    """Share of right answers; of several labels all must be right."""
    right = labels == answers
    return float((right.all(axis=-1) if right.ndim > 1 else right).mean())


def f1(labels: NDArray[Any], answers: NDArray[Any]) -> float:
    """F1 of label 1 for two labels, else the mean over labels."""
    from sklearn.metrics import f1_score

    binary = labels.ndim == 1 and int(labels.max(initial=0)) <= 1 and int(answers.max(initial=0)) <= 1
    return float(f1_score(labels, answers, average="binary" if binary else "macro", zero_division=0))


def micro_f1(labels: NDArray[Any], answers: NDArray[Any]) -> float:
    """F1 over all decisions, every label of every text one."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, answers, average="micro", zero_division=0))


def matthews(labels: NDArray[Any], answers: NDArray[Any]) -> float:
    """Matthews correlation."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, answers))


def pearson(labels: NDArray[Any], answers: NDArray[Any]) -> float:
    """Correlation; 0 where one side is constant."""
    if np.ptp(labels) == 0 or np.ptp(answers) == 0:
        return 0.0
    return float(np.corrcoef(labels, answers)[0, 1])


def spearman(labels: NDArray[Any], answers: NDArray[Any]) -> float:
    """Correlation of the ranks, equals sharing theirs."""
    from scipy.stats import rankdata  # type: ignore[import-untyped]

    return pearson(rankdata(labels), rankdata(answers))


def r2(labels: NDArray[Any], answers: NDArray[Any]) -> float:
    """Share of the labels' variance that the answers explain; whatever is worse than -1 counts as that."""
    from sklearn.metrics import r2_score

    return max(-1.0, float(r2_score(labels, answers))) if len(labels) > 1 else 0.0


METRICS: dict[str, Callable[[NDArray[Any], NDArray[Any]], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "micro_f1": micro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
    "r2": r2,
}


def score(metric: str, labels: Sequence[Label] | NDArray[Any], answers: NDArray[Any]) -> float:
    """A metric by name, at most 1."""
    if metric not in METRICS:
        raise UnknownName(f"no metric {metric!r}; known: {', '.join(METRICS)}")
    return METRICS[metric](np.asarray(labels), answers)


def check_metric(metric: str, problem: Problem) -> None:
    """Refuse a metric that means nothing for a problem."""
    if metric not in METRICS_OF[problem]:
        raise BadConfig(f"the metric {metric!r} does not fit a {problem} problem; fitting: {', '.join(METRICS_OF[problem])}")


def class_weights(labels: Sequence[Label], count: int) -> Tensor:
    """Inverse class frequencies, 1 on average over the examples."""
    found = np.bincount(np.asarray(labels), minlength=count).astype(np.float64)
    return torch.tensor(len(labels) / (count * np.maximum(found, 1)), dtype=torch.float32)
