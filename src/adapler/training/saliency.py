"""Gradient-times-input saliency of every token, the teacher of the contribution predictors."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from adapler.backbones.base import Backbone
from adapler.engine import encode
from adapler.tokens import Tokens


def gradient_times_input(backbone: Backbone, tokens: Tokens, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Elementwise product of each embedded token with the gradient of its text's gold logit, in the shape of `tokens.x`.

    Also returns the logits. One backward for the whole batch: texts do not touch each other.
    """
    with torch.enable_grad():
        x = tokens.x.detach().requires_grad_()
        logits, _ = encode(backbone, replace(tokens, x=x))
        gold = logits.gather(1, labels.unsqueeze(1)).sum()
        (gradient,) = torch.autograd.grad(gold, x)
    return gradient * x.detach(), logits.detach()


def saliency(backbone: Backbone, tokens: Tokens, labels: Tensor) -> Tensor:
    """L2 norm over the hidden axis of gradient times input; 0 on padding. Not normalised."""
    product, _ = gradient_times_input(backbone, tokens, labels)
    return product.norm(dim=-1) * tokens.weight
