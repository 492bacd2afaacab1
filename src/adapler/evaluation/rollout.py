"""Attention rollout: how much of each input token reaches each place, following attention through the layers."""

from __future__ import annotations

import torch
from torch import Tensor


def rollout(attentions: Tensor) -> Tensor:
    """`attentions` (layers, n, n), averaged over heads, rows sum to 1. Returns the rollout after each layer, (layers, n, n).

    Each layer's attention is mixed evenly with the identity (the residual) and multiplied onto the layers below.
    """
    mixed = attentions + torch.eye(attentions.shape[-1], dtype=attentions.dtype, device=attentions.device)
    mixed = mixed / mixed.sum(dim=-1, keepdim=True)
    rolled = [mixed[0]]
    for layer in mixed[1:]:
        rolled.append(layer @ rolled[-1])
    return torch.stack(rolled)
