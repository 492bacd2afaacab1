"""Attention kernels over rows of heads. Know no text, no model and no method: rows in, context out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scale: float, dropout: float) -> Tensor:
    """torch's own kernel. `query` (B, heads, Q, d), `key`/`value` (B, heads, K, d), `mask` added to the scores."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale)


def eager(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scale: float, dropout: float
) -> tuple[Tensor, Tensor]:
    """The same with the probabilities (B, heads, Q, K) beside the context: two matrix products that a FLOP counter sees."""
    scores = torch.matmul(query, key.transpose(-1, -2)) * scale
    if mask is not None:
        scores = scores + mask
    probabilities = scores.softmax(dim=-1)
    return torch.matmul(F.dropout(probabilities, dropout), value), probabilities
