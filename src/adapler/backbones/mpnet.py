"""MPNet: BERT's layer under other names, no segments, and one bias for all layers that depends on how far apart tokens are."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from adapler.backbones.base import refuse
from adapler.backbones.bert import Bert, BertBlock, HeadNames, LayerNames
from adapler.backbones.roberta import DENSE_HEAD

BUCKETS = 32
"""Distances told apart, half of them forwards. The model's code has this number, whatever its config says."""
FARTHEST = 128
"""From here on all distances are alike."""


class MPNetBlock(BertBlock):
    names: ClassVar[LayerNames] = LayerNames(
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        out="attention.attn.o",
        out_dropout="attention.dropout",
        out_norm="attention.LayerNorm",
    )
    relative: RelativeBias

    def bias(self, asking: Tensor, attended: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.relative(asking, attended)


class RelativeBias:
    """A learnt number for each head and each of a few groups of distances."""

    def __init__(self, weights: torch.nn.Embedding, longest: int) -> None:
        """`weights` (groups, heads); positions lie below `longest`."""
        self.weights = weights
        self.farthest = longest - 1
        self.groups = distance_groups(torch.arange(-self.farthest, longest))

    def __call__(self, asking: Tensor, attended: Tensor) -> Tensor:
        """(B, heads, Q, K) between positions (B, Q) and (B, K)."""
        if self.groups.device != asking.device:
            self.groups = self.groups.to(asking.device)
        # By distance first: that is one short row a head, from which the pairs take theirs.
        by_distance = self.weights.weight.t()[:, self.groups]
        distance = attended[:, None, :] - asking[:, :, None] + self.farthest
        pairs = by_distance.index_select(1, distance.flatten())
        return pairs.reshape(-1, *distance.shape).transpose(0, 1)


class MPNet(Bert):
    encoder: ClassVar[str] = "mpnet"
    block: ClassVar[type[BertBlock]] = MPNetBlock
    head: ClassVar[HeadNames] = DENSE_HEAD

    def __init__(self, model: PreTrainedModel) -> None:
        buckets = model.config.relative_attention_num_buckets
        if buckets < BUCKETS:
            raise refuse(
                model.config,
                f"relative_attention_num_buckets is {buckets}; the family uses {BUCKETS}",
                "use at least that many",
            )
        super().__init__(model)
        self.first_place = int(self.places.padding_idx) + 1
        relative = RelativeBias(self.part("encoder.relative_attention_bias"), self.max_length)
        for block in self.blocks:
            assert isinstance(block, MPNetBlock)
            block.relative = relative

    def find_segments(self) -> None:
        return None


def distance_groups(distance: Tensor) -> Tensor:
    """The group of each distance from the asking to the attended token: near ones by themselves, far ones by logarithm."""
    half, near = BUCKETS // 2, BUCKETS // 4
    size = distance.abs()
    grown = torch.log(size.float() / near) / math.log(FARTHEST / near) * (half - near)
    far = (near + grown.clamp(min=0).long()).clamp(max=half - 1)
    return torch.where(size < near, size, far) + (distance > 0) * half
