"""AdapLeR: contribution predictors score every token in front of each layer; a token stays if its share reaches eta / n.

In the paper a token that a layer does not want has gone through all of the layer in front of it. With the site
`after_attention` it leaves as soon as that layer has attended, and its feed-forward part, two thirds of the cost, is spared.

This file states the rule once. `Decision.keep` (serving) and `Decision.log_weight` (training) are two readings of the same
score and threshold; losses are in `adapler_losses.py` and read the `Trace`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from adapler.backbones.base import Backbone
from adapler.methods.base import GRID, Judge
from adapler.methods.settings import SCALED_ETA, AdapLeRSettings
from adapler.tokens import LOG_WEIGHT_FLOOR, Decision, Tokens


class ContributionPredictor(nn.Module):
    """A small MLP from a token's vector to one logit; the softmax over a text is the layout's."""

    def __init__(self, hidden_size: int, width: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.dense_in = nn.Linear(hidden_size, width)
        self.dense_out = nn.Linear(width, 1)
        self.activation = activation
        for dense in (self.dense_in, self.dense_out):
            # Almost uniform scores at first, so nothing is removed before something is learnt.
            nn.init.trunc_normal_(dense.weight, std=0.02, a=-0.04, b=0.04)
            nn.init.zeros_(dense.bias)

    def forward(self, x: Tensor) -> Tensor:
        logit: Tensor = self.dense_out(self.activation(self.dense_in(x)))
        return logit.squeeze(-1)


class AdapLeR(Judge):
    """One predictor and one threshold `eta` a layer; `theta` for every layer but the first."""

    name: ClassVar[str] = "adapler"
    # Where removal is steep, a tenth more of every threshold is half as fast again.
    scales = tuple(sorted((*GRID, 0.65, 0.75, 0.85, 0.95, 1.05, 1.15)))
    attention_dropout = False  # the authors switch it off while removal is learnt
    apart = False
    """Whether predictors that learn read the network's vectors without changing them. The authors' do change them."""

    def __init__(
        self, settings: AdapLeRSettings, hidden_size: int, layers: int, activation: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.settings: AdapLeRSettings = settings
        self.hidden_size = hidden_size
        self.predictors = nn.ModuleList(ContributionPredictor(hidden_size, settings.width, activation) for _ in range(layers))
        self.eta = nn.Parameter(torch.full((layers,), settings.eta))
        self.theta = nn.Parameter(torch.full((layers - 1,), settings.theta))

    @classmethod
    def for_backbone(cls, backbone: Backbone, settings: AdapLeRSettings | None = None) -> AdapLeR:
        return cls(settings or AdapLeRSettings(), backbone.hidden_size, len(backbone.blocks), backbone.activation)

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
        ahead = self._predictor(site, layer)
        if ahead is None:
            return None
        layer = ahead
        if soft is None:
            return self.judge(tokens, self.logit(tokens.x, layer), layer, scale=scale)
        decision = self.judge(tokens, self.logit(tokens.x.detach() if self.apart else tokens.x, layer), layer, scale=scale)
        score, threshold = decision.score, decision.threshold
        amplifier = torch.ones((), dtype=score.dtype, device=score.device, requires_grad=True) if layer > 0 else None
        judged = score if amplifier is None else _amplified(tokens, score, amplifier)
        return replace(decision, log_weight=soft_removal(judged, threshold, soft, self.settings.beta), amplifier=amplifier)

    def _predictor(self, site: str, layer: int) -> int | None:
        """Which predictor speaks at a site of a layer: that of the layer whose entrance is decided."""
        if site == "layer_input":
            return layer if layer == 0 or not self.early else None
        return layer + 1 if self.early and layer + 1 < len(self.predictors) else None

    def logit(self, x: Tensor, layer: int) -> Tensor:
        logit: Tensor = self.predictors[layer](x)
        return logit

    def judge(self, tokens: Tokens, logit: Tensor, layer: int, *, scale: Tensor | None) -> Decision:
        layout = tokens.layout
        score = layout.share(tokens, logit.to(tokens.weight.dtype))
        eta = self.eta[layer] if scale is None else self.eta[layer] * scale
        threshold = layout.spread(eta / layout.length(tokens))
        return Decision(score=score, threshold=threshold, keep=(score >= threshold) | tokens.protected)

    def scale_range(self) -> tuple[float, float]:
        low, high = SCALED_ETA
        return low / float(self.eta.detach().min()), high / float(self.eta.detach().max())

    @torch.no_grad()
    def rescale(self, scale: float) -> None:
        self.eta.mul_(scale)

    @property
    def early(self) -> bool:
        return self.settings.site == "after_attention"

    @property
    def flops_per_token(self) -> tuple[int, ...]:
        width = self.settings.width
        return (2 * self.hidden_size * width + 2 * width,) * len(self.predictors)


def soft_removal(score: Tensor, threshold: Tensor, steepness: float, beta: float) -> Tensor:
    """Non-positive log-weight of each token: steep below its threshold, nearly 0 above it.

    `steepness` is the paper's lambda. Both branches meet at -beta/lambda; at lambda 1e20 this is a step that keeps ties.
    """
    leak = beta / steepness
    below = (score - threshold) / (threshold + 1e-30) * steepness - leak  # in this order a threshold of 0 gives no inf * 0
    above = (score - 1) * leak / (1 - threshold + 1e-7)
    return torch.minimum(below, above).clamp(min=LOG_WEIGHT_FLOOR, max=0.0)


def _amplified(tokens: Tokens, score: Tensor, amplifier: Tensor) -> Tensor:
    """`score` in value; in gradient, the score with the protected token's share times `amplifier` (1), renormalised."""
    grown = torch.where(tokens.protected, score * amplifier.clamp(min=0.001), score)
    shared = grown / tokens.layout.spread(tokens.layout.total(grown) + 1e-15)
    return shared + (score - shared).detach()  # the path's gradient without its rounding, which could break a tie
