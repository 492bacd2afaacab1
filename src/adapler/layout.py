"""Layouts: how sequences share a tensor. The only module that looks across tokens; knows no model and no method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from adapler.attention import eager as eager_attention
from adapler.attention import fused as fused_attention
from adapler.buckets import VECTOR, Buckets
from adapler.tokens import LOG_WEIGHT_FLOOR, Tokens

if TYPE_CHECKING:
    from adapler.backbones.base import Block


class _Layout(ABC):
    """What both layouts say in the same words, once sums over a text are given."""

    texts: int

    @abstractmethod
    def total(self, values: Tensor) -> Tensor: ...

    @abstractmethod
    def largest(self, values: Tensor) -> Tensor: ...

    @abstractmethod
    def spread(self, per_text: Tensor) -> Tensor: ...

    @abstractmethod
    def pooled(self, tokens: Tokens) -> Tokens: ...

    @abstractmethod
    def rows(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """Token values as padded rows: (B, L, ...)."""

    @abstractmethod
    def unrows(self, rows: Tensor) -> Tensor:
        """Padded rows back to the shape of token values."""

    @abstractmethod
    def mask(self, tokens: Tokens, dtype: torch.dtype) -> Tensor | None:
        """Additive attention mask over the rows' places, (B, 1, 1, L); None where it would be all zero."""

    @abstractmethod
    def per_text(self, values: Tensor) -> list[Tensor]:
        """Token values of each text."""

    def share(self, tokens: Tokens, logit: Tensor) -> Tensor:
        # One division only: a second normalisation would round, and an exact tie with the threshold would be lost.
        logit = logit.masked_fill(tokens.weight <= 0, float("-inf"))
        grown = (logit - self.spread(self.largest(logit.detach()))).exp() * tokens.weight
        return grown / self.spread(self.total(grown))

    def length(self, tokens: Tokens) -> Tensor:
        return self.total(tokens.weight)

    def rank(self, values: Tensor) -> Tensor:
        rows = self.rows(values, fill=float("-inf"))
        order = rows.argsort(dim=-1, descending=True, stable=True)
        place = torch.arange(rows.shape[-1], device=rows.device).expand_as(order)
        return self.unrows(torch.empty_like(order).scatter_(-1, order, place))

    def received(self, tokens: Tokens, probabilities: Tensor) -> Tensor:
        mean = probabilities.mean(dim=1)
        asking = self.rows(tokens.weight).to(mean.dtype)  # what is padding or gone asks nobody
        from_all = (asking.unsqueeze(1) @ mean).squeeze(1)
        return self.unrows(from_all - asking * mean.diagonal(dim1=-2, dim2=-1))

    def attend(
        self, block: Block, asking: Tokens, tokens: Tokens, *, dropout: float, eager: bool
    ) -> tuple[Tensor, Tensor | None]:
        if asking is tokens:
            query, key, value = self.rows(block.query_key_value(tokens.x, tokens.position)).unbind(-3)
        else:
            query = asking.layout.rows(block.query(asking.x, asking.position))
            key, value = (self.rows(part) for part in block.key_value(tokens.x, tokens.position))
        query, key, value = _heads_first(query), _heads_first(key), _heads_first(value)
        mask = self.mask(tokens, query.dtype)
        bias = block.bias(asking.layout.rows(asking.position), self.rows(tokens.position), query, key)
        if bias is not None:
            mask = bias if mask is None else mask + bias
        probabilities = None
        if eager:
            context, probabilities = eager_attention(query, key, value, mask, scale=block.scale, dropout=dropout)
        else:
            context = fused_attention(query, key, value, mask, scale=block.scale, dropout=dropout)
        return asking.layout.unrows(context.transpose(1, 2).flatten(2)), probabilities

    def pool(self, tokens: Tokens, how: str) -> Tensor:
        if how == "first":
            return self.pooled(tokens).layout.rows(self.pooled(tokens).x)[:, 0]
        weighted = self.rows(tokens.x * tokens.weight.unsqueeze(-1)).sum(dim=1)
        return (weighted / self.length(tokens).unsqueeze(-1).to(weighted.dtype)).to(tokens.x.dtype)


class Padded(_Layout):
    """Each text a row, filled up to the longest: (B, L). What training and the authors' code use."""

    def __init__(self, texts: int) -> None:
        self.texts = texts

    def total(self, values: Tensor) -> Tensor:
        return values.sum(dim=-1)

    def largest(self, values: Tensor) -> Tensor:
        return values.amax(dim=-1)

    def spread(self, per_text: Tensor) -> Tensor:
        return per_text.unsqueeze(-1)

    def rows(self, values: Tensor, fill: float = 0.0) -> Tensor:
        return values

    def unrows(self, rows: Tensor) -> Tensor:
        return rows

    def per_text(self, values: Tensor) -> list[Tensor]:
        return list(values)

    def mask(self, tokens: Tokens, dtype: torch.dtype) -> Tensor:
        return tokens.log_weight.to(dtype)[:, None, None, :]

    def pooled(self, tokens: Tokens) -> Tokens:
        return _cut(tokens, (slice(None), slice(0, 1)), self)

    def remove(self, tokens: Tokens, keep: Tensor) -> Tokens:
        """The row stays as wide as it was; what leaves weighs nothing and is attended by nobody."""
        gone = ~keep
        return replace(
            tokens,
            weight=tokens.weight.masked_fill(gone, 0.0),
            log_weight=tokens.log_weight.masked_fill(gone, LOG_WEIGHT_FLOOR),
        )

    def kept(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        text, place = torch.nonzero(tokens.weight > 0, as_tuple=True)
        return text, tokens.position[text, place]


class Packed(_Layout):
    """Texts end to end, no padding: (T,). Removal makes every tensor smaller; what serving uses."""

    def __init__(self, counts: Tensor) -> None:
        """`counts` (B,): tokens of each text; every text has at least one."""
        self.counts = counts
        self.texts = counts.numel()
        self.start = counts.cumsum(0) - counts
        self.width = _row_width(int(counts.max()), self.texts)
        self.even = self.width * self.texts == int(counts.sum())
        """All rows are full: they are then a view, and attention needs no mask."""
        self._text: Tensor | None = None
        self._slot: Tensor | None = None
        self._buckets: Buckets | None = None

    @property
    def text(self) -> Tensor:
        """(T,): which text each token belongs to."""
        if self._text is None:
            self._text = torch.repeat_interleave(torch.arange(self.texts, device=self.counts.device), self.counts)
        return self._text

    def total(self, values: Tensor) -> Tensor:
        return values.new_zeros(self.texts).index_add(0, self.text, values)

    def largest(self, values: Tensor) -> Tensor:
        return values.new_full((self.texts,), float("-inf")).scatter_reduce(0, self.text, values, "amax")

    def spread(self, per_text: Tensor) -> Tensor:
        return per_text[self.text]

    @property
    def slot(self) -> Tensor:
        """(T,): each token's place in the padded rows, flattened."""
        if self._slot is None:
            place = torch.arange(self.text.numel(), device=self.text.device) - self.start[self.text]
            self._slot = self.text * self.width + place
        return self._slot

    def rows(self, values: Tensor, fill: float = 0.0) -> Tensor:
        if self.even:
            return values.reshape(self.texts, self.width, *values.shape[1:])
        padded = values.new_full((self.texts * self.width, *values.shape[1:]), fill)
        return padded.index_copy_(0, self.slot, values).reshape(self.texts, self.width, *values.shape[1:])

    def unrows(self, rows: Tensor) -> Tensor:
        flat = rows.flatten(0, 1)
        return flat if self.even else flat[self.slot]

    def per_text(self, values: Tensor) -> list[Tensor]:
        return list(values.split(self.counts.tolist()))

    def mask(self, tokens: Tokens, dtype: torch.dtype) -> Tensor | None:
        # Hard removal leaves log-weights of 0, so only padding inside the rows needs masking.
        if self.even and not tokens.log_weight.requires_grad and not tokens.log_weight.any():
            return None
        return self.rows(tokens.log_weight.to(dtype), fill=LOG_WEIGHT_FLOOR)[:, None, None, :]

    def attend(
        self, block: Block, asking: Tokens, tokens: Tokens, *, dropout: float, eager: bool
    ) -> tuple[Tensor, Tensor | None]:
        if eager or self.even:
            return super().attend(block, asking, tokens, dropout=dropout, eager=eager)
        buckets = self.buckets
        mask = buckets.filled(tokens.log_weight, LOG_WEIGHT_FLOOR)
        places = tokens.position[buckets.source]
        everyone = asking is tokens
        if everyone:
            key_value = block.query_key_value(tokens.x, tokens.position).index_select(0, buckets.source)
            query, asked = key_value, places
        else:  # one token a text
            query = block.query(asking.x, asking.position)[buckets.order].unsqueeze(1)
            key_value = torch.stack(block.key_value(tokens.x, tokens.position), dim=1).index_select(0, buckets.source)
            asked = asking.position[buckets.order].unsqueeze(1)
        contexts = []
        for bucket in buckets.buckets:
            *first, key, value = map(_heads_first, bucket.rows(key_value).unbind(-3))
            ask = first[0] if everyone else _heads_first(query[bucket.texts])
            added = bucket.rows(mask).to(ask.dtype)[:, None, None, :]
            bias = block.bias(bucket.rows(asked) if everyone else asked[bucket.texts], bucket.rows(places), ask, key)
            context = fused_attention(
                ask, key, value, added if bias is None else added + bias, scale=block.scale, dropout=dropout
            )
            contexts.append(context.transpose(1, 2).flatten(2).flatten(0, 1))
        return torch.cat(contexts).index_select(0, buckets.slot if everyone else buckets.back), None

    @property
    def buckets(self) -> Buckets:
        """Where tokens stand in rows that only attention sees."""
        if self._buckets is None:
            self._buckets = Buckets(self.counts, self.start, self.text)
        return self._buckets

    def pooled(self, tokens: Tokens) -> Tokens:
        return _take(tokens, self.start, Packed(torch.ones_like(self.counts)))

    def remove(self, tokens: Tokens, keep: Tensor) -> Tokens:
        chosen = torch.nonzero(keep).squeeze(-1)  # the only host synchronisation of a layer
        if chosen.numel() == keep.numel():
            return tokens
        counts = torch.zeros_like(self.counts).index_add(0, self.text[chosen], torch.ones_like(chosen))
        return _take(tokens, chosen, Packed(counts))

    def kept(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        return self.text, tokens.position


class Alone(Packed):
    """One text and nothing beside it: the same sums without looking up whose token is whose, which would take longer than
    the sums."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.counts = torch.tensor([count], device=device)
        self.texts, self.width, self.even = 1, count, True
        self.start = torch.zeros(1, dtype=torch.int64, device=device)
        self._text = self._slot = self._buckets = None

    def total(self, values: Tensor) -> Tensor:
        return values.sum(dim=0, keepdim=True)

    def largest(self, values: Tensor) -> Tensor:
        return values.amax(dim=0, keepdim=True)

    def spread(self, per_text: Tensor) -> Tensor:
        return per_text.expand(self.width)

    def pooled(self, tokens: Tokens) -> Tokens:
        return _cut(tokens, slice(0, 1), Alone(1, tokens.position.device))

    def remove(self, tokens: Tokens, keep: Tensor) -> Tokens:
        chosen = torch.nonzero(keep).squeeze(-1)
        if chosen.numel() == keep.numel():
            return tokens
        return _take(tokens, chosen, Alone(chosen.numel(), chosen.device))


def padded(position: Tensor, real: Tensor, x: Tensor) -> Tokens:
    """Tokens in rows. `real` (B, L) is True on text, False on padding; the first token of a row must be real."""
    real = real.bool()
    weight_type = x.dtype if x.dtype == torch.float64 else torch.float32  # log-weights stay float32 under autocast
    protected = torch.zeros_like(real)
    protected[:, 0] = True
    return Tokens(
        x=x,
        position=position,
        weight=real.to(weight_type),
        log_weight=torch.zeros_like(real, dtype=weight_type).masked_fill(~real, LOG_WEIGHT_FLOOR),
        protected=protected,
        layout=Padded(real.shape[0]),
    )


def packed(position: Tensor, counts: Tensor, x: Tensor) -> Tokens:
    """Tokens end to end: `position` (T,), `counts` (B,) tokens of each text, `x` (T, H)."""
    weight_type = x.dtype if x.dtype == torch.float64 else torch.float32
    layout = Packed(counts) if counts.numel() > 1 else Alone(position.numel(), position.device)
    protected = torch.zeros_like(position, dtype=torch.bool)
    protected[layout.start] = True
    return Tokens(
        x=x,
        position=position,
        weight=torch.ones_like(position, dtype=weight_type),
        log_weight=torch.zeros_like(position, dtype=weight_type),
        protected=protected,
        layout=layout,
    )


def _row_width(longest: int, texts: int) -> int:
    """Full vectors; but a single text is better off without being copied into wider rows."""
    if texts == 1 or longest <= VECTOR // 4:
        return longest
    return -(-longest // VECTOR) * VECTOR


def _heads_first(rows: Tensor) -> Tensor:
    return rows.transpose(1, 2)


def _take(tokens: Tokens, index: Tensor, layout: Packed) -> Tokens:
    return Tokens(
        x=tokens.x[index],
        position=tokens.position[index],  # original positions survive: they must not be renumbered
        weight=tokens.weight[index],
        log_weight=tokens.log_weight[index],
        protected=tokens.protected[index],
        layout=layout,
    )


def _cut(tokens: Tokens, where: slice | tuple[slice, slice], layout: Padded | Packed) -> Tokens:
    return Tokens(
        x=tokens.x[where],
        position=tokens.position[where],
        weight=tokens.weight[where],
        log_weight=tokens.log_weight[where],
        protected=tokens.protected[where],
        layout=layout,
    )
