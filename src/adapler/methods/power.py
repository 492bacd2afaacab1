"""PoWER-BERT (ICML 2020): inside layer j, after attention, only the l_j tokens that received most attention go on.

How many is the same for every text: one retention configuration, learnt. A text of n tokens keeps min(n, l_j).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from adapler.backbones.base import Backbone
from adapler.methods.base import GRID, Reducer
from adapler.methods.settings import PowerSettings
from adapler.tokens import Decision, Tokens


class Power(Reducer):
    """`retention` (layers, ranks) says how much of the token of each rank goes on: while it is learnt, as a factor of its
    vector; then, summed up, as the number of tokens that stay."""

    name: ClassVar[str] = "power"
    scales = (*GRID, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0)
    farthest = 2.0
    wants_received = True

    def __init__(self, settings: PowerSettings, layers: int) -> None:
        super().__init__()
        self.settings: PowerSettings = settings
        self.retention = nn.Parameter(torch.ones(layers, settings.ranks))

    @classmethod
    def for_backbone(cls, backbone: Backbone, settings: PowerSettings | None = None) -> Power:
        return cls(settings or PowerSettings.model_validate({"ranks": backbone.max_length}), len(backbone.blocks))

    def lengths(self) -> Tensor:
        """The retention configuration (layers,): tokens that go on from each layer's attention, never more than before."""
        return _whole(self._amounts())

    def decide(
        self,
        tokens: Tokens,
        site: str,
        layer: int,
        *,
        soft: float | None,
        scale: Tensor | None = None,
        received: Tensor | None = None,
    ) -> Decision | None:
        if site != "after_attention" or received is None:
            return None
        layout = tokens.layout
        significance = received.to(tokens.weight.dtype) * tokens.weight
        score = significance / layout.spread(layout.total(significance).clamp(min=1e-30))
        there = significance.masked_fill(tokens.weight <= 0, float("-inf"))
        if soft is not None:  # the first token is ranked like any other while the configuration is searched
            rank = layout.rank(there.detach()).clamp(max=self.settings.ranks - 1)
            return Decision(
                score=score,
                threshold=torch.zeros_like(score),
                keep=tokens.weight > 0,
                factor=self.retention[layer][rank],
            )
        rank = layout.rank(there.masked_fill(tokens.protected, float("inf")))
        wanted = layout.spread(self._wanted(layout.length(tokens), layer, scale))
        keep = (rank < wanted) | tokens.protected
        return Decision(score=score, threshold=_least_kept(tokens, score, keep), keep=keep & (tokens.weight > 0))

    def going_on(self, length: Tensor, layer: int, *, scale: Tensor | None) -> Tensor:
        return torch.minimum(length, self._wanted(length, layer, scale))

    def scale_range(self) -> tuple[float, float]:
        largest = float(self._amounts().max())
        return largest / self.settings.ranks, max(largest, 1.0)  # below, more than all would stay; above, one token everywhere

    @torch.no_grad()
    def rescale(self, scale: float) -> None:
        amounts = (self._amounts() / scale).unsqueeze(-1)
        ranks = torch.arange(self.settings.ranks, device=amounts.device)
        self.retention.copy_((amounts - ranks).clamp(0.0, 1.0))

    @property
    def early(self) -> bool:
        return True

    @property
    def fed_last(self) -> int:
        return int(self.lengths()[-1])

    @property
    def flops_per_token(self) -> tuple[int, ...]:
        return (0,) * len(self.retention)  # sums of attention that is there already: no matrix product

    def _wanted(self, length: Tensor, layer: int, scale: Tensor | None) -> Tensor:
        """How many go on from each text (B,); a `scale` divides what is retained, 0 keeps all."""
        amount = self._amounts()[layer].to(length.dtype).expand_as(length)
        return _whole(amount if scale is None else amount / scale.to(length.dtype))

    def _amounts(self) -> Tensor:
        return self.retention.detach().sum(dim=-1).cummin(dim=0).values


def _whole(amount: Tensor) -> Tensor:
    return (amount + 1e-4).floor().clamp(min=1)  # rounding may have left a sum of ones just below what it is


def _least_kept(tokens: Tokens, score: Tensor, keep: Tensor) -> Tensor:
    """The smallest score that stayed in each text by its rank."""
    chosen = torch.where(keep & ~tokens.protected & (tokens.weight > 0), -score, float("-inf"))
    least = -tokens.layout.largest(chosen)
    return tokens.layout.spread(torch.where(least.isinf(), torch.ones_like(least), least))
