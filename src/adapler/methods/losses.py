"""Losses that every method shares."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def label_loss(logits: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
    """Cross-entropy, weighted by class where asked, averaged over the batch (not over the weights)."""
    return F.cross_entropy(logits, labels, weight=class_weights, reduction="sum") / labels.numel()
