"""Tokens on their way through the layers: what they are, what is decided about them, what is remembered.

Three invariants hold everywhere:

- *Positions are original.* A survivor keeps its place in the text; rotary angles, windows and relative biases come from it.
- *Every sum over tokens is weighted.* 1 for kept, 0 for removed or padding, between in training.
- *The first token is protected.* So no attention row is empty and every text keeps something to classify.

Knows no model and no method.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

LOG_WEIGHT_FLOOR = -10000.0
"""What stands for "nobody attends here" in an additive mask; exp() of it is 0 in every float type."""
FROZEN_WEIGHT = 1e-6
"""Below this a fading token's weight no longer changes, which keeps products of exponentials away from underflow."""


@dataclass(frozen=True)
class Tokens:
    """The surviving tokens of a batch at one depth. Shapes: (B, L) in rows, (T,) end to end; `x` has one more axis, H."""

    x: Tensor
    position: Tensor
    """Place in the original text, counted from 0."""
    weight: Tensor
    """How much of the token is there: the factor of every sum over tokens. Protected tokens weigh 1."""
    log_weight: Tensor
    """What is added to every attention score towards this token: 0 for kept, LOG_WEIGHT_FLOOR for gone or padding."""
    protected: Tensor
    """True on the token that may never leave (the first of each text)."""
    layout: Layout

    def with_x(self, x: Tensor) -> Tokens:
        """The same tokens after a per-token computation."""
        return replace(self, x=x)

    def fade(self, log_weight: Tensor) -> Tokens:
        """Soft removal: lower each token's weight by a non-positive `log_weight`, differentiably.

        The step is scaled by what is left of the token, so what is nearly gone cannot be removed twice.
        """
        step = (log_weight * self.weight).masked_fill(self.protected, 0.0)
        faded = self.weight * step.exp()
        return replace(
            self,
            weight=faded.where(self.weight > FROZEN_WEIGHT, self.weight),
            log_weight=(self.log_weight + step).clamp(min=LOG_WEIGHT_FLOOR),
        )


class Layout(Protocol):
    """How the sequences of a batch share a tensor; the only code that looks across tokens."""

    texts: int

    def total(self, values: Tensor) -> Tensor:
        """Sum over each text, one value a text: (B,)."""

    def largest(self, values: Tensor) -> Tensor:
        """Maximum over each text, one value a text: (B,)."""

    def spread(self, per_text: Tensor) -> Tensor:
        """One value a text, (B,), broadcast to its tokens: (B, 1) or (T,)."""

    def rows(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """Token values as padded rows: (B, L, ...)."""

    def unrows(self, rows: Tensor) -> Tensor:
        """Padded rows back to the shape of token values."""

    def per_text(self, values: Tensor) -> list[Tensor]:
        """Token values of each text (in rows: with whatever stands on padding)."""

    def share(self, tokens: Tokens, logit: Tensor) -> Tensor:
        """Weighted softmax of `logit` over each text's surviving tokens; 0 where the weight is 0."""

    def length(self, tokens: Tokens) -> Tensor:
        """Weighted token count of each text: (B,). Padding counts 0."""

    def rank(self, values: Tensor) -> Tensor:
        """Place of each token among its text's, largest value first, counted from 0; of equals the earlier is first."""

    def received(self, tokens: Tokens, probabilities: Tensor) -> Tensor:
        """Attention each token gets from the others of its text, averaged over heads; `probabilities` as `attend` gives."""

    def attend(
        self, block: Any, asking: Tokens, tokens: Tokens, *, dropout: float, eager: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Context of each asking token over its own text's tokens; with `eager` also the probabilities (B, heads, Q, K)."""

    def pooled(self, tokens: Tokens) -> Tokens:
        """Only the first token of each text, as tokens that may ask."""

    def pool(self, tokens: Tokens, how: str) -> Tensor:
        """One vector a text, (B, H): its first token's, or the weighted mean."""

    def remove(self, tokens: Tokens, keep: Tensor) -> Tokens:
        """Hard removal: only `keep` goes on."""

    def kept(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """(text, original position) of every token still there, texts ascending, positions ascending within one."""


@dataclass(frozen=True)
class Decision:
    """What a reducer says about every token at one site. `keep` and `log_weight` read the same score and threshold."""

    score: Tensor
    """Non-negative, sums to 1 over each text's surviving tokens."""
    threshold: Tensor
    """The score a token needs to stay, broadcastable to `score`."""
    keep: Tensor
    log_weight: Tensor | None = None
    """In training: the soft removal, non-positive; `Tokens.fade` applies it."""
    factor: Tensor | None = None
    """In training, of a method that shrinks vectors instead: what each is multiplied by. `keep` is then not carried out."""
    logit: Tensor | None = None
    """Of a method that draws its choices: the logit of each token's staying, from which their likelihood follows."""
    amplifier: Tensor | None = None
    """In training: a leaf of value 1 on the protected token's score, there only to be differentiated by."""


@dataclass(frozen=True)
class Step:
    """One decision, carried out. Everything is per token of `layout`, the tokens the decision was made about, but for
    `weight_after` and `log_weight_after`, which belong to the tokens that went on."""

    layer: int
    site: str
    layout: Layout
    position: Tensor
    protected: Tensor
    weight: Tensor
    decision: Decision
    weight_after: Tensor
    log_weight_after: Tensor

    @property
    def in_front(self) -> int:
        """The first layer that tokens which leave by this decision do not enter."""
        return self.layer + (self.site != "layer_input")


@dataclass
class Trace:
    """What happened on the way through the layers: sole input of losses, FLOPs, rationales and pictures."""

    steps: list[Step] = field(default_factory=list)
    lengths: list[Tensor] = field(default_factory=list)
    """Per layer (B,): weighted tokens that enter its attention."""
    feed_forward_lengths: list[Tensor] = field(default_factory=list)
    """Per layer (B,): weighted tokens that enter its feed-forward part."""
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Per layer (text, original position) of the tokens that enter it; not recorded in training."""
    hidden: list[Tensor] = field(default_factory=list)
    """On request: the input of each layer, then the last layer's output."""
    attentions: list[Tensor] = field(default_factory=list)
    """On request, per layer (B, heads, Q, K) over the places the layout gives the tokens."""
    pooled: Tensor | None = None
    """(B, H): the vector of each text that the head reads."""

    def at(self, layer: int, site: str = "layer_input") -> Step:
        """The step of one layer."""
        return next(step for step in self.steps if step.layer == layer and step.site == site)

    def depths(self, counts: Tensor) -> Tensor:
        """How many layers each original token entered, texts of `counts` (B,) tokens end to end: (sum of counts,).

        Removal never undoes itself, so this one number per token tells everything about who was where.
        """
        start = counts.cumsum(0) - counts
        depth = torch.zeros(int(counts.sum()), dtype=torch.int64, device=counts.device)
        for text, position in self.kept:
            depth[start[text] + position] += 1
        return depth
