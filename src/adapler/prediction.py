"""Prediction: the answer for one text, with the account of how it was reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapler.data.text import EncodedText
from adapler.data.words import Places
from adapler.problems import probabilities, thresholds_of
from adapler.runtimes.base import Answer, Runtime


@dataclass(frozen=True)
class Judged:
    """What the layers said of the tokens of one window, as the runtime gave it."""

    places: Places
    scores: tuple[NDArray[np.floating[Any]], ...]
    """Per decision, of the tokens that had come so far."""
    in_front: tuple[int, ...]
    """Of each decision, in front of which layer it was made."""


@dataclass(frozen=True)
class Prediction:
    """What a classifier says of one text."""

    label: str
    score: float
    scores: dict[str, float]
    """Probability of every label (raw values for a regression)."""
    tokens: list[str]
    depths: list[int]
    """Per token, how many layers it entered."""
    lengths: list[int]
    """Per layer, how many tokens entered it."""
    flops: int
    """Matrix-product FLOPs with every layer complete, predictors included, no padding."""
    flops_full: int
    """The same at full length, without predictors; `flops_full / flops` is this text's `flops_speedup`."""
    truncated: bool
    """Whether the text was longer than the model's limit and its end was not read."""
    escalated: bool = False
    """Whether a fast answer was too unsure and this is the careful one; `flops` counts both."""
    windows: int = 1
    """In how many pieces a text past the limit was read. Of several, `scores` are the means, tokens stand end to end, and
    lengths and FLOPs are sums."""
    thresholds: dict[str, float] | None = None
    """Of a model that gives any number of labels: from which probability on each."""
    judged: tuple[Judged, ...] = field(default=(), repr=False, compare=False)
    """Of each window, where an explanation was asked for; see `explain.py`."""
    logits: dict[str, float] = field(default_factory=dict, repr=False, compare=False)
    """What the model itself says of every label, before it is made a probability; of several windows the means."""

    @property
    def labels(self) -> list[str]:
        """Every label the text is given: `label`, or, of a model that gives any number, those that reach their threshold."""
        if self.thresholds is None:
            return [self.label]
        return [label for label, least in self.thresholds.items() if self.scores[label] >= least]

    @property
    def several(self) -> dict[str, list[str]]:
        """`labels` as JSON holds them: only of a model that gives any number; of others `label` says it."""
        return {} if self.thresholds is None else {"labels": self.labels}

    @property
    def kept(self) -> list[list[int]]:
        """Per layer, the positions in `tokens` that entered it."""
        places = range(len(self.depths))
        return [[place for place in places if self.depths[place] > layer] for layer in range(len(self.lengths))]

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        told = asdict(replace(self, judged=()))
        told = {key: value for key, value in told.items() if value is not None and key not in ("judged", "logits")}
        return told | self.several | {"kept": self.kept}

    def after(self, first: Prediction) -> Prediction:
        """This answer, given because the first was too unsure."""
        return replace(self, flops=self.flops + first.flops, escalated=True)


def predictions(
    batch: Sequence[EncodedText],
    answer: Answer,
    runtime: Runtime,
    flops_full: Callable[[int], int],
    *,
    full: bool | Sequence[bool],
) -> Iterator[Prediction]:
    """A runtime's traced answer, text by text, with the scores of tokens that know their places. With `full` nothing was
    removed of any text, or of those it is true of, and no predictor needed to be asked."""
    assert answer.depths is not None  # asked for
    judged = _judged(batch, answer) if batch[0].places is not None else [()] * len(batch)
    rows = zip(
        batch,
        answer.logits.astype(np.float64),
        probabilities(answer.logits.astype(np.float64), runtime.problem_type),
        answer.lengths.tolist(),
        np.split(answer.depths, np.cumsum([len(text.ids) for text in batch])[:-1]),
        judged,
        [full] * len(batch) if isinstance(full, bool) else full,
        strict=True,
    )
    thresholds = thresholds_of(runtime.labels, runtime.problem_type, runtime.thresholds)
    for text, raw, row, lengths, depth, said, entire in rows:
        best, whole = int(row.argmax()), flops_full(len(depth))
        yield Prediction(
            label=runtime.labels[best],
            score=float(row[best]),
            scores=dict(zip(runtime.labels, row.tolist(), strict=True)),
            tokens=text.tokens,
            depths=depth.tolist(),
            lengths=lengths,
            flops=whole if entire else runtime.cost.reduced(len(depth), lengths),
            flops_full=whole,
            truncated=text.truncated,
            thresholds=thresholds,
            judged=said,
            logits=dict(zip(runtime.labels, raw.tolist(), strict=True)),
        )


def _judged(batch: Sequence[EncodedText], answer: Answer) -> list[tuple[Judged, ...]]:
    """The scores of a batch, text by text."""
    counts = np.array([len(text.ids) for text in batch])
    assert answer.scores is not None  # asked for
    rows = []
    for score, layer in zip(answer.scores, answer.in_front, strict=True):
        came = answer.lengths[:, layer - 1] if layer else counts
        rows.append(np.split(score, np.cumsum(came)[:-1]))
    by_text = zip(*rows, strict=True) if rows else [()] * len(batch)
    return [
        (Judged(text.places, scores, answer.in_front),) if text.places is not None else ()
        for text, scores in zip(batch, by_text, strict=True)
    ]


def combined(parts: Sequence[Prediction]) -> Prediction:
    """The answer for a text out of those for its windows."""
    first = parts[0]
    if len(parts) == 1:
        return first
    scores, logits = _means([part.scores for part in parts]), _means([part.logits for part in parts])
    label = max(scores, key=lambda each: scores[each])
    return Prediction(
        label=label,
        score=scores[label],
        scores=scores,
        tokens=[token for part in parts for token in part.tokens],
        depths=[depth for part in parts for depth in part.depths],
        lengths=[sum(layer) for layer in zip(*(part.lengths for part in parts), strict=True)],
        flops=sum(part.flops for part in parts),
        flops_full=sum(part.flops_full for part in parts),
        truncated=any(part.truncated for part in parts),
        windows=len(parts),
        thresholds=first.thresholds,
        judged=tuple(window for part in parts for window in part.judged),
        logits=logits,
    )


def _means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {label: sum(row[label] for row in rows) / len(rows) for label in rows[0]}
