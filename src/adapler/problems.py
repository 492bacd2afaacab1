"""What a classifier's numbers mean: one label a text, any number, or a quantity. The names are transformers'. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Problem = Literal["single_label_classification", "multi_label_classification", "regression"]
SINGLE: Problem = "single_label_classification"
MULTI: Problem = "multi_label_classification"
REGRESSION: Problem = "regression"

Label = int | float | tuple[float, ...]
"""Of one text: a label's number; a quantity; or 0.0 and 1.0 for every label."""
METRICS_OF: dict[Problem, tuple[str, ...]] = {
    SINGLE: ("accuracy", "f1", "matthews"),
    MULTI: ("micro_f1", "f1", "accuracy"),
    REGRESSION: ("pearson", "spearman", "r2"),
}
"""Metrics that fit; the first is the one taken where nobody says which."""
THRESHOLDS = "label_thresholds"
"""Where a model's config holds, label by label, the probability from which it is given."""
THRESHOLD = 0.5
"""Probability from which one of several labels is given, where a model says nothing else."""


def problem_of(problem_type: str | None, labels: int) -> Problem:
    """What a model with this `problem_type` in its config does; one that says nothing is taken as transformers trains it."""
    for known in (SINGLE, MULTI, REGRESSION):
        if problem_type == known:
            return known
    return REGRESSION if labels == 1 else SINGLE


def thresholds_of(
    labels: Sequence[str], problem_type: str | None, thresholds: Sequence[float] | None
) -> dict[str, float] | None:
    """From which probability on each label is given; None of a model that gives one label, or a quantity."""
    if problem_type != MULTI:
        return None
    return dict(zip(labels, thresholds or [THRESHOLD] * len(labels), strict=True))


def probabilities(logits: NDArray[np.float64], problem_type: str | None) -> NDArray[np.float64]:
    """As transformers' pipeline: sigmoid for several or a single label, raw values for a regression, else softmax."""
    if problem_type == REGRESSION:
        return logits
    if problem_type == MULTI or logits.shape[-1] == 1:
        return 0.5 * (1 + np.tanh(0.5 * logits))  # the sigmoid, without overflow
    grown = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: NDArray[np.float64] = grown / grown.sum(axis=-1, keepdims=True)
    return shares


def answers(logits: NDArray[np.floating[Any]], problem: Problem, thresholds: Sequence[float] | None = None) -> NDArray[Any]:
    """What the logits (B, labels) say of each text: the likeliest label's number (B,); 0 and 1 for every label (B, labels),
    1 from its threshold on; or the quantity (B,)."""
    if problem == REGRESSION:
        return np.asarray(logits[:, 0], dtype=np.float64)
    if problem == MULTI:
        least = np.full(logits.shape[1], THRESHOLD) if thresholds is None else np.asarray(thresholds)
        return (probabilities(logits.astype(np.float64), MULTI) >= least).astype(np.int64)
    return np.asarray(logits.argmax(axis=-1), dtype=np.int64)


def changed(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Per text, whether two models' answers differ; of a quantity, whether they are not about the same."""
    if one.dtype.kind == "f":
        return np.asarray(~np.isclose(one, other, rtol=0.01, atol=0.01), dtype=np.bool_)
    differs = one != other
    return np.asarray(differs.any(axis=-1) if differs.ndim > 1 else differs)


def named(answer: Any, names: Sequence[str], problem: Problem) -> str:
    """An answer (or a true label) in words."""
    if problem == REGRESSION:
        return f"{float(answer):.3g}"
    if problem == MULTI:
        return ", ".join(name for name, there in zip(names, answer, strict=True) if there) or "none"
    return names[int(answer)]
