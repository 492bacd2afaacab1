"""AdapLeR's losses, read off a `Trace` of soft removal. None of them computes the rule again.

total    = label loss + gamma * sum over layers of (layers - l) * contribution loss of layer l   -> all weights
combined = label loss + phi * length loss                                                        -> eta and theta only
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from adapler.methods.adapler import AdapLeR
from adapler.methods.losses import label_loss
from adapler.tokens import Step, Trace

_TINY = 1e-15
_CLIP = 1e-7
_FED = 2 / 3
"""Share of a layer's cost that is its feed-forward part's, as in nearly every encoder of short texts."""


def contribution_target(step: Step, saliency: Tensor, theta: Tensor | None) -> Tensor:
    """What a layer's predictor should say: saliency of what is left of each token, the first token's amplified by `theta`.

    `saliency` has the shape of the step's tokens and may hold anything on padding.
    """
    target = _normalised(step, saliency * step.weight)
    if theta is None:
        return target
    return _normalised(step, torch.where(step.protected, target * theta, target))


def clipped_kl(target: Tensor, score: Tensor) -> Tensor:
    """Elementwise KL(target || score), both clipped to [1e-7, 1] so that absent tokens contribute exactly 0."""
    target, score = target.clamp(_CLIP, 1.0), score.clamp(_CLIP, 1.0)
    return target * (target / score).log()


def exclusive_kl(target: Tensor, score: Tensor) -> Tensor:
    """Elementwise KL(score || target): charged where the predictor sees something that the target does not."""
    return clipped_kl(score, target)


def jensen_shannon(target: Tensor, score: Tensor) -> Tensor:
    """Elementwise Jensen-Shannon divergence: the mean of both KLs to the middle."""
    middle = (target + score) / 2
    return (clipped_kl(target, middle) + clipped_kl(score, middle)) / 2


DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "inclusive": clipped_kl,
    "exclusive": exclusive_kl,
    "jensen_shannon": jensen_shannon,
}
"""How far a predictor is from its target. The paper takes the inclusive one; its appendix A compares the others."""


def contribution_loss_per_text(
    reducer: AdapLeR, step: Step, saliency: Tensor, divergence: str = "inclusive"
) -> tuple[Tensor, Tensor]:
    """KL of each text at one layer (B,), and the weight of each text (B,): what is left of its best-preserved token."""
    theta = reducer.theta[step.in_front - 1] if step.in_front > 0 else None
    kl = step.layout.total(DIVERGENCES[divergence](contribution_target(step, saliency, theta), step.decision.score))
    left = step.layout.largest(step.weight.detach().masked_fill(step.protected, 0.0))
    return kl, left


def contribution_losses(reducer: AdapLeR, trace: Trace, saliency: Tensor, divergence: str = "inclusive") -> Tensor:
    """Contribution loss of each layer, averaged over the batch: (layers,)."""
    losses = []
    for step in trace.steps:
        kl, left = contribution_loss_per_text(reducer, step, saliency, divergence)
        losses.append((kl * left).mean())
    return torch.stack(losses)


def weighted_contribution_loss(losses: Tensor) -> Tensor:
    """Early layers matter more, their mistakes cannot be undone: weights layers, layers - 1, ..., 1."""
    depth = losses.numel()
    return (losses * torch.arange(depth, 0, -1, dtype=losses.dtype, device=losses.device)).sum()


def length_loss(trace: Trace) -> Tensor:
    """Expected tokens processed, summed over layers, averaged over the batch. Where tokens leave between attention and
    feed-forward, they have cost what attention does."""
    entered, fed = torch.stack(trace.lengths), torch.stack(trace.feed_forward_lengths)
    return (entered - _FED * (entered - fed)).sum(dim=0).mean()


@dataclass(frozen=True)
class Losses:
    """The parts of one step's objective, each differentiable."""

    label: Tensor
    contribution: Tensor
    """Weighted sum over layers."""
    length: Tensor
    total: Tensor
    """What the weights follow."""
    combined: Tensor
    """What eta and theta follow."""

    def distilled(self, distance: Tensor, share: float) -> Losses:
        """The same with `share` of the label loss replaced by a distance from a teacher."""
        change = share * (distance - self.label)
        return self._with_label(change)

    def hinted(self, distance: Tensor, weight: float) -> Losses:
        """The same with the distance from a teacher's vectors beside the label loss."""
        return self._with_label(weight * distance)

    def _with_label(self, change: Tensor) -> Losses:
        return Losses(self.label + change, self.contribution, self.length, self.total + change, self.combined + change)


def objective(
    reducer: AdapLeR,
    logits: Tensor,
    trace: Trace,
    labels: Tensor,
    saliency: Tensor,
    *,
    gamma: float,
    phi: float,
    class_weights: Tensor | None = None,
    divergence: str = "inclusive",
    merged: bool = False,
) -> Losses:
    """Both objectives of phase 3 from one forward pass; `merged` lets the weights follow the length loss as well."""
    label = label_loss(logits, labels, class_weights)
    contribution = weighted_contribution_loss(contribution_losses(reducer, trace, saliency, divergence))
    length = length_loss(trace)
    total = label + gamma * contribution + (phi * length if merged else 0.0)
    return Losses(label, contribution, length, total=total, combined=label + phi * length)


def threshold_gradients(reducer: AdapLeR, trace: Trace, loss: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `loss` for eta and theta, leaving the graph for the weights' own backward.

    theta has no place in the forward pass: its gradient is that of the amplifier beside each score, divided by theta.
    """
    amplifiers = [step.decision.amplifier for step in trace.steps if step.decision.amplifier is not None]
    eta, *theta = torch.autograd.grad(loss, [reducer.eta, *amplifiers], retain_graph=True)
    stacked = torch.stack(theta) if theta else reducer.theta.new_zeros(0)
    return eta, stacked / (reducer.theta.detach() + _CLIP)


def _normalised(step: Step, values: Tensor) -> Tensor:
    return values / step.layout.spread(step.layout.total(values) + _TINY)
