"""BERT: learnt positions added at the embedding, norms after the residuals, tanh pooler over the first token."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from adapler.backbones.base import Backbone, Block, Joined, leaf, linear_flops
from adapler.cost import LayerCost, ModelCost


class BertBlock(Block):
    def __init__(
        self, layer: torch.nn.Module, heads: int, activation: Callable[[Tensor], Tensor], attention_dropout: float
    ) -> None:
        self.q, self.k, self.v = (leaf(layer, f"attention.self.{name}") for name in ("query", "key", "value"))
        self.joined = Joined(self.q, self.k, self.v)
        self.out = leaf(layer, "attention.output.dense")
        self.out_dropout = leaf(layer, "attention.output.dropout")
        self.out_norm = leaf(layer, "attention.output.LayerNorm")
        self.wide = leaf(layer, "intermediate.dense")
        self.narrow = leaf(layer, "output.dense")
        self.narrow_dropout = leaf(layer, "output.dropout")
        self.narrow_norm = leaf(layer, "output.LayerNorm")
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
    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        self.model = model
        self.hidden_size = config.hidden_size
        self.activation = ACT2FN[config.hidden_act]
        self.words = leaf(model, "bert.embeddings.word_embeddings")
        self.segments = leaf(model, "bert.embeddings.token_type_embeddings")
        self.places = leaf(model, "bert.embeddings.position_embeddings")
        self.norm = leaf(model, "bert.embeddings.LayerNorm")
        self.dropout = leaf(model, "bert.embeddings.dropout")
        self.blocks = [
            BertBlock(layer, config.num_attention_heads, self.activation, config.attention_probs_dropout_prob)
            for layer in leaf(model, "bert.encoder.layer")
        ]
        self.pooler = leaf(model, "bert.pooler.dense")
        self.classifier_dropout = leaf(model, "dropout")
        self.classifier = leaf(model, "classifier")

    def embed(self, ids: Tensor, types: Tensor, position: Tensor) -> Tensor:
        # Summed in the order transformers sums, so that rounding is the same.
        summed: Tensor = self.words(ids)
        summed = summed.add_(self.segments(types)).add_(self.places(position))
        embedded: Tensor = self.dropout(self.norm(summed))
        return embedded

    def classify(self, pooled: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.classifier_dropout(torch.tanh(self.pooler(pooled))))
        return logits

    @property
    def cost(self) -> ModelCost:
        return ModelCost(
            layers=tuple(block.cost for block in self.blocks),
            head=linear_flops(self.pooler, self.classifier),
            pooling=self.pooling,
        )

    @property
    def max_length(self) -> int:
        return int(self.places.num_embeddings)
