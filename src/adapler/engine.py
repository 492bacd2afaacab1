"""The one loop. Training fades tokens, serving removes them; both are this function, in rows or packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from adapler.backbones.base import Backbone
from adapler.cost import ModelCost
from adapler.data.text import EncodedText, protected
from adapler.layout import packed
from adapler.methods.base import Reducer
from adapler.tokens import Step, Tokens, Trace


@dataclass(frozen=True)
class Want:
    """What the caller wants to see besides the logits. Either wish makes the last layer run on every token."""

    attentions: bool = False
    hidden: bool = False


def encode(
    backbone: Backbone,
    tokens: Tokens,
    reducer: Reducer | None = None,
    *,
    soft: float | None = None,
    scale: Tensor | None = None,
    want: Want = Want(),  # noqa: B008 (frozen)
) -> tuple[Tensor, Trace]:
    """Run every layer, letting the reducer thin the tokens; returns logits (B, labels) and what happened on the way.

    `soft` is the lambda of soft removal (training); None removes for real. `scale` (B,) multiplies each text's thresholds.
    """
    trace = Trace()
    received_wanted = reducer is not None and reducer.wants_received
    dropping = backbone.model.training and (reducer is None or reducer.attention_dropout)
    for index, block in enumerate(backbone.blocks):
        tokens = thin(tokens, reducer, "layer_input", index, trace, soft=soft, scale=scale)
        trace.lengths.append(tokens.layout.length(tokens))
        if soft is None:
            trace.kept.append(tokens.layout.kept(tokens))
        if want.hidden:
            trace.hidden.append(tokens.x)
        # After the last attention only the pooled token is read, so it alone asks, unless someone wants to see the others or
        # learns from how they are ranked.
        last = index == len(backbone.blocks) - 1
        seen = want.attentions or want.hidden or (received_wanted and soft is not None)
        alone = last and backbone.pooling == "first" and not seen
        eager = want.attentions or (received_wanted and not alone)
        asking = tokens.layout.pooled(tokens) if alone else tokens
        context, attention = tokens.layout.attend(
            block, asking, tokens, dropout=block.attention_dropout if dropping else 0.0, eager=eager
        )
        if want.attentions and attention is not None:
            trace.attentions.append(attention)
        asking = asking.with_x(block.merge(asking.x, context))
        if alone:
            fed = trace.lengths[-1] if reducer is None else reducer.going_on(trace.lengths[-1], index, scale=scale)
        else:
            received = None if attention is None or not received_wanted else asking.layout.received(asking, attention)
            asking = thin(asking, reducer, "after_attention", index, trace, soft=soft, scale=scale, received=received)
            fed = asking.layout.length(asking)
        trace.feed_forward_lengths.append(fed)
        tokens = asking.with_x(block.feed_forward(asking.x))
    if want.hidden:
        trace.hidden.append(tokens.x)
    trace.pooled = tokens.layout.pool(tokens, backbone.pooling)
    return backbone.classify(trace.pooled), trace


def thin(
    tokens: Tokens,
    reducer: Reducer | None,
    site: str,
    layer: int,
    trace: Trace,
    *,
    soft: float | None,
    scale: Tensor | None,
    received: Tensor | None = None,
) -> Tokens:
    """Ask the reducer, carry its decision out, remember both."""
    if reducer is None:
        return tokens
    decision = reducer.decide(tokens, site, layer, soft=soft, scale=scale, received=received)
    if decision is None:
        return tokens
    if decision.factor is not None:
        after = tokens.with_x(tokens.x * decision.factor.unsqueeze(-1).to(tokens.x.dtype))
    elif decision.log_weight is not None:
        after = tokens.fade(decision.log_weight)
    else:
        after = tokens.layout.remove(tokens, decision.keep)
    trace.steps.append(
        Step(
            layer=layer,
            site=site,
            layout=tokens.layout,
            position=tokens.position,
            protected=tokens.protected,
            weight=tokens.weight,
            decision=decision,
            weight_after=after.weight,
            log_weight_after=after.log_weight,
        )
    )
    return after


def pack(backbone: Backbone, batch: Sequence[EncodedText], device: torch.device) -> tuple[Tokens, Tensor]:
    """Embedded tokens of a batch end to end, and how many each text has."""
    counts = torch.tensor([len(text.ids) for text in batch], device=device)
    ids = torch.from_numpy(np.concatenate([text.ids for text in batch])).to(device)
    types = torch.from_numpy(np.concatenate([text.types for text in batch])).to(device)
    places = [np.arange(len(text.ids)) if text.position is None else text.position for text in batch]
    position = torch.from_numpy(np.concatenate(places)).to(device)
    tokens = packed(position, counts, backbone.embed(ids, types, position))
    keep = protected(batch)
    if keep is not None:
        tokens = replace(tokens, protected=tokens.protected | torch.from_numpy(keep).to(device))
    return tokens, counts


def model_cost(backbone: Backbone, reducer: Reducer | None) -> ModelCost:
    """FLOPs of a backbone with the reducer's own work added."""
    if reducer is None:
        return replace(backbone.cost, predictors=())
    return replace(backbone.cost, predictors=reducer.flops_per_token, early=reducer.early, fed_last=reducer.fed_last)
