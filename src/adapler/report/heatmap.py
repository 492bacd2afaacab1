"""Texts on their way through the layers as words to be shaded: which pieces came, left and were gone, and how much each gave.

Reads the stories of `report.json` (see `evaluation/examples.py`). Makes no markup; the page's template does.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

PIECE = "##"
"""How WordPiece marks a token that goes on with the word before."""
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
    tokens: list[str] = story["tokens"]
    words = _words(tokens)
    grid = sum(_columns(token) for token in tokens) + len(words) <= _GRID_COLUMNS
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


def _words(tokens: Sequence[str]) -> list[list[int]]:
    """Places of the tokens of each word."""
    words: list[list[int]] = []
    for place, token in enumerate(tokens):
        if words and _continues(token):
            words[-1].append(place)
        else:
            words.append([place])
    return words


def _pieces(tokens: Sequence[str], scores: Sequence[float | None], kept: set[int]) -> list[Piece]:
    came = sum(score is not None for score in scores)
    pieces = []
    for place, (token, score) in enumerate(zip(tokens, scores, strict=True)):
        shares = None if score is None else score * came
        level = None if shares is None else sum(shares >= limit for limit in LEVELS)
        fate = "kept" if place in kept else "gone" if score is None else "left"
        pieces.append(Piece(token.removeprefix(PIECE) if place and _continues(token) else token, fate, level, shares))
    return pieces


def _with_gaps(words: Sequence[Word]) -> list[Word | Gap]:
    """Words of which nothing is left drawn together."""
    parts: list[Word | Gap] = []
    for gone, run in groupby(words, key=lambda word: all(piece.fate == "gone" for piece in word.pieces)):
        together = list(run)
        parts += [Gap(sum(len(word.pieces) for word in together))] if gone else together
    return parts


def _continues(token: str) -> bool:
    return token.startswith(PIECE) and len(token) > len(PIECE)


def _columns(token: str) -> int:
    """Letters of a token, wide ones twice, marks that stand on others not at all."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in token.removeprefix(PIECE)
    )


def _runs_right_to_left(tokens: Sequence[str]) -> bool:
    """By most of its letters: the first one, by which a browser decides, is that of a special token."""
    words = [token for token in tokens if not (token.startswith("[") and token.endswith("]"))]
    kinds = [unicodedata.bidirectional(letter) for word in words for letter in word]
    return sum(kind in ("R", "AL") for kind in kinds) > kinds.count("L")
