"""DeBERTa-v2 and -v3: BERT's layer with attention between contents and distances as well as between contents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from adapler.backbones.base import Kept, leaf, linear_flops, refuse
from adapler.backbones.bert import Bert, BertBlock, HeadNames, LayerNames
from adapler.cost import LayerCost, ModelCost


@dataclass(frozen=True)
class Distances:
    """The learnt vectors of distances, which all layers share."""

    vectors: Any
    """Embedding (2 * span, H)."""
    norm: Any
    """What normalises them; None where nothing does."""
    place: Tensor
    """(2 * longest - 1,): which vector stands for a distance, from the most negative on."""

    def embedded(self) -> Tensor:
        """(2 * span, H)."""
        vectors: Tensor = self.vectors.weight
        return vectors if self.norm is None else self.norm(vectors)


class DebertaBlock(BertBlock):
    names: ClassVar[LayerNames] = LayerNames(
        query="attention.self.query_proj", key="attention.self.key_proj", value="attention.self.value_proj"
    )
    as_keys: Kept[Tensor] | None = None
    """What queries compare themselves with, (heads, 2 * span, width); None where the model does not."""
    as_queries: Kept[Tensor] | None = None
    """The same for keys."""

    def relate(self, layer: torch.nn.Module, config: Any, distances: Distances | None) -> None:
        """Bind what the layer does with distances."""
        kinds = config.pos_att_type or []
        self.scale = (self.width * (1 + ("c2p" in kinds) + ("p2c" in kinds))) ** -0.5
        if distances is None:
            return
        self.place = distances.place
        self.positions = int(distances.vectors.num_embeddings)
        self.dropout = leaf(layer, "attention.self.pos_dropout")
        shared = getattr(config, "share_att_key", False)
        if "c2p" in kinds:
            own = self.k if shared else leaf(layer, "attention.self.pos_key_proj")
            self.as_keys = self._projected(distances, own)
        if "p2c" in kinds:
            own = self.q if shared else leaf(layer, "attention.self.pos_query_proj")
            self.as_queries = self._projected(distances, own)

    def bias(self, asking: Tensor, attended: Tensor, query: Tensor, key: Tensor) -> Tensor | None:
        if self.as_keys is None and self.as_queries is None:
            return None
        if self.place.device != asking.device:
            self.place = self.place.to(asking.device)
        distance = asking[:, :, None] - attended[:, None, :] + self.place.numel() // 2
        place = self.place[distance][:, None].expand(-1, self.heads, -1, -1)
        found = []
        if self.as_keys is not None:
            found.append((query @ self._now(self.as_keys).transpose(-1, -2)).gather(-1, place))
        if self.as_queries is not None:
            found.append((self._now(self.as_queries) @ key.transpose(-1, -2)).gather(-2, place))
        return sum(found[1:], start=found[0]) * self.scale

    @property
    def cost(self) -> LayerCost:
        # Every token is compared with every distance there is; which of them it needs is picked afterwards.
        products = 0 if self.as_keys is None and self.as_queries is None else 2 * self.positions * self.heads * self.width
        cost = super().cost
        return replace(
            cost,
            query=cost.query + products * (self.as_keys is not None),
            key_value=cost.key_value + products * (self.as_queries is not None),
        )

    def _projected(self, distances: Distances, linear: Any) -> Kept[Tensor]:
        def make() -> Tensor:
            return self._split(linear(self.dropout(distances.embedded()))).transpose(0, 1)

        return Kept(make, [module for module in (distances.vectors, distances.norm, linear) if module is not None])

    def _now(self, projected: Kept[Tensor]) -> Tensor:
        return projected.make() if self.dropout.training else projected()


class Deberta(Bert):
    encoder: ClassVar[str] = "deberta"
    block: ClassVar[type[BertBlock]] = DebertaBlock
    head: ClassVar[HeadNames] = HeadNames(before="pooler.dropout", dense="pooler.dense", between="dropout", out="classifier")

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        width = getattr(config, "conv_kernel_size", 0)
        if width > 0:
            raise refuse(
                config,
                f"conv_kernel_size is {width}, a convolution over neighbouring tokens, which removing tokens would change",
                "use a model without one, such as a DeBERTa-v3",
            )
        super().__init__(model)
        narrower = getattr(config, "embedding_size", config.hidden_size) != config.hidden_size
        self.project = self.part("embeddings.embed_proj") if narrower else None
        distances = self._distances() if config.relative_attention else None
        for block, layer in zip(self.blocks, self.part(self.layers), strict=True):
            assert isinstance(block, DebertaBlock)
            block.relate(layer, config, distances)

    def find_segments(self) -> Any:
        return super().find_segments() if self.model.config.type_vocab_size > 0 else None

    def find_places(self) -> Any:
        return super().find_places() if getattr(self.model.config, "position_biased_input", True) else None

    def find_head_activation(self) -> Callable[[Tensor], Tensor]:
        activation: Callable[[Tensor], Tensor] = ACT2FN[self.model.config.pooler_hidden_act]
        return activation

    def embed(self, ids: Tensor, types: Tensor, position: Tensor) -> Tensor:
        summed: Tensor = self.words(ids)
        if self.places is not None:
            summed = summed.add_(self.places(position))
        if self.segments is not None:
            summed = summed.add_(self.segments(types))
        embedded: Tensor = self.dropout(self.norm(summed if self.project is None else self.project(summed)))
        return embedded

    @property
    def cost(self) -> ModelCost:
        return super().cost if self.project is None else replace(super().cost, embedding=linear_flops(self.project))

    @property
    def max_length(self) -> int:
        return int(self.model.config.max_position_embeddings)

    def _distances(self) -> Distances:
        config = self.model.config
        vectors = self.part("encoder.rel_embeddings")
        normed = "layer_norm" in [kind.strip() for kind in getattr(config, "norm_rel_ebd", "none").lower().split("|")]
        farthest = getattr(config, "max_relative_positions", -1)
        farthest = farthest if farthest > 0 else config.max_position_embeddings
        distance = torch.arange(1 - self.max_length, self.max_length)
        buckets = getattr(config, "position_buckets", -1)
        if buckets > 0:
            distance = by_logarithm(distance, buckets, farthest)
        span = int(vectors.num_embeddings) // 2
        return Distances(
            vectors=vectors,
            norm=self.part("encoder.LayerNorm") if normed else None,
            place=(distance + span).clamp(0, 2 * span - 1),
        )


def by_logarithm(distance: Tensor, buckets: int, farthest: int) -> Tensor:
    """Distances up to half of `buckets` as they are; farther ones grow with the logarithm, to `buckets` at `farthest`."""
    near = buckets // 2
    size = distance.abs().clamp(min=max(near - 1, 1))
    # Divided in this order and in float32, as the model was trained: where a bucket ends depends on the rounding.
    grown = torch.log(size / near) / torch.log(torch.tensor((farthest - 1) / near)) * (near - 1)
    return torch.where(size <= near, distance, (grown.ceil() + near).long() * distance.sign())
