"""Texts on their way through the layers as words to be shaded: which pieces came, left and were gone, and how much each gave.

Reads the stories of `report.json` (see `evaluation/examples.py`). Makes no markup; the page's template does.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tokenizers import decoders

PIECE = "##"
"""How WordPiece marks a token that goes on with the word before."""
BYTES, SPACE = "Ġ", "▁"
"""How byte-level BPE and SentencePiece mark a token that begins a word. Those of the former are spelt in bytes."""
_WORDS = 8  # a mark belongs to the spelling, not to the text, where it is on one token in so many
LEVELS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Where one shade ends and the next begins, in equal shares."""
_GRID_COLUMNS = 128  # letters, gaps included, that fit beside each other where the page still shows columns


@dataclass(frozen=True)
class Piece:
    """One token in front of one layer."""

    text: str
    fate: str
    """`kept`; `left`: removed in front of this layer; `gone`: removed before."""
    level: int | None
    """Shade: how many of LEVELS the contribution reaches; None where there is no score."""
    shares: float | None
    """The contribution in equal shares, 1.0 being that of a token like any other."""


@dataclass(frozen=True)
class Word:
    """Pieces that are written together."""

    pieces: list[Piece]


@dataclass(frozen=True)
class Gap:
    """A run of tokens that were gone before."""

    tokens: int


@dataclass(frozen=True)
class Layer:
    """A text in front of one layer."""

    number: int
    entered: int
    """Tokens that went in."""
    parts: Sequence[Word | Gap]


@dataclass(frozen=True)
class Picture:
    """A text through all layers."""

    tokens: int
    label: str
    predicted: str
    predicted_full: str
    rtl: bool
    grid: bool
    """Short enough for a column a word; otherwise each layer is running text, and words gone before are gaps."""
    layers: list[Layer]


def picture(story: dict[str, Any]) -> Picture:
    """The picture of one story."""
    tokens = _spelt(story["tokens"])
    words = _words(tokens)
    grid = sum(_columns(token.text) for token in tokens) + len(words) <= _GRID_COLUMNS
    layers = []
    for index, kept in enumerate(story["kept"]):
        scores = story["scores"][index] if index < len(story["scores"]) else [None] * len(tokens)
        pieces = _pieces(tokens, scores, set(kept))
        spelt = [Word([pieces[place] for place in places]) for places in words]
        layers.append(Layer(index + 1, len(kept), spelt if grid else _with_gaps(spelt)))
    return Picture(
        tokens=len(tokens),
        label=str(story["label"]),
        predicted=str(story["predicted"]),
        predicted_full=str(story["predicted_full"]),
        rtl=_runs_right_to_left(tokens),
        grid=grid,
        layers=layers,
    )


@dataclass(frozen=True)
class _Spelt:
    """A token as it is shown."""

    text: str
    continues: bool
    """Whether it is written together with the one before."""
    special: bool


def _spelt(tokens: Sequence[str]) -> list[_Spelt]:
    """Without the marks of the tokenizer's spelling, which the tokens themselves tell."""
    marked = [mark for mark in (BYTES, SPACE) if sum(token.startswith(mark) for token in tokens) * _WORDS > len(tokens)]
    wordpieces = not marked or any(_goes_on(token) for token in tokens)
    shown: list[_Spelt] = []
    for token in tokens:
        special = len(token) > 2 and (token[0], token[-1]) in {("[", "]"), ("<", ">")}
        if wordpieces:
            continues = bool(shown) and _goes_on(token)
            text = token.removeprefix(PIECE) if continues else token
        else:
            continues = bool(shown) and not (special or shown[-1].special or token.startswith(marked[0]))
            text = (_from_bytes(token) if marked[0] == BYTES else token.removeprefix(SPACE)).strip() or token
        shown.append(_Spelt(text, continues, special))
    return shown


def _from_bytes(token: str) -> str:
    """What a token of byte-level BPE stands for; U+FFFD for part of a character."""
    decoded: str = decoders.ByteLevel().decode([token])
    return decoded


def _words(tokens: Sequence[_Spelt]) -> list[list[int]]:
    """Places of the tokens of each word."""
    words: list[list[int]] = []
    for place, token in enumerate(tokens):
        if words and token.continues:
            words[-1].append(place)
        else:
            words.append([place])
    return words


def _pieces(tokens: Sequence[_Spelt], scores: Sequence[float | None], kept: set[int]) -> list[Piece]:
    came = sum(score is not None for score in scores)
    pieces = []
    for place, (token, score) in enumerate(zip(tokens, scores, strict=True)):
        shares = None if score is None else score * came
        level = None if shares is None else sum(shares >= limit for limit in LEVELS)
        fate = "kept" if place in kept else "gone" if score is None else "left"
        pieces.append(Piece(token.text, fate, level, shares))
    return pieces


def _with_gaps(words: Sequence[Word]) -> list[Word | Gap]:
    """Words of which nothing is left drawn together."""
    parts: list[Word | Gap] = []
    for gone, run in groupby(words, key=lambda word: all(piece.fate == "gone" for piece in word.pieces)):
        together = list(run)
        parts += [Gap(sum(len(word.pieces) for word in together))] if gone else together
    return parts


def _goes_on(token: str) -> bool:
    return token.startswith(PIECE) and len(token) > len(PIECE)


def _columns(token: str) -> int:
    """Letters of what is shown, wide ones twice, marks that stand on others not at all."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in token
    )


def _runs_right_to_left(tokens: Sequence[_Spelt]) -> bool:
    """By most of its letters: the first one, by which a browser decides, is that of a special token."""
    kinds = [unicodedata.bidirectional(letter) for token in tokens if not token.special for letter in token.text]
    return sum(kind in ("R", "AL") for kind in kinds) > kinds.count("L")
