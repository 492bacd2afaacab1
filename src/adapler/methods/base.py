"""What `encode` asks of a method: a decision about every token, at the sites where the method has one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from adapler.backbones.base import Backbone
from adapler.methods.settings import MethodSettings
from adapler.tokens import Decision, Tokens

GRID = (0.0, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)


class Reducer(nn.Module, ABC):
    """A method with its weights. Owns the one statement of its rule; layouts carry the decision out."""

    name: ClassVar[str]
    settings: MethodSettings
    scales: ClassVar[tuple[float, ...]] = GRID
    """Scales of all thresholds that are worth trying; at 0 nothing leaves, at 1 as much as was learnt."""
    farthest: ClassVar[float] = 1.5
    """Up to which of them a finished model may be moved: farther it was not trained for."""
    wants_received: bool = False
    """Whether decisions after attention need the attention each token received."""
    attention_dropout: bool = True
    """Whether attention dropout stays on while this method trains."""

    @abstractmethod
    def decide(
        self, tokens: Tokens, site: str, layer: int, *, soft: float | None, scale: Tensor | None, received: Tensor | None
    ) -> Decision | None:
        """What happens to each token at `site` of `layer`; None where the method has nothing to say.

        `soft` is the lambda of soft removal, None for real removal; `scale` (B,) multiplies each text's thresholds, so that
        more leaves the larger it is. `received`: the attention each token got from the others, where the method wants it.
        """

    def going_on(self, length: Tensor, layer: int, *, scale: Tensor | None) -> Tensor:
        """How many tokens of texts of `length` (B,) go from a layer's attention into its feed-forward part."""
        return length

    def scale_range(self) -> tuple[float, float]:
        """Scales that `rescale` can make the method's own."""
        return 0.0, float("inf")

    @abstractmethod
    def rescale(self, scale: float) -> None:
        """Make the decisions at this scale those at scale 1."""

    @property
    def early(self) -> bool:
        """Whether tokens leave between attention and feed-forward, so that each feed-forward part runs on what enters the next
        layer."""
        return False

    @property
    def fed_last(self) -> int | None:
        """Of such a method that chooses after the last attention too: how many at most go through the last feed-forward."""
        return None

    @property
    @abstractmethod
    def flops_per_token(self) -> tuple[int, ...]:
        """Per layer: matrix-product FLOPs the method spends on each token it looks at."""

    @classmethod
    @abstractmethod
    def for_backbone(cls, backbone: Backbone, settings: Any = None) -> Reducer:
        """An untrained reducer of the right size; `settings` are the method's own, None for the defaults."""


class Judge(Reducer):
    """A method that judges who enters every layer, from a logit each token gets by itself: in front of it, or, `early`, before
    the feed-forward part of the layer before it.

    Its two halves, per token and across tokens, can be carried out apart; an exported graph needs no more than them.
    """

    @abstractmethod
    def logit(self, x: Tensor, layer: int) -> Tensor:
        """One number a token from its vector alone: (..., H) to (...)."""

    @abstractmethod
    def judge(self, tokens: Tokens, logit: Tensor, layer: int, *, scale: Tensor | None) -> Decision:
        """The rule, for real removal: who stays, given the logits. Reads of `tokens` all but the vectors."""
