"""How well word scores agree with the words people marked: one text and layer at a time. Knows neither models nor files.

Every measure says which way is better. A false positive rate never stands alone: whoever selects nothing has none, and no
recall either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.floating]
Marks = NDArray[np.bool_]
IOU = 0.5
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Measure:
    """What a number means."""

    words: str
    higher_is_better: bool


MEASURES: dict[str, Measure] = {
    "map": Measure("average precision of the scores, mean over texts", True),
    "auprc": Measure("area under the precision-recall curve by trapezoids, as ERASER takes it", True),
    "fpr": Measure("share of the unmarked words whose share of all words' scores is at least 1/n", False),
    "recall": Measure("share of the marked words for which the same holds", True),
    "selected": Measure("share of all words for which the same holds", False),
    "fpr_of_tokens": Measure("as fpr, with shares and n over all tokens, special ones included", False),
    "recall_of_tokens": Measure("as recall, with shares and n over all tokens, special ones included", True),
    "fpr_of_left": Measure("as fpr, with n the words that have any share: of CP those that are still there", False),
    "recall_of_left": Measure("as recall, with the same n", True),
    "fpr_at_annotated": Measure("false positive rate of as many words as are marked, those with the highest scores", False),
    "recall_at_annotated": Measure("their recall", True),
    "fpr_at_cp": Measure("false positive rate of as many words as CP selects at 1/n in that layer", False),
    "recall_at_cp": Measure("their recall", True),
    "token_f1": Measure("F1 of the top words, as many as the mean marked share makes of the text", True),
    "iou_f1": Measure("F1 of their spans, a span counts from an overlap of half with a marked one, as ERASER does", True),
    "comprehensiveness": Measure("probability lost without the top words, mean over 1, 5, 10, 20 and 50% of them", True),
    "sufficiency": Measure("probability lost with the top words alone, mean over the same", False),
}


def word_scores(token_scores: Scores, word_of: NDArray[np.int64], words: int) -> NDArray[np.float64]:
    """(layers, words) out of (layers, tokens): the sum over each word's pieces; what belongs to no word is left out."""
    own = word_of >= 0
    rows = np.asarray(token_scores, dtype=np.float64)
    return np.stack([np.bincount(word_of[own], weights=row[own], minlength=words) for row in rows])


def shares(scores: Scores) -> NDArray[np.float64]:
    """Scores over their sum; all 0 where there is nothing to share."""
    total = scores.sum(axis=-1, keepdims=True)
    return np.asarray(np.divide(scores, total, out=np.zeros(scores.shape), where=total > 0))


def above_uniform(share: Scores, n: int) -> Marks:
    """Whose share is at least 1/n; equals stay, whatever rounding says."""
    return np.asarray(share * n >= 1 - _ROUNDING)


def top(scores: Scores, k: int) -> Marks:
    """The `k` highest; of equals the earlier."""
    chosen = np.zeros(len(scores), dtype=np.bool_)
    chosen[np.argsort(-scores, kind="stable")[:k]] = True
    return chosen


def ranks(scores: Scores, layer: int, lot: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of (layers, words) scores the order at a layer as numbers without equals, higher for higher scores. Equals are told apart
    by the layers before, the nearest first, as words are that left at different depths; what is equal there too, by `lot`."""
    order = np.lexsort((lot, *scores[: layer + 1]))
    placed = np.empty(len(order))
    placed[order] = np.arange(len(order))
    return placed


def expected_top(scores: Scores, k: int) -> NDArray[np.float64]:
    """How likely each is among the `k` highest if equals are drawn by lot: no order of equals can look good by luck."""
    k = min(k, len(scores))
    if k == 0:
        return np.zeros(len(scores))
    last = np.sort(scores)[len(scores) - k]
    above, level = scores > last, scores == last
    return np.asarray(above + level * ((k - above.sum()) / level.sum()))


def rates(chosen: Scores | Marks, annotated: Marks) -> tuple[float, float]:
    """False positive rate and recall; NaN where there is nothing to be wrong or right about, which no mean counts."""
    weight = np.asarray(chosen, dtype=float)
    wrong, right = weight[~annotated], weight[annotated]
    return float(wrong.mean()) if len(wrong) else math.nan, float(right.mean()) if len(right) else math.nan


def precision_recall_areas(scores: Scores, annotated: Marks) -> tuple[float, float]:
    """Under the precision-recall curve: by steps, which is average precision, and by trapezoids, which is ERASER's AUPRC. NaN
    where all words are marked, or none: every order is right then, and ERASER leaves such texts out as well."""
    from sklearn.metrics import precision_recall_curve

    if annotated.all() or not annotated.any():
        return math.nan, math.nan
    precision, recall, _ = precision_recall_curve(annotated, scores)
    steps = -np.diff(recall)
    return float(np.sum(steps * precision[:-1])), float(np.sum(steps * (precision[:-1] + precision[1:]) / 2))


def token_f1(chosen: Scores | Marks, annotated: Marks) -> float:
    """F1 of the chosen words."""
    weight = np.asarray(chosen, dtype=float)
    right = float(weight[annotated].sum())
    return 2 * right / (weight.sum() + annotated.sum()) if right else 0.0


def spans(chosen: Marks) -> list[tuple[int, int]]:
    """Runs of chosen words, [start, end)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def iou_precision_recall(chosen: Marks, annotated: Marks, threshold: float = IOU) -> tuple[float, float]:
    """Chosen spans whose best overlap with a marked one is at least `threshold` of their union: over all chosen spans, and
    over all marked ones."""
    found, marked = spans(chosen), spans(annotated)
    hits = sum(max((_iou(span, other) for other in marked), default=0.0) >= threshold for span in found)
    return hits / max(len(found), 1), hits / max(len(marked), 1)


def budget(share: float, words: int) -> int:
    """How many words a share of a text is, at least one."""
    return max(1, math.ceil(share * words - _ROUNDING))


def agreement(
    words: Scores,
    annotated: Marks,
    *,
    order: Scores,
    share: float,
    token_share: Scores,
    word_of: NDArray[np.int64],
    k_cp: int | None,
) -> dict[str, float]:
    """All plausibility measures of one text and layer; `iou_precision` and `iou_recall` become `iou_f1` when averaged.

    `words` are the words' scores, `order` their `ranks`, `share` the mean marked share of the data, `token_share` (tokens,)
    each token's share of all tokens' scores, `k_cp` the number of words CP selects.
    """
    n = len(words)
    by_words = shares(words)
    chosen = above_uniform(by_words, n)
    fpr, recall = rates(chosen, annotated)
    fpr_left, recall_left = rates(above_uniform(by_words, max(1, int((words > 0).sum()))), annotated)
    by_tokens = word_scores(token_share[None], word_of, n)[0]
    fpr_tokens, recall_tokens = rates(above_uniform(by_tokens, len(word_of)), annotated)
    fpr_annotated, recall_annotated = rates(expected_top(words, int(annotated.sum())), annotated)
    by_steps, by_trapezoids = precision_recall_areas(words, annotated)
    k = budget(share, n)
    precise, complete = iou_precision_recall(top(order, k), annotated)
    found = {
        "map": by_steps,
        "auprc": by_trapezoids,
        "fpr": fpr,
        "recall": recall,
        "selected": float(chosen.mean()),
        "fpr_of_tokens": fpr_tokens,
        "recall_of_tokens": recall_tokens,
        "fpr_of_left": fpr_left,
        "recall_of_left": recall_left,
        "fpr_at_annotated": fpr_annotated,
        "recall_at_annotated": recall_annotated,
        "token_f1": token_f1(expected_top(words, k), annotated),
        "iou_precision": precise,
        "iou_recall": complete,
    }
    if k_cp is not None:
        found["fpr_at_cp"], found["recall_at_cp"] = rates(expected_top(words, k_cp), annotated)
    return found


def combined(means: Mapping[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    """Means over texts as they are reported: ERASER's IOU F1 is that of mean precision and mean recall."""
    done = {name: values for name, values in means.items() if not name.startswith("iou_")}
    if "iou_precision" in means:
        precision, recall = means["iou_precision"], means["iou_recall"]
        total = precision + recall
        done["iou_f1"] = np.divide(2 * precision * recall, total, out=np.zeros_like(total), where=total > 0)
    return done


def _iou(one: tuple[int, int], other: tuple[int, int]) -> float:
    shared = max(0, min(one[1], other[1]) - max(one[0], other[0]))
    return shared / (one[1] - one[0] + other[1] - other[0] - shared)
