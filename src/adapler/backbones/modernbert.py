"""ModernBERT: norms before the parts of a layer, rotated queries and keys, a gated feed-forward part; most layers look only
at tokens near by, as counted in the original text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from adapler.backbones.base import Backbone, Block, Part, leaf, linear_flops, refuse
from adapler.cost import LayerCost, ModelCost
from adapler.tokens import LOG_WEIGHT_FLOOR

GLOBAL, LOCAL = "full_attention", "sliding_attention"
POOLINGS = {"cls": "first", "mean": "mean"}


class ModernBertBlock(Block):
    def __init__(self, layer: torch.nn.Module, config: Any, kind: str, rotary: Rotary, last_norm: Any) -> None:
        self.norm = leaf(layer, "attn_norm")
        self.joint = leaf(layer, "attn.Wqkv")
        self.out = leaf(layer, "attn.Wo")
        self.out_dropout = leaf(layer, "attn.out_drop")
        self.feed_norm = leaf(layer, "mlp_norm")
        self.wide = leaf(layer, "mlp.Wi")
        self.wide_dropout = leaf(layer, "mlp.drop")
        self.narrow = leaf(layer, "mlp.Wo")
        self.activation = ACT2FN[config.hidden_activation]
        self.rotary = rotary
        self.last_norm = last_norm
        """What follows the last layer; None in the others."""
        self.reach = config.local_attention // 2 if kind == LOCAL else None
        """How far a token sees to either side; None for everything."""
        self.heads = config.num_attention_heads
        self.width = self.joint.out_features // 3 // self.heads
        self.scale = self.width**-0.5
        self.attention_dropout = config.attention_dropout
        side = self.heads * self.width
        self.q, self.kv = Part(self.joint, 0, side), Part(self.joint, side, 3 * side)

    def query(self, x: Tensor, position: Tensor) -> Tensor:
        return self.rotary(self._split(self.q(self.norm(x)), 1), position)[..., 0, :, :]

    def key_value(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        key, value = self._split(self.kv(self.norm(x)), 2).split(1, dim=-3)
        return self.rotary(key, position)[..., 0, :, :], value[..., 0, :, :]

    def query_key_value(self, x: Tensor, position: Tensor) -> Tensor:
        rotated, value = self._split(self.joint(self.norm(x)), 3).split([2, 1], dim=-3)
        return torch.cat((self.rotary(rotated, position), value), dim=-3)

    def merge(self, x: Tensor, context: Tensor) -> Tensor:
        merged: Tensor = x + self.out_dropout(self.out(context))
        return merged

    def feed_forward(self, x: Tensor) -> Tensor:
        inner, gate = self.wide(self.feed_norm(x)).chunk(2, dim=-1)
        fed: Tensor = x + self.narrow(self.wide_dropout(self.activation(inner) * gate))
        return fed if self.last_norm is None else self.last_norm(fed)

    def bias(self, asking: Tensor, attended: Tensor, query: Tensor, key: Tensor) -> Tensor | None:
        if self.reach is None:
            return None
        # A token is always within its own reach, so no row is empty however many of its neighbours have left.
        far = (asking[:, None, :, None] - attended[:, None, None, :]).abs() > self.reach
        return torch.zeros_like(far, dtype=query.dtype).masked_fill_(far, LOG_WEIGHT_FLOOR)

    @property
    def cost(self) -> LayerCost:
        third = linear_flops(self.joint) // 3
        # All pairs are computed, and those beyond its reach are masked, as in transformers.
        return LayerCost(
            query=third,
            key_value=2 * third,
            merge=linear_flops(self.out),
            feed_forward=linear_flops(self.wide, self.narrow),
            pair=4 * self.heads * self.width,
        )

    def _split(self, x: Tensor, parts: int) -> Tensor:
        return x.reshape(*x.shape[:-1], parts, self.heads, self.width)


class Rotary:
    """Turns pairs of a vector's entries by angles that grow with the token's position in the text."""

    def __init__(self, base: float, width: int) -> None:
        self.frequency = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
        """(width / 2,): radians from one position to the next."""

    def __call__(self, x: Tensor, position: Tensor) -> Tensor:
        """Vectors (..., any, heads, width) of tokens at `position` (...)."""
        if self.frequency.device != x.device:
            self.frequency = self.frequency.to(x.device)
        angle = (position[..., None].float() * self.frequency)[..., None, None, :]
        cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        one, two = x.chunk(2, dim=-1)
        return torch.cat((one * cosine - two * sine, two * cosine + one * sine), dim=-1)


class ModernBert(Backbone):
    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        self.model = model
        self.hidden_size = config.hidden_size
        self.pooling = POOLINGS[config.classifier_pooling]
        self.activation = ACT2FN[config.hidden_activation]
        self.words = leaf(model, "model.embeddings.tok_embeddings")
        self.norm = leaf(model, "model.embeddings.norm")
        self.dropout = leaf(model, "model.embeddings.drop")
        width = config.hidden_size // config.num_attention_heads
        rotary = {kind: Rotary(rotary_base(config, kind), width) for kind in sorted(set(config.layer_types))}
        layers = leaf(model, "model.layers")
        last_norm = leaf(model, "model.final_norm")
        self.blocks = [
            ModernBertBlock(layer, config, kind, rotary[kind], last_norm if number == len(layers) - 1 else None)
            for number, (layer, kind) in enumerate(zip(layers, config.layer_types, strict=True))
        ]
        self.dense = leaf(model, "head.dense")
        self.head_activation: Callable[[Tensor], Tensor] = ACT2FN[config.classifier_activation]
        self.head_norm = leaf(model, "head.norm")
        self.between = leaf(model, "drop")
        self.out = leaf(model, "classifier")

    def embed(self, ids: Tensor, types: Tensor, position: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.norm(self.words(ids)))
        return embedded

    def classify(self, pooled: Tensor) -> Tensor:
        logits: Tensor = self.out(self.between(self.head_norm(self.head_activation(self.dense(pooled)))))
        return logits

    @property
    def cost(self) -> ModelCost:
        return ModelCost(
            layers=tuple(block.cost for block in self.blocks), head=linear_flops(self.dense, self.out), pooling=self.pooling
        )

    @property
    def max_length(self) -> int:
        return int(self.model.config.max_position_embeddings)


def rotary_base(config: Any, kind: str) -> float:
    """What the angles of a layer's kind are powers of; a kind of layer or of angles that is not known is refused."""
    if kind not in (GLOBAL, LOCAL):
        raise refuse(config, f"layer_types names {kind!r}", f"expected {GLOBAL} or {LOCAL}")
    settings = config.rope_parameters[kind]
    if settings["rope_type"] != "default":
        raise refuse(config, f"rope_type is {settings['rope_type']!r}", "use a model whose rope_type is 'default'")
    return float(settings["rope_theta"])
