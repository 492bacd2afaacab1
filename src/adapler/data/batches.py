"""Which examples train together: a pure function of seed and epoch, so that any position can be returned to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_GROUP = 20
"""Batches sorted by length together: like lengths meet, and an epoch's order stays random."""


def epoch_batches(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Every example once, in batches of like length and random order. The last batch may be smaller."""
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(lengths))
    batches: list[list[int]] = []
    for first in range(0, len(order), batch_size * _GROUP):
        group = sorted(order[first : first + batch_size * _GROUP].tolist(), key=lambda index: lengths[index])
        batches += [group[start : start + batch_size] for start in range(0, len(group), batch_size)]
    return [batches[index] for index in random.permutation(len(batches))]
