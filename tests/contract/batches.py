"""Random texts as batches in both layouts, and what makes a comparison of two runs worth making."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers.activations import ACT2FN

from adapler.backbones import view
from adapler.backbones.base import Backbone
from adapler.backbones.bert import Bert, BertBlock
from adapler.layout import packed, padded
from adapler.methods.adapler import AdapLeR
from adapler.tokens import Step, Tokens
from tests.families import has_segments, tiny_model
from tests.tiny import tiny_bert, tiny_reducer

FEWEST = 5
"""Smaller numbers are those of special tokens: some families count no position for padding."""


class UselessCaseError(Exception):
    """The case cannot tell right from wrong. Not an AssertionError, so that no planted bug is taken for caught by it."""


@dataclass(frozen=True)
class Text:
    """Token ids and segment numbers of one text, (n,) each."""

    ids: Tensor
    types: Tensor


@dataclass(frozen=True)
class Setup:
    """A model, a reducer and the texts they run on."""

    backbone: Backbone
    reducer: AdapLeR
    texts: list[Text]

    @property
    def counts(self) -> Tensor:
        return torch.tensor([text.ids.numel() for text in self.texts])


class RelativeBlock(BertBlock):
    """BERT's layer with a bias that falls with the distance between original positions, as MPNet's or ALiBi's does."""

    def bias(self, asking: Tensor, attended: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = (asking[:, None, :, None] - attended[:, None, None, :]).abs()
        slopes = torch.arange(1, self.heads + 1, dtype=self.q.weight.dtype)[:, None, None] / 8
        return -slopes * distance


class RelativeBert(Bert):
    """BERT whose attention depends on positions in every layer, so that a renumbered one changes the logits."""

    def __init__(self, layers: int) -> None:
        model = tiny_bert(layers)
        super().__init__(model)
        heads, activation = model.config.num_attention_heads, ACT2FN[model.config.hidden_act]
        self.blocks = [RelativeBlock(layer, heads, activation, 0.0) for layer in model.bert.encoder.layer]


def setup(
    dtype: torch.dtype = torch.float64,
    *,
    lengths: Sequence[int] = (23, 1, 40, 2, 17, 31, 8, 40),
    layers: int = 4,
    relative: bool = False,
) -> Setup:
    """Texts of differing lengths and a reducer that thins them at every layer."""
    backbone = RelativeBert(layers) if relative else Bert(tiny_bert(layers))
    reducer = tiny_reducer(backbone, spread=2.0)
    backbone.model.to(dtype)
    return Setup(backbone, reducer.to(dtype), random_texts(lengths))


def family_setup(
    family: str,
    variant: str = "",
    dtype: torch.dtype = torch.float64,
    *,
    lengths: Sequence[int] = (23, 1, 40, 2, 17, 31, 8, 40),
    layers: int = 4,
) -> Setup:
    """The same with a tiny model of any family; texts are pairs where it tells their two texts apart."""
    model = tiny_model(family, variant, layers=layers)
    backbone = view(model)
    reducer = tiny_reducer(backbone, eta=0.5, spread=1.5)
    model.to(dtype)
    segments = int(has_segments(model))
    texts = [Text(text.ids.clamp(min=FEWEST), text.types * segments) for text in random_texts(lengths)]
    return Setup(backbone, reducer.to(dtype), texts)


def setup_with_ties(dtype: torch.dtype) -> Setup:
    """Every second layer scores all tokens alike and asks for just that share: exact ties, at every length up to 40."""
    made = setup(dtype, lengths=range(1, 41), layers=7)
    with torch.no_grad():
        made.reducer.eta[::2] = 1.0
        for predictor in list(made.reducer.predictors)[::2]:
            flatten(predictor)
    return made


def flatten(predictor: Any) -> None:
    """Make a predictor give every token the same logit, to the last bit."""
    predictor.dense_out.weight.zero_()


def random_texts(lengths: Sequence[int], seed: int = 0, vocab: int = 200) -> list[Text]:
    """Texts of the given lengths; every second one is a pair."""
    random = torch.Generator().manual_seed(seed)
    texts = []
    for number, length in enumerate(lengths):
        second = number % 2 * torch.arange(length).gt(length // 2)
        texts.append(Text(torch.randint(vocab, (length,), generator=random), second.long()))
    return texts


def in_rows(backbone: Backbone, texts: Sequence[Text]) -> Tokens:
    """Tokens in rows. Padding holds ordinary words, so that reading it would change something."""
    width = max(text.ids.numel() for text in texts)
    ids, types = torch.full((len(texts), width), 7), torch.zeros(len(texts), width, dtype=torch.int64)
    real = torch.zeros(len(texts), width, dtype=torch.bool)
    for row, text in enumerate(texts):
        length = text.ids.numel()
        ids[row, :length], types[row, :length], real[row, :length] = text.ids, text.types, True
    position = torch.arange(width).expand_as(ids)
    return padded(position, real, backbone.embed(ids, types, position))


def end_to_end(backbone: Backbone, texts: Sequence[Text]) -> Tokens:
    """Tokens end to end."""
    ids, types = torch.cat([text.ids for text in texts]), torch.cat([text.types for text in texts])
    position = torch.cat([torch.arange(text.ids.numel()) for text in texts])
    counts = torch.tensor([text.ids.numel() for text in texts])
    return packed(position, counts, backbone.embed(ids, types, position))


LAYOUTS = {"rows": in_rows, "end to end": end_to_end}


def places(step: Step, which: Tensor) -> tuple[Tensor, Tensor]:
    """(text, original position) of the chosen tokens among those a step decided about."""
    text = step.layout.spread(torch.arange(step.layout.texts)).expand_as(which)
    return text[which], step.position.expand_as(which)[which]


def assert_worth_testing(lengths: Sequence[Tensor], counts: Tensor) -> None:
    """Texts differ in length, 30 to 90 % of their tokens leave, and they do so at three layers or more.

    `lengths` per layer (B,) as in a `Trace`, `counts` (B,) what came in.
    """
    totals = [float(counts.sum()), *(float(length.detach().sum()) for length in lengths)]
    left = 1 - totals[-1] / totals[0]
    thinning = sum(before - after >= 1 for before, after in pairwise(totals))
    if len(set(counts.tolist())) < 2 or not 0.3 <= left <= 0.9 or thinning < 3:
        raise UselessCaseError(f"{left:.0%} of {totals[0]:.0f} tokens left at {thinning} layers, lengths {counts.tolist()}")
