"""Which epochs count: the checkpoints saliency is averaged over, and the reduced model that is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MARGIN = 0.01


def best_epochs(scores: Sequence[float], count: int = 3) -> list[int]:
    """0-based epochs of the `count` best dev scores, worst first; of equal scores the later epoch is the better one."""
    return sorted(range(len(scores)), key=lambda epoch: scores[epoch])[-count:]


@dataclass(frozen=True)
class Point:
    """An operating point measured on dev: all thresholds times `scale`."""

    scale: float
    score: float
    speedup: float


def choose_point(points: Sequence[Point], threshold: float, target_speedup: float | None) -> Point:
    """Of the points whose score exceeds `threshold`, the fastest, or the one nearest to a speedup that was asked for.

    If none does, the best-scoring point; of equals the faster one.
    """
    within = [point for point in points if point.score > threshold]
    if not within:
        return max(points, key=lambda point: (point.score, point.speedup))
    if target_speedup is None:
        return max(within, key=lambda point: point.speedup)
    return min(within, key=lambda point: abs(math.log(point.speedup / target_speedup)))


@dataclass
class Selection:
    """The authors' rule: the fastest epoch whose dev score lies within a margin of the fine-tuned best, both strictly."""

    best_finetuned: float
    margin: float = MARGIN
    best_speedup: float = 0.0

    @property
    def threshold(self) -> float:
        """The score an epoch has to exceed."""
        return self.best_finetuned - self.margin

    def offer(self, score: float, speedup: float) -> bool:
        """Whether this epoch becomes the one to keep."""
        if speedup > self.best_speedup and score > self.threshold:
            self.best_speedup = speedup
            return True
        return False
