"""The dial: measure one model's operating points on labelled texts. Which one a wish means is in `points.py`, how points are
timed in `doctor.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adapler import checkpoint
from adapler.backbones.base import Backbone
from adapler.config import DataSettings
from adapler.cost import ModelCost
from adapler.data.keep import AlwaysKeep, keeper
from adapler.data.load import read_split
from adapler.data.text import EncodedText, TextEncoder
from adapler.doctor import SECONDS, Diagnosis, examine, spaced
from adapler.engine import model_cost
from adapler.errors import BadConfig, BadModel
from adapler.evaluation.evaluate import FULL_FOLDER
from adapler.evaluation.metrics import score
from adapler.evaluation.outcome import Outcome, run
from adapler.folder import Folder
from adapler.methods.base import Reducer
from adapler.points import Dial, Point, front, point_name
from adapler.problems import SINGLE, Label
from adapler.runtimes.torch_packed import TorchPacked

TIMED_TEXTS = 128
"""Of the labelled texts: enough to fill batches."""
_TIMING = 0.1
"""Share of the progress that timing is given."""


def measure(
    backbone: Backbone,
    reducer: Reducer,
    texts: Sequence[EncodedText],
    labels: Sequence[Label],
    metric: str,
    *,
    data: str,
    reference: tuple[str, float] | None = None,
    grid: Sequence[float] | None = None,
    escalate: Sequence[float] = (),
    advance: Callable[[float], None] = lambda share: None,
) -> tuple[Dial, list[Point]]:
    """The model's dial, which is the front of what was measured, and everything that was measured.

    `reference` names the model that losses are counted from and gives its score on these texts; without one it is this
    model with nothing removed. `grid` are the scales that are tried, by default the method's own, and in any case full length
    and the model as trained. `escalate` are probabilities below which an answer is given again at the careful point; each is
    measured with every point faster than that. The careful end is measured like any other: a model trained to remove may be
    worse without.
    """
    if escalate and backbone.problem != SINGLE:
        raise BadConfig(f"only an answer of one label can be unsure, this is a {backbone.problem} model; leave out escalate")
    outcomes: dict[float, Outcome] = {}
    scales = sorted({0.0, 1.0, *(reducer.scales if grid is None else grid)})
    for scale in scales:
        outcomes[scale] = run(backbone, reducer if scale else None, texts, scale=scale or None)
        advance(1 / len(scales))
    reached = {scale: score(metric, labels, outcome.predictions) for scale, outcome in outcomes.items()}
    name, whole = reference or ("this model at full length", reached[0.0])
    points: list[Point] = []
    for scale, outcome in outcomes.items():
        speedups = outcome.speedups
        points.append(
            Point(
                name=point_name(scale, speedups.flops_speedup, [point.name for point in points]),
                scale=scale,
                score=reached[scale],
                loss_points=100 * (whole - reached[scale]),
                flops_speedup=speedups.flops_speedup,
                flops_speedup_executed=speedups.flops_speedup_executed,
            )
        )
    cost = model_cost(backbone, reducer)
    careful = max(points, key=lambda point: (point.score, point.flops_speedup))
    for fast in [point for point in points if point.flops_speedup > careful.flops_speedup]:
        for sureness in escalate:
            second = replace(cost, predictors=()) if careful.scale == 0 else cost
            both = _escalated((cost, second), (outcomes[fast.scale], outcomes[careful.scale]), sureness)
            right = score(metric, labels, both.predictions)
            points.append(
                Point(
                    name=point_name(fast.scale, both.flops_speedup, [point.name for point in points], sureness),
                    scale=fast.scale,
                    escalate=sureness,
                    careful=careful.scale,
                    score=right,
                    loss_points=100 * (whole - right),
                    flops_speedup=both.flops_speedup,
                    flops_speedup_executed=both.flops_speedup_executed,
                )
            )
    kept = front(points)
    dial = Dial(
        data=data,
        n=len(texts),
        metric=metric,
        reference=name,
        reference_score=whole,
        points=kept,
        beaten=tuple(point for point in points if point not in kept and point.escalate is None),
    )
    return dial, points


@dataclass(frozen=True)
class Measured:
    """A model's dial, and all that was measured for it."""

    dial: Dial
    points: list[Point]
    times: Diagnosis
    """What each of the points takes on this machine."""


def measure_folder(
    folder: Folder,
    data: DataSettings,
    split: str,
    *,
    against: Path | None = None,
    escalate: Sequence[float] = (),
    always_keep: AlwaysKeep | None = None,
    seconds: float = SECONDS,
    advance: Callable[[float], None] = lambda share: None,
) -> Measured:
    """The dial of a model folder on a split of labelled data; losses count from `against`, or the model a run made it from.

    Every point is scored on all of the split, and timed on some of it for about `seconds` in all. With `always_keep` the
    points are those of a model that never drops what it names, and `data` says so.
    """
    opened = checkpoint.load(folder)
    if opened.reducer is None:
        raise BadModel(f"{folder.path} holds no reduction, so it has no operating points; make one with adapler train")
    examples, metric = read_split(data, split, opened.backbone.labels, opened.backbone.problem)
    keep = keeper(always_keep)
    encoder = TextEncoder(opened.tokenizer, opened.max_length, keep=keep)
    texts = encoder(examples.texts)
    if against is None and (folder.path / FULL_FOLDER).is_dir():
        against = folder.path / FULL_FOLDER
    reference = None
    if against is not None:
        original = checkpoint.load(against)
        full = run(original.backbone, None, TextEncoder(original.tokenizer, opened.max_length)(examples.texts))
        reference = ("the full-length model it was made from", score(metric, examples.labels, full.predictions))
    dial, points = measure(
        opened.backbone,
        opened.reducer,
        texts,
        examples.labels,
        metric,
        data=f"{data.source}, {split}" + ("" if keep is None else ", with words always kept"),
        reference=reference,
        escalate=escalate,
        advance=lambda share: advance((1 - _TIMING) * share),
    )
    runtime = TorchPacked(opened.backbone, opened.reducer)
    times = examine(runtime, points, vocabulary=encoder.vocabulary, texts=spaced(texts, TIMED_TEXTS), seconds=seconds)
    advance(_TIMING)
    return Measured(dial, points, times)


@dataclass(frozen=True)
class _Both:
    """Two passes over the same texts, the second over those that the first was unsure of."""

    predictions: NDArray[np.int64]
    flops_speedup: float
    flops_speedup_executed: float


def _escalated(costs: tuple[ModelCost, ModelCost], outcomes: tuple[Outcome, Outcome], sureness: float) -> _Both:
    """The fast pass and the careful one, each with what it costs."""
    fast, careful = outcomes
    grown = np.exp(fast.logits - fast.logits.max(axis=-1, keepdims=True))
    unsure = grown.max(axis=-1) / grown.sum(axis=-1) < sureness

    def speedup(executed: bool) -> float:
        full = sum(costs[0].full(n, executed=executed) for n in fast.counts)
        spent = sum(costs[0].reduced(n, kept, executed=executed) for n, kept in zip(fast.counts, fast.lengths, strict=True))
        again = [(careful.counts[index], careful.lengths[index]) for index in np.flatnonzero(unsure)]
        return full / (spent + sum(costs[1].reduced(n, kept, executed=executed) for n, kept in again))

    predictions = np.where(unsure, careful.predictions, fast.predictions)
    return _Both(predictions, speedup(False), speedup(True))
