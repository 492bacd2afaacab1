"""Every method of the table as a small reducer that really thins, for tests that all of them must pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from adapler.backbones.base import Backbone
from adapler.methods.adapler import AdapLeR
from adapler.methods.base import Reducer
from adapler.methods.power import Power
from adapler.methods.settings import PowerSettings
from adapler.methods.trbert import TrBert
from tests.tiny import tiny_reducer

KEPT = (26.0, 14.0, 6.0, 3.0, 2.0, 1.0)


def tiny_power(backbone: Backbone, kept: tuple[float, ...] = KEPT, ranks: int = 64) -> Power:
    """A retention configuration of so many tokens, layer by layer."""
    reducer = Power(PowerSettings(ranks=ranks), len(backbone.blocks))
    with torch.no_grad():
        for layer, count in enumerate(kept[: len(backbone.blocks)]):
            reducer.retention[layer] = (torch.arange(ranks) < count).float()
    return reducer.eval()


def tiny_trbert(backbone: Backbone, seed: int = 0) -> TrBert:
    """Policies that let about half of the tokens go at each site."""
    reducer = TrBert.for_backbone(backbone)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for policy in reducer.policies.children():
            for name, parameter in policy.named_parameters():
                parameter.normal_(std=1.0 if "weight" in name else 0.1, generator=random)
    return reducer.eval()


EARLY = "adapler, early"
"""AdapLeR whose tokens leave before the feed-forward part."""
TINY: dict[str, Callable[[Backbone], Reducer]] = {
    "adapler": lambda backbone: tiny_reducer(backbone, spread=2.0),
    EARLY: lambda backbone: tiny_reducer(backbone, spread=2.0, site="after_attention"),
    "power": tiny_power,
    "trbert": tiny_trbert,
}


def _attended(block: Any, heads: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """One text after a layer's attention, and its probabilities."""
    attention = block.attention
    q, k, v = (getattr(attention.self, part)(x).view(len(x), heads, -1).transpose(0, 1) for part in ("query", "key", "value"))
    probability = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
    return attention.output((probability @ v).transpose(0, 1).flatten(1), x), probability


def plain_early(model: Any, reducer: AdapLeR, ids: Tensor, types: Tensor) -> tuple[Tensor, list[list[int]]]:
    """AdapLeR before the feed-forward part, over transformers' own modules, one text: logits, and who enters each layer."""
    bert = model.bert
    x = bert.embeddings(input_ids=ids[None], token_type_ids=types[None])[0]
    position, entered = torch.arange(len(ids)), []
    for layer in range(len(bert.encoder.layer) + 1):
        if layer:
            x, _ = _attended(bert.encoder.layer[layer - 1], model.config.num_attention_heads, x)
        if layer < len(bert.encoder.layer):
            keep = reducer.predictors[layer](x).softmax(-1) >= reducer.eta[layer] / len(x)
            keep[0] = True
            x, position = x[keep], position[keep]
            entered.append(position.tolist())
        if layer:
            block = bert.encoder.layer[layer - 1]
            x = block.output(block.intermediate(x), x)
    return model.classifier(bert.pooler(x[None]))[0], entered


def plain_power(model: Any, reducer: Power, ids: Tensor, types: Tensor) -> tuple[Tensor, list[list[int]]]:
    """PoWER-BERT over transformers' own modules, one text: logits, and the tokens each feed-forward part runs on."""
    bert = model.bert
    x = bert.embeddings(input_ids=ids[None], token_type_ids=types[None])[0]
    position, fed = list(range(len(ids))), []
    for layer, block in enumerate(bert.encoder.layer):
        x, probability = _attended(block, model.config.num_attention_heads, x)
        mean = probability.mean(0)
        significance = mean.sum(0) - mean.diagonal()
        count = min(len(x), int(reducer.lengths()[layer]))
        best = (significance[1:].argsort(descending=True)[: count - 1] + 1).tolist()
        keep = [0, *sorted(best)]
        x, position = x[keep], [position[place] for place in keep]
        fed.append(position)
        x = block.output(block.intermediate(x), x)
    return model.classifier(bert.pooler(x[None]))[0], fed


def plain_trbert(model: Any, reducer: TrBert, ids: Tensor, types: Tensor) -> tuple[Tensor, list[list[int]]]:
    """TR-BERT over transformers' own layers, one text: logits, and the tokens that enter each layer."""
    x = model.bert.embeddings(input_ids=ids[None], token_type_ids=types[None])[0]
    position, entered = torch.arange(len(ids)), []
    for index, layer in enumerate(model.bert.encoder.layer):
        if index in reducer.sites:
            keep = reducer.policies[str(index)](x).sigmoid() >= 0.5
            keep[0] = True
            x, position = x[keep], position[keep]
        entered.append(position.tolist())
        x = layer(x[None])[0]
    return model.classifier(model.bert.pooler(x[None]))[0], entered
