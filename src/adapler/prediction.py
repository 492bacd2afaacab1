"""Prediction: the answer for one text, with the account of how it was reached."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


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

    @property
    def kept(self) -> list[list[int]]:
        """Per layer, the positions in `tokens` that entered it."""
        places = range(len(self.depths))
        return [[place for place in places if self.depths[place] > layer] for layer in range(len(self.lengths))]

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**asdict(self), "kept": self.kept}
