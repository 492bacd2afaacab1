"""ELECTRA: BERT whose embeddings may be narrower than its layers, with a head that uses GELU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from torch import Tensor
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from adapler.backbones.base import linear_flops
from adapler.backbones.bert import Bert, HeadNames
from adapler.backbones.roberta import DENSE_HEAD
from adapler.cost import ModelCost


class Electra(Bert):
    encoder: ClassVar[str] = "electra"
    head: ClassVar[HeadNames] = DENSE_HEAD

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        narrower = model.config.embedding_size != model.config.hidden_size
        self.project = self.part("embeddings_project") if narrower else None

    def find_head_activation(self) -> Callable[[Tensor], Tensor]:
        gelu: Callable[[Tensor], Tensor] = ACT2FN["gelu"]  # whatever the layers use
        return gelu

    def embed(self, ids: Tensor, types: Tensor, position: Tensor) -> Tensor:
        embedded = super().embed(ids, types, position)
        return embedded if self.project is None else self.project(embedded)

    @property
    def cost(self) -> ModelCost:
        return super().cost if self.project is None else replace(super().cost, embedding=linear_flops(self.project))
