"""Explanation: which tokens mattered, as the layers that removed the others saw it. Comes out of the run that predicted.

Everything here is read off a `Prediction` and what its layers said; nothing is computed by a model again, and words are made
only when they are asked for. Pictures are drawn by `report/`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adapler.data.words import Word, shown, words_of
from adapler.errors import BadConfig
from adapler.prediction import Judged, Prediction
from adapler.report.heatmap import Picture, equal_shares, picture

if TYPE_CHECKING:
    from rich.console import Console

    from adapler.data.text import Text

Scores = list[list[float | None]]
"""Per layer and token (or word)."""


@dataclass(frozen=True)
class Explanation:
    """A prediction with the account of every token on its way through the layers, which are counted from 0."""

    text: Text
    """As it was read: without half characters, which no tokenizer can read."""
    prediction: Prediction

    @property
    def label(self) -> str:
        """The answer."""
        return self.prediction.label

    @property
    def labels(self) -> list[str]:
        """Every label the text is given."""
        return self.prediction.labels

    @property
    def score(self) -> float:
        """Its probability."""
        return self.prediction.score

    @property
    def scores(self) -> dict[str, float]:
        """Probability of every label (raw values for a regression)."""
        return self.prediction.scores

    @property
    def flops(self) -> int:
        """What the prediction cost."""
        return self.prediction.flops

    @property
    def tokens(self) -> list[str]:
        """The text as the model reads it."""
        return self.prediction.tokens

    @property
    def layers(self) -> int:
        """How many the model has."""
        return len(self.prediction.lengths)

    @property
    def truncated(self) -> bool:
        """Whether part of the text was beyond the model's limit: this account is of the part that was read."""
        return self.prediction.truncated

    @property
    def kept(self) -> list[list[int]]:
        """Per layer, the positions in `tokens` that entered it."""
        return self.prediction.kept

    @property
    def left(self) -> list[int | None]:
        """Per token, in front of which layer it left; None where it went through all."""
        return [None if depth >= self.layers else depth for depth in self.prediction.depths]

    @cached_property
    def contributions(self) -> Scores:
        """Per layer, the contribution of every token that was judged in front of it: a share of 1 (of each window, where
        there are several). None for tokens gone before, and in front of layers where the method does not judge."""
        rows: Scores = [[] for _ in range(self.layers)]
        first = 0
        for window in self.prediction.judged:
            depths = np.asarray(self.prediction.depths[first : first + len(window.places)])
            first += len(depths)
            for layer, row in enumerate(rows):
                row += _row(window, layer, depths)
        return rows

    @property
    def shares(self) -> Scores:
        """The same in equal shares: 1 is what a token would have that is like all others in front of that layer."""
        windows = [len(window.places) for window in self.prediction.judged]
        return [equal_shares(row, windows) for row in self.contributions]

    @cached_property
    def words(self) -> list[Word]:
        """The words that were read, in order, with their places in the text. Special tokens are in none."""
        found: list[Word] = []
        first = 0
        for number, window in enumerate(self.prediction.judged):
            found += words_of(self.text, window.places, first=first, window=number)
            first += len(window.places)
        return found

    @property
    def word_contributions(self) -> Scores:
        """Per layer, the sum over each of `words`' tokens that were judged; None where none was."""
        places = [word.tokens for word in self.words]
        return [[row[tokens[0]] if len(tokens) == 1 else _sum(row, tokens) for tokens in places] for row in self.contributions]

    def rationale(self, depth: int | None = None) -> list[Word]:
        """The words of which at least one token entered `depth` layers; by default all layers. 0 gives every word.

        Of a word that two windows read, one of them is enough.
        """
        deep = self.layers if depth is None else depth
        if not 0 <= deep <= self.layers:
            raise BadConfig(f"depth must lie in 0 to {self.layers}, the model's layers, got {depth}")
        alive = {token for token, depth in enumerate(self.prediction.depths) if depth >= deep}
        found = [word for word in self.words if not alive.isdisjoint(word.tokens)]
        if self.prediction.windows == 1:
            return found
        return list({(word.of, word.start, word.end): word for word in found}.values())

    @property
    def pieces(self) -> list[str]:
        """What a reader is shown of each token: its own characters of the text; a special token's name."""
        found: list[str] = []
        for window in self.prediction.judged:
            names = self.tokens[len(found) : len(found) + len(window.places)]
            found += shown(self.text, window.places, names)
        return found

    def picture(self, marked: Collection[int] = ()) -> Picture:
        """The text through the layers, ready to be drawn, with the tokens `marked`."""
        return picture(
            self.pieces,
            [word.tokens for word in self.words],
            self.shares,
            self.kept,
            marked=marked,
        )

    @property
    def notes(self) -> list[str]:
        """What a reader must know of how the text was read."""
        prediction, notes = self.prediction, []
        if prediction.truncated:
            notes.append(f"The text is longer than the model reads: this is about {len(self.tokens)} tokens of it.")
        if prediction.windows > 1:
            notes.append(
                f"The text was read in {prediction.windows} windows that overlap; the answer is their mean, and contributions "
                "are shares of one window."
            )
        if prediction.escalated:
            notes.append("A faster answer was too unsure; this is the careful one.")
        return notes

    def show(self, console: Console | None = None) -> None:
        """Print it, by default to standard output."""
        from rich.console import Console as Terminal

        from adapler.report.terminal import explained

        explained(self, console or Terminal())

    def _repr_html_(self) -> str:
        from adapler.report.explained import fragment

        return fragment(self)

    def save(self, path: str | Path) -> None:
        """Write a page (.html) that fetches nothing, or an image (.png, .svg, .pdf: needs matplotlib), or .json."""
        save([self], path)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        prediction = self.prediction
        return {
            "text": self.text if isinstance(self.text, str) else list(self.text),
            "label": prediction.label,
            "score": prediction.score,
            "scores": prediction.scores,
            **prediction.several,
            "tokens": prediction.tokens,
            "pieces": self.pieces,
            "left": self.left,
            "kept": prediction.kept,
            "contributions": _rounded(self.contributions),
            "words": [
                {"text": word.text, "start": word.start, "end": word.end, "of": word.of, "window": word.window}
                | {"tokens": list(word.tokens)}
                for word in self.words
            ],
            "word_contributions": _rounded(self.word_contributions),
            "rationale": [[word.of, word.start, word.end] for word in self.rationale()],
            "lengths": prediction.lengths,
            "flops": prediction.flops,
            "flops_full": prediction.flops_full,
            "truncated": prediction.truncated,
            "windows": prediction.windows,
            "escalated": prediction.escalated,
        }


def save(explanations: Sequence[Explanation], path: str | Path) -> None:
    """Several on one page (.html) or as JSON lines (.json, .jsonl); an image (.png, .svg, .pdf) holds one alone."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind in (".html", ".htm"):
        from adapler.report.explained import page
        from adapler.report.page import write_page

        write_page(page(explanations), path)
    elif kind in (".png", ".svg", ".pdf"):
        from adapler.report.plot import draw_picture

        if len(explanations) != 1:
            raise BadConfig(f"{path}: an image shows one text, got {len(explanations)}; save a page (.html), or one at a time")
        draw_picture(explanations[0].picture(), path, title=headline(explanations[0]), notes=explanations[0].notes)
    elif kind in (".json", ".jsonl"):
        from adapler.report.page import write_page

        write_page("".join(json.dumps(each.to_dict(), ensure_ascii=False) + "\n" for each in explanations), path)
    else:
        raise BadConfig(f"{path}: an explanation is saved as .html, .png, .svg, .pdf or .json, by the name's ending")


def headline(explanation: Explanation) -> str:
    """The answer and its cost in one line."""
    prediction = explanation.prediction
    speedup = prediction.flops_full / prediction.flops
    return f"{prediction.label} {prediction.score:.3f} · {len(prediction.tokens)} tokens · {speedup:.2f}x fewer FLOPs"


def _row(window: Judged, layer: int, depths: Any) -> list[float | None]:
    """What was said of a window's tokens in front of a layer, None of those it was not said of."""
    row: list[float | None] = [None] * len(depths)
    if layer in window.in_front:
        said = window.scores[window.in_front.index(layer)].tolist()
        for place, score in zip(np.flatnonzero(depths >= layer).tolist(), said, strict=True):
            row[place] = score
    return row


def _sum(row: Sequence[float | None], tokens: Sequence[int]) -> float | None:
    there = [score for token in tokens if (score := row[token]) is not None]
    return sum(there) if there else None


def _rounded(rows: Scores) -> Scores:
    return [[None if score is None else round(score, 6) for score in row] for row in rows]
