"""TR-BERT (NAACL 2021): in front of two layers a policy network gives every token a probability to stay; at even odds it
does.

Training draws actions instead (REINFORCE); who draws them is set from outside, see `acting`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn

from adapler.backbones.base import Backbone
from adapler.methods.base import Reducer
from adapler.methods.settings import TrBertSettings
from adapler.tokens import Decision, Tokens

Actor = Callable[[Tokens, Tensor, int], Tensor]
"""Tokens, their probabilities to stay, the layer: which stay."""


class Policy(nn.Module):
    """A small MLP from a token's vector to the logit of staying."""

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.dense_in = nn.Linear(hidden_size, width)
        self.dense_out = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        logit: Tensor = self.dense_out(nn.functional.gelu(self.dense_in(x)))
        return logit.squeeze(-1)


class TrBert(Reducer):
    """One policy a site. Protected tokens stay."""

    name: ClassVar[str] = "trbert"
    scales = (0.0, 0.001, 0.01, 0.03, 0.1, 0.2, 0.35, 0.45, 0.6, 0.8, 1, 1.3, 1.7, 2.2, 3, 5, 10, 30, 100, 300, 1000)
    farthest = 10.0

    def __init__(self, settings: TrBertSettings, hidden_size: int, layers: int) -> None:
        super().__init__()
        self.settings: TrBertSettings = settings
        self.hidden_size, self.layers = hidden_size, layers
        self.sites = settings.places(layers)
        self.policies = nn.ModuleDict({str(site): Policy(hidden_size, settings.width) for site in self.sites})
        self.actor: Actor | None = None

    @classmethod
    def for_backbone(cls, backbone: Backbone, settings: TrBertSettings | None = None) -> TrBert:
        return cls(settings or TrBertSettings.model_validate({}), backbone.hidden_size, len(backbone.blocks))

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
        if site != "layer_input" or layer not in self.sites:
            return None
        layout = tokens.layout
        logit = self.policies[str(layer)](tokens.x).to(tokens.weight.dtype)
        probability = logit.sigmoid()
        present = probability * tokens.weight
        total = layout.spread(layout.total(present).clamp(min=1e-30))
        odds = torch.ones_like(layout.length(tokens)) if scale is None else scale.to(probability.dtype)
        wanted = layout.spread(odds / (1 + odds))
        if self.actor is None:
            keep = probability >= wanted
        else:
            keep = self.actor(tokens, probability.detach(), layer)
        keep = (keep | tokens.protected) & (tokens.weight > 0)
        return Decision(score=present / total, threshold=wanted / total, keep=keep, logit=logit)

    def scale_range(self) -> tuple[float, float]:
        return 1e-6, float("inf")

    @torch.no_grad()
    def rescale(self, scale: float) -> None:
        for policy in self.policies.children():
            assert isinstance(policy, Policy)
            policy.dense_out.bias.sub_(math.log(scale))  # a scale multiplies the odds that staying needs

    @contextmanager
    def acting(self, actor: Actor) -> Iterator[None]:
        """Inside, `actor` decides who stays, not the threshold."""
        self.actor = actor
        try:
            yield
        finally:
            self.actor = None

    @property
    def flops_per_token(self) -> tuple[int, ...]:
        width = self.settings.width
        each = 2 * self.hidden_size * width + 2 * width
        return tuple(each if layer in self.sites else 0 for layer in range(self.layers))
