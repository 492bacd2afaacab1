"""DistilBERT: BERT's layer under other names and without one dropout, no segments, a head that uses ReLU."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from adapler.backbones.bert import Bert, BertBlock, HeadNames, LayerNames


class DistilBertBlock(BertBlock):
    names: ClassVar[LayerNames] = LayerNames(
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        out="attention.out_lin",
        out_dropout="",
        out_norm="sa_layer_norm",
        wide="ffn.lin1",
        narrow="ffn.lin2",
        narrow_dropout="ffn.dropout",
        narrow_norm="output_layer_norm",
    )


class DistilBert(Bert):
    encoder: ClassVar[str] = "distilbert"
    layers: ClassVar[str] = "transformer.layer"
    block: ClassVar[type[BertBlock]] = DistilBertBlock
    head: ClassVar[HeadNames] = HeadNames(before="", dense="pre_classifier", between="dropout", out="classifier")
    activation_setting: ClassVar[str] = "activation"
    attention_dropout_setting: ClassVar[str] = "attention_dropout"

    def find_segments(self) -> None:
        return None

    def find_head_activation(self) -> Callable[[Tensor], Tensor]:
        return torch.relu
