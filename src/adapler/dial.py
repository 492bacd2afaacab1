"""The dial: measure one model's operating points on labelled texts. Which one a wish means is in `points.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from adapler.backbones.base import Backbone
from adapler.data.text import EncodedText
from adapler.evaluation.outcome import Outcome, run, score
from adapler.methods.base import Reducer
from adapler.points import Dial, Point, front, point_name

GRID = (0.0, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)
"""Scales of all thresholds that are tried. Trained thresholds lie in [0.01, 1]; a scaled one may exceed 1."""


def measure(
    backbone: Backbone,
    reducer: Reducer,
    texts: Sequence[EncodedText],
    labels: Sequence[int],
    metric: str,
    *,
    data: str,
    reference: tuple[str, float] | None = None,
    grid: Sequence[float] = GRID,
    advance: Callable[[float], None] = lambda share: None,
) -> tuple[Dial, list[Point]]:
    """The model's dial, which is the front of what was measured, and everything that was measured.

    `reference` names the model that losses are counted from and gives its score on these texts; without one it is this
    model with nothing removed. The careful end is measured like any other: a model trained to remove may be worse without.
    """
    outcomes: dict[float, Outcome] = {}
    for scale in sorted({0.0, *grid}):
        outcomes[scale] = run(backbone, reducer if scale else None, texts, scale=scale or None)
        advance(1 / len({0.0, *grid}))
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
    dial = Dial(data=data, n=len(texts), metric=metric, reference=name, reference_score=whole, points=front(points))
    return dial, points
