"""What `encode` asks of a method: a decision about every token, at the sites where the method has one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from adapler.tokens import Decision, Tokens


class Reducer(nn.Module, ABC):
    """A method with its weights. Owns the one statement of its rule; layouts carry the decision out."""

    name: ClassVar[str]
    wants_received: bool = False
    """Whether decisions after attention need the attention each token received."""
    attention_dropout: bool = True
    """Whether attention dropout stays on while this method trains."""

    @abstractmethod
    def decide(
        self, tokens: Tokens, site: str, layer: int, *, soft: float | None, scale: Tensor | None, received: Tensor | None
    ) -> Decision | None:
        """What happens to each token at `site` of `layer`; None where the method has nothing to say.

        `soft` is the lambda of soft removal, None for real removal; `scale` (B,) multiplies each text's thresholds.
        """

    @property
    @abstractmethod
    def flops_per_token(self) -> tuple[int, ...]:
        """Per layer: matrix-product FLOPs the method spends on each token it looks at."""

    @abstractmethod
    def settings_dict(self) -> dict[str, Any]:
        """The settings as JSON holds them."""
