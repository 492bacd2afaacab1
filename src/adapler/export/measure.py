"""Is an exported model worth having? Its score and speed beside the float torch model's, on labelled texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from adapler.data.text import EncodedText
from adapler.errors import GateMissed
from adapler.evaluation.metrics import score
from adapler.points import within
from adapler.problems import Label, answers, changed, problem_of
from adapler.runtimes.base import Runtime, all_logits
from adapler.timing import Timing, race


@dataclass(frozen=True)
class Comparison:
    """An exported model against the model it was made from, same texts and threads, each in batches of its own size."""

    n: int
    metric: str
    score: float
    score_torch: float
    answers_changed: int
    texts_per_second: float
    texts_per_second_torch: float
    spread: float
    """Of the exported model's repeats: slowest minus fastest, relative to the median."""
    spread_torch: float
    repeats: int
    threads: int

    @property
    def loss_points(self) -> float:
        """Points of score lost; negative where it gained."""
        return 100 * (self.score_torch - self.score)

    @property
    def speedup(self) -> float:
        """Of the wall clock."""
        return self.texts_per_second / self.texts_per_second_torch

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**asdict(self), "loss_points": self.loss_points, "wall_speedup": self.speedup}

    def __str__(self) -> str:
        return (
            f"{self.metric} {100 * self.score:.2f} against {100 * self.score_torch:.2f} with torch "
            f"({self.answers_changed} of {self.n} answers changed); {self.texts_per_second:.0f} against "
            f"{self.texts_per_second_torch:.0f} texts/s, {self.speedup:.2f}x (median of {self.repeats}, "
            f"spread {100 * self.spread:.0f}% and {100 * self.spread_torch:.0f}%, threads {self.threads})"
        )


def compare(
    exported: Runtime, original: Runtime, texts: Sequence[EncodedText], labels: Sequence[Label], metric: str
) -> Comparison:
    """Score and time both. `exported` must have been opened with as many threads as torch uses."""
    ours, theirs = (
        answers(all_logits(runtime, texts), problem_of(runtime.problem_type, len(runtime.labels)), runtime.thresholds)
        for runtime in (exported, original)
    )
    timings: dict[str, Timing] = race(
        {
            "exported": lambda: all_logits(exported, texts),
            "torch": lambda: all_logits(original, texts),
        }
    )
    mine, its = timings["exported"], timings["torch"]
    return Comparison(
        n=len(texts),
        metric=metric,
        score=score(metric, labels, ours),
        score_torch=score(metric, labels, theirs),
        answers_changed=int(changed(ours, theirs).sum()),
        texts_per_second=mine.rate(len(texts)),
        texts_per_second_torch=its.rate(len(texts)),
        spread=mine.spread,
        spread_torch=its.spread,
        repeats=len(mine.seconds),
        threads=torch.get_num_threads(),
    )


def require(comparison: Comparison, max_loss: float) -> None:
    """Refuse a model that is slower than torch or has lost more than `max_loss` points; the message holds the numbers."""
    if not within(comparison.loss_points, max_loss):
        raise GateMissed(
            f"the exported model loses {comparison.loss_points:.2f} points, allowed are {max_loss:g}: {comparison}"
        )
    if comparison.speedup < 1:
        raise GateMissed(f"the exported model is slower than torch: {comparison}")
