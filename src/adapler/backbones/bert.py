"""BERT: learnt positions added at the embedding, norms after the residuals, tanh pooler over the first token.

Most families are this one with other names for its parts, so `Bert` and `BertBlock` read those names from tables that their
children replace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from adapler.backbones.base import Backbone, Block, Joined, leaf, linear_flops, refuse
from adapler.cost import LayerCost, ModelCost


@dataclass(frozen=True)
class LayerNames:
    """Where a layer keeps its modules; empty for a dropout that a family has not."""

    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    out: str = "attention.output.dense"
    out_dropout: str = "attention.output.dropout"
    out_norm: str = "attention.output.LayerNorm"
    wide: str = "intermediate.dense"
    narrow: str = "output.dense"
    narrow_dropout: str = "output.dropout"
    narrow_norm: str = "output.LayerNorm"


@dataclass(frozen=True)
class HeadNames:
    """Where a classifier keeps the modules after the last layer: dropout, dense, activation, dropout, out."""

    before: str
    dense: str
    between: str
    out: str


class BertBlock(Block):
    names: ClassVar[LayerNames] = LayerNames()

    def __init__(
        self, layer: torch.nn.Module, heads: int, activation: Callable[[Tensor], Tensor], attention_dropout: float
    ) -> None:
        names = self.names
        self.q, self.k, self.v = (leaf(layer, path) for path in (names.query, names.key, names.value))
        self.joined = Joined(self.q, self.k, self.v)
        self.out = leaf(layer, names.out)
        self.out_dropout = leaf_or_nothing(layer, names.out_dropout)
        self.out_norm = leaf(layer, names.out_norm)
        self.wide = leaf(layer, names.wide)
        self.narrow = leaf(layer, names.narrow)
        self.narrow_dropout = leaf_or_nothing(layer, names.narrow_dropout)
        self.narrow_norm = leaf(layer, names.narrow_norm)
        self.activation = activation
        self.heads = heads
        self.width = self.q.out_features // heads
        self.scale = self.width**-0.5
        self.attention_dropout = attention_dropout

    def query(self, x: Tensor, position: Tensor) -> Tensor:
        return self._split(self.q(x))

    def key_value(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        return self._split(self.k(x)), self._split(self.v(x))

    def query_key_value(self, x: Tensor, position: Tensor) -> Tensor:
        return self.joined(x).reshape(*x.shape[:-1], 3, self.heads, self.width)

    def merge(self, x: Tensor, context: Tensor) -> Tensor:
        merged: Tensor = self.out_norm(x + self.out_dropout(self.out(context)))
        return merged

    def feed_forward(self, x: Tensor) -> Tensor:
        fed: Tensor = self.narrow_norm(x + self.narrow_dropout(self.narrow(self.activation(self.wide(x)))))
        return fed

    @property
    def cost(self) -> LayerCost:
        return LayerCost(
            query=linear_flops(self.q),
            key_value=linear_flops(self.k, self.v),
            merge=linear_flops(self.out),
            feed_forward=linear_flops(self.wide, self.narrow),
            pair=4 * self.heads * self.width,
        )

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.heads, self.width)


class Bert(Backbone):
    encoder: ClassVar[str] = "bert"
    layers: ClassVar[str] = "encoder.layer"
    block: ClassVar[type[BertBlock]] = BertBlock
    head: ClassVar[HeadNames] = HeadNames(before="", dense="bert.pooler.dense", between="dropout", out="classifier")
    activation_setting: ClassVar[str] = "hidden_act"
    attention_dropout_setting: ClassVar[str] = "attention_probs_dropout_prob"

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        if getattr(config, "is_decoder", False):
            raise refuse(config, "is_decoder is true, so tokens do not see what follows them", "set is_decoder to false")
        if getattr(config, "position_embedding_type", "absolute") != "absolute":
            kind = config.position_embedding_type
            raise refuse(config, f"position_embedding_type is {kind!r}", "use a model with absolute positions")
        self.model = model
        self.hidden_size = config.hidden_size
        self.activation = ACT2FN[getattr(config, self.activation_setting)]
        self.words = self.part("embeddings.word_embeddings")
        self.segments = self.find_segments()
        self.places = self.find_places()
        self.first_place = 0
        """Which of the learnt positions a text's first token has."""
        self.norm = self.part("embeddings.LayerNorm")
        self.dropout = self.part("embeddings.dropout")
        self.blocks = [self.make_block(layer) for layer in self.part(self.layers)]
        self.before = leaf_or_nothing(model, self.head.before)
        self.dense = leaf(model, self.head.dense)
        self.head_activation = self.find_head_activation()
        self.between = leaf_or_nothing(model, self.head.between)
        self.out = leaf(model, self.head.out)

    def part(self, path: str) -> Any:
        """A module of the encoder."""
        return leaf(self.model, f"{self.encoder}.{path}")

    def find_segments(self) -> Any:
        """The embedding of segment numbers; None where a family has none."""
        return self.part("embeddings.token_type_embeddings")

    def find_places(self) -> Any:
        """The embedding of positions."""
        return self.part("embeddings.position_embeddings")

    def find_head_activation(self) -> Callable[[Tensor], Tensor]:
        """What the classifier applies to its dense layer."""
        return torch.tanh

    def make_block(self, layer: torch.nn.Module) -> BertBlock:
        """The view of one layer."""
        config = self.model.config
        return self.block(layer, config.num_attention_heads, self.activation, getattr(config, self.attention_dropout_setting))

    def embed(self, ids: Tensor, types: Tensor, position: Tensor) -> Tensor:
        # Summed in the order transformers sums, so that rounding is the same.
        summed: Tensor = self.words(ids)
        if self.segments is not None:
            # A model with one segment does not tell the texts of a pair apart, whatever its tokenizer does.
            summed = summed.add_(self.segments(types) if self.segments.num_embeddings > 1 else self.segments.weight[0])
        summed = summed.add_(self.places(position + self.first_place if self.first_place else position))
        embedded: Tensor = self.dropout(self.norm(summed))
        return embedded

    def classify(self, pooled: Tensor) -> Tensor:
        logits: Tensor = self.out(self.between(self.head_activation(self.dense(self.before(pooled)))))
        return logits

    @property
    def cost(self) -> ModelCost:
        return ModelCost(
            layers=tuple(block.cost for block in self.blocks), head=linear_flops(self.dense, self.out), pooling=self.pooling
        )

    @property
    def max_length(self) -> int:
        return int(self.places.num_embeddings) - self.first_place


def leaf_or_nothing(root: torch.nn.Module, path: str) -> Any:
    """The module at a dotted path; one that does nothing where a family has none there."""
    return leaf(root, path) if path else torch.nn.Identity()
