"""The two optimisers of phase 3: AdamW for all weights, Adam for the thresholds, each with its own loss and clip."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from adapler.methods.adapler import AdapLeR
from adapler.methods.adapler_losses import Losses, threshold_gradients
from adapler.methods.settings import ETA_RANGE
from adapler.tokens import Trace

NOT_DECAYED = ("LayerNorm", "layer_norm", "bias")
"""Parameters whose name holds one of these get no weight decay. Nor do norms that a family names otherwise (`attn_norm`)."""
THRESHOLD_NAMES = ("eta", "theta")


def decayed(name: str) -> bool:
    """Whether weight decay applies to a parameter of this name."""
    return not any(part in name for part in (*NOT_DECAYED, "norm."))


def weight_parameters(model: nn.Module, reducer: nn.Module | None = None) -> dict[str, nn.Parameter]:
    """Every network weight by name: the model's, and the reducer's but for its thresholds."""
    named = dict(model.named_parameters())
    if reducer is not None:
        named |= {name: p for name, p in reducer.named_parameters() if name not in THRESHOLD_NAMES}
    return named


def weight_optimizer(
    parameters: dict[str, nn.Parameter],
    lr: float,
    *,
    predictor_lr: float | None = None,
    weight_decay: float = 0.01,
    eps: float = 1e-12,
) -> torch.optim.AdamW:
    """AdamW with decoupled decay on everything but norms and biases; predictors may have a rate of their own.

    Each group keeps its `peak` rate, of which schedules take a share.
    """
    groups = []
    for peak, of_predictors in ((lr, False), (lr if predictor_lr is None else predictor_lr, True)):
        for decays in (True, False):
            chosen = [
                parameter
                for name, parameter in parameters.items()
                if name.startswith("predictors.") == of_predictors and decayed(name) == decays
            ]
            if chosen:
                groups.append({"params": chosen, "weight_decay": weight_decay if decays else 0.0, "lr": peak, "peak": peak})
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999), eps=eps, fused=True)  # a third of a step is saved on a CPU


def threshold_optimizer(reducer: AdapLeR, lr: float = 5e-4, memory: float = 0.999) -> torch.optim.Adam:
    """Adam over eta and theta. eps is tiny because past lambda 1000 their gradients are 1e-5 to 1e-8.

    `memory` is Adam's second beta: gradients shrink with every growth of lambda, and one that remembers the large ones of
    epochs ago brings eta and theta to a halt.
    """
    return torch.optim.Adam([{"params": [reducer.eta, reducer.theta], "peak": lr}], lr=lr, betas=(0.9, memory), eps=1e-12)


def backward(reducer: AdapLeR, trace: Trace, losses: Losses, weights: Iterable[nn.Parameter], share: float = 1.0) -> None:
    """Add both objectives' gradients where they belong: `combined` to eta and theta, `total` to `weights`.

    `share` is this batch's part of an accumulated step. Two passes backward, which two losses need.
    """
    for parameter, gradient in zip(
        (reducer.eta, reducer.theta), threshold_gradients(reducer, trace, losses.combined), strict=True
    ):
        gradient = gradient * share
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
    (losses.total * share).backward(inputs=list(weights))


def clip_gradients(parameters: Iterable[Tensor], max_norm: float = 1.0) -> None:
    """Scale all gradients down together if their joint norm exceeds `max_norm`."""
    nn.utils.clip_grad_norm_(list(parameters), max_norm)


@torch.no_grad()
def keep_eta_in_range(reducer: AdapLeR) -> None:
    """After each step: thresholds outside [0.01, 1] come back to its border."""
    reducer.eta.clamp_(*ETA_RANGE)


@torch.no_grad()
def keep_theta_positive(reducer: AdapLeR, least: float = 0.01) -> None:
    """With large rates theta could reach 0, where it is meaningless as a factor; the authors' small ones never get there."""
    reducer.theta.clamp_(min=least)
