"""Texts on their way through the layers as words to be shaded: which pieces came, left and were gone, and how much each gave.

The paper's Figure 4: rows are layers, colour is contribution. What this module lays out, `markup.py` writes for browsers,
`terminal.py` for terminals and `plot.py` as an image; none of them decides what is shown.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter
from typing import NamedTuple

from adapler.data.words import runs_right_to_left

LEVELS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Where one shade ends and the next begins, in equal shares."""
SHADES = ("#f1f5fa", "#e1ebf6", "#c8dcf0", "#9cc4e6", "#639fd2", "#276ba8", "#0a3d70")
DARK_SHADES = ("#1a222b", "#1d2e41", "#20405f", "#285a88", "#5399d3", "#8cc3f0", "#d3eaff")
"""One hue from pale to strong (on dark pages from dark to bright): told apart by lightness alone, so by everyone."""
_GRID_COLUMNS = 128  # letters, gaps included, that fit beside each other where the page still shows columns


class Piece(NamedTuple):
    """One token in front of one layer."""

    text: str
    fate: str
    """`kept`; `left`: removed in front of this layer; `gone`: removed before."""
    level: int | None
    """Shade: how many of LEVELS the contribution reaches; None where there is no score."""
    shares: float | None
    """The contribution in equal shares, 1.0 being that of a token like any other."""
    marked: bool = False
    """Whether the reader's eye is to be led to it."""


class Word(NamedTuple):
    """Pieces that are written together."""

    pieces: list[Piece]
    gone: bool
    """Whether all of them were gone before."""


@dataclass(frozen=True)
class Gap:
    """A run of tokens that were gone before."""

    tokens: int


@dataclass(frozen=True)
class Layer:
    """A text in front of one layer."""

    number: int
    """Counted from 1."""
    entered: int
    """Tokens that went in."""
    words: list[Word]

    @property
    def parts(self) -> list[Word | Gap]:
        """The same with words of which nothing is left drawn together: for texts that run on."""
        parts: list[Word | Gap] = []
        for gone, run in groupby(self.words, key=attrgetter("gone")):
            together = list(run)
            parts += [Gap(sum(len(word.pieces) for word in together))] if gone else together
        return parts


@dataclass(frozen=True)
class Picture:
    """A text through all layers."""

    tokens: int
    rtl: bool
    grid: bool
    """Short enough for a column a word; otherwise each layer is running text, and words gone before are gaps."""
    layers: list[Layer]


def picture(
    pieces: Sequence[str],
    words: Sequence[Sequence[int]],
    shares: Sequence[Sequence[float | None]],
    kept: Sequence[Sequence[int]],
    *,
    marked: Collection[int] = (),
) -> Picture:
    """The picture of a text. `pieces` are its tokens as they are shown, `words` the places of those written together.

    `shares` are contributions per layer and token in equal shares, None where nobody asked; `kept` are per layer the places
    that entered it; `marked` are places to be marked.
    """
    written = _written(words, len(pieces))
    letters = "".join(pieces[place] for word in words for place in word)
    gone = [Piece(text, "gone", None, None, place in marked) for place, text in enumerate(pieces)]
    gone_words = [Word([gone[place] for place in places], True) for places in written]
    layers = []
    alive = set(range(len(pieces)))
    for index, entered in enumerate(kept):
        row = shares[index] if index < len(shares) else [None] * len(pieces)
        before, alive = alive, set(entered)
        shown = gone.copy()
        for place in before:
            share, fate = row[place], "kept" if place in alive else "left"
            level = None if share is None else bisect_right(LEVELS, share)
            shown[place] = Piece(pieces[place], fate, level, share, place in marked)
        spelt = [
            lost if before.isdisjoint(places) else Word([shown[place] for place in places], False)
            for places, lost in zip(written, gone_words, strict=True)
        ]
        layers.append(Layer(index + 1, len(entered), spelt))
    grid = sum(map(columns, pieces)) + len(written) <= _GRID_COLUMNS
    return Picture(len(pieces), runs_right_to_left(letters), grid, layers)


def equal_shares(scores: Sequence[float | None], windows: Sequence[int] = ()) -> list[float | None]:
    """Scores of one layer in equal shares: times the tokens that were judged; where there are several `windows` of so many
    tokens, times those of the same window."""
    shares: list[float | None] = []
    for count in windows or (len(scores),):
        row = scores[len(shares) : len(shares) + count]
        came = sum(score is not None for score in row)
        shares += [None if score is None else score * came for score in row]
    return shares


def level_names() -> list[str]:
    """What each shade means, palest first."""
    names = [f"{limit:g}".replace("0.25", "¼").replace("0.5", "½") for limit in LEVELS]
    between = [f"{low}–{high}" for low, high in pairwise(names)]
    return [f"< {names[0]}", *between, f"≥ {names[-1]}"]


def columns(text: str) -> int:
    """How many letters wide a text is: wide ones count twice, marks that stand on others not at all."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.combining(letter) or unicodedata.category(letter) == "Cf"
        else 2
        if unicodedata.east_asian_width(letter) in "WF"
        else 1
        for letter in text
    )


def plain(text: str) -> str:
    """Without what would move a cursor or turn a line round where no markup keeps texts apart; joiners stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\u200c\u200d" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _written(words: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """Words and, each by itself, the tokens that are in none, in order."""
    inside = {place for word in words for place in word}
    alone = [[place] for place in range(tokens) if place not in inside]
    return sorted([*map(list, words), *alone])
