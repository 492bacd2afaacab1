"""Towards a speed that was asked for: how fast a method is with real removal, and what follows from it."""

from __future__ import annotations

import math

from adapler.evaluation.outcome import run
from adapler.methods.base import Reducer
from adapler.training.setup import Prepared

EVERY, TEXTS = 8, 96
"""Updates between two looks at the speedup really reached, and how many dev texts are looked at."""
_HALVINGS = 14


def reached_speedup(prepared: Prepared, reducer: Reducer, scale: float | None = None) -> float:
    """FLOPs speedup with real removal on a sample of dev, whose labels are not looked at.

    Training batches would mislead: their lengths may be others than the user's (phrases in train, sentences in dev).
    """
    dev = prepared.dev
    sample = dev[:: max(1, len(dev) // TEXTS)][:TEXTS]
    with prepared.computing():
        return run(prepared.backbone, reducer, sample, scale=scale).speedups.flops_speedup


def steered(charge: float, target: float, speedup: float) -> float:
    """What tokens are charged, times how far, and on which side, a run is from its target: the whole of it a quarter below,
    its negative a quarter above. A negative charge pays for tokens, so an overshoot is undone; a small positive one could
    not, because past lambda 100 the label loss hardly reaches eta."""
    return charge * min(max(math.log(target / speedup) / math.log(1.25), -1.0), 1.0)


def scale_for(prepared: Prepared, reducer: Reducer, target: float) -> float:
    """The scale at which a method is as fast as was asked, by halving; an end of its range where it cannot be."""
    low, high = reducer.scale_range()
    low, high = max(low, min(scale for scale in reducer.scales if scale)), min(high, max(reducer.scales))
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if reached_speedup(prepared, reducer, middle) < target:
            low = middle
        else:
            high = middle
    return high
