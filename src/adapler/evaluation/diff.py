"""Where removal changes the answer: texts that a model answers otherwise when it removes nothing, and the removed words whose
return restores that answer.

A word is given back by protecting its tokens, as `always_keep` does: they stay through every layer, and whatever follows for
the other tokens follows. The search tries every word alone (as far as `tries` go, those first that contributed most when they
left), so that a single word is found where one is enough. Larger sets are grown greedily and then thinned: while tries last,
nothing is kept that could be left out alone, but a smaller set of other words may exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adapler.data.text import EncodedText, Text, cleaned, windows
from adapler.errors import BadConfig, BadModel
from adapler.explain import Explanation
from adapler.prediction import Prediction

if TYPE_CHECKING:
    from adapler.classifier import Classifier

TRIES = 256
"""Runs of one text that may be spent on finding what restores its answer."""
_ABREAST = 16  # words tried in each round of growing a set: those that helped most alone


@dataclass(frozen=True)
class Removed:
    """A word of which tokens left on the way, or a special token that did."""

    text: str
    tokens: tuple[int, ...]
    """Those that left."""
    span: tuple[int, int, int] | None
    """Which text, start and end; None for a special token."""


@dataclass(frozen=True)
class Difference:
    """A text with another answer when nothing is removed."""

    index: int
    """Its place in the data, from 0."""
    explanation: Explanation
    """Of the reduced answer."""
    full: Prediction
    """The answer with nothing removed."""
    gold: str | None
    restored_by: tuple[Removed, ...]
    """What restores the full answer when it stays; empty where nothing did that was tried."""
    tried: int
    """How many runs that took."""

    @property
    def reduced(self) -> Prediction:
        """The answer as it is given."""
        return self.explanation.prediction

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        text = self.explanation.text
        return {
            "index": self.index,
            "text": text if isinstance(text, str) else list(text),
            "gold": self.gold,
            "full": self.full.label,
            "full_score": self.full.score,
            "reduced": self.reduced.label,
            "reduced_score": self.reduced.score,
            "restored_by": [{"text": unit.text, "tokens": unit.tokens, "span": unit.span} for unit in self.restored_by],
            "tried": self.tried,
        }


@dataclass
class Differences:
    """What became of all texts, and the first of those that differ."""

    n: int = 0
    differ: int = 0
    spoilt: int | None = None
    """Right with everything kept, wrong reduced; None where no labels are known. So are the next two."""
    mended: int | None = None
    """Wrong with everything kept, right reduced."""
    both_wrong: int | None = None
    listed: tuple[Difference, ...] = ()

    @property
    def account(self) -> str:
        """All of it in one sentence."""
        known = self.spoilt is not None
        split = f": {self.spoilt} right only at full length, {self.mended} right only reduced, {self.both_wrong} wrong in both"
        return f"{self.differ} of {self.n} answers differ from full length{split if known else ''}."

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        counts = {"n": self.n, "differ": self.differ, "spoilt": self.spoilt, "mended": self.mended}
        return {**counts, "both_wrong": self.both_wrong, "differences": [each.to_dict() for each in self.listed]}


def differences(
    classifier: Classifier,
    texts: Iterable[Text],
    labels: Sequence[str] | None = None,
    *,
    limit: int | None = None,
    tries: int = TRIES,
) -> Differences:
    """Compare a classifier, at its operating point, with itself at full length. `labels` are the texts' true ones.

    At most `limit` differences are searched and listed; all are counted. Answers are of one pass: nothing is escalated.
    """
    if not classifier.cost.predictors:
        raise BadModel("the model removes nothing, so nothing can differ; give a reduced model")
    scale = classifier.operating.scale
    if scale == 0:
        raise BadConfig("the operating point removes nothing, so nothing can differ; choose another")
    classifier.runtime.check_keeps()
    found = Differences() if labels is None else Differences(spoilt=0, mended=0, both_wrong=0)
    for window in windows(texts):
        parts = classifier.encoder.parts(window)
        pairs = zip(classifier.at_scale(parts, scale), classifier.at_scale(parts, 0.0), strict=True)
        for place, (reduced, full) in enumerate(pairs):
            if reduced.label == full.label:
                continue
            index = found.n + place
            gold = None if labels is None else labels[index]
            _count(found, gold, reduced.label, full.label)
            if limit is None or len(found.listed) < limit:
                found.listed += (_difference(classifier, index, window[place], full, gold, tries),)
        found.n += len(window)
    return found


def _count(found: Differences, gold: str | None, reduced: str, full: str) -> None:
    found.differ += 1
    if found.spoilt is None or found.mended is None or found.both_wrong is None:
        return
    found.spoilt += full == gold
    found.mended += reduced == gold
    found.both_wrong += gold not in (full, reduced)


def _difference(classifier: Classifier, index: int, text: Text, full: Prediction, gold: str | None, tries: int) -> Difference:
    (parts,) = classifier.encoder.parts([text], places=True)
    scale = classifier.operating.scale
    explanation = Explanation(cleaned(text), classifier.at_scale([parts], scale)[0])
    bare = [replace(part, places=None) for part in parts]  # trials need no account of their own

    def run(kept: Sequence[Sequence[Removed]]) -> list[Prediction]:
        given = [_protecting(bare, {token for unit in units for token in unit.tokens}) for units in kept]
        return classifier.at_scale(given, scale)

    units, tried = restoring(removed(explanation), run, full.label, tries)
    return Difference(index, explanation, full, gold, tuple(units), tried)


def removed(explanation: Explanation) -> list[Removed]:
    """Words (and special tokens) of which something left, those first that had the largest share when they left."""
    left, shares = explanation.left, explanation.shares

    def share(tokens: Iterable[int]) -> float:
        return sum(shares[layer][token] or 0.0 for token in tokens if (layer := left[token]) is not None)

    inside = {token for word in explanation.words for token in word.tokens}
    units = [
        Removed(w.text, tuple(t for t in w.tokens if left[t] is not None), (w.of, w.start, w.end)) for w in explanation.words
    ]
    units += [Removed(name, (t,), None) for t, name in enumerate(explanation.tokens) if t not in inside and left[t] is not None]
    return sorted((unit for unit in units if unit.tokens), key=lambda unit: -share(unit.tokens))


def restoring(
    units: Sequence[Removed],
    run: Callable[[Sequence[Sequence[Removed]]], Sequence[Prediction]],
    wanted: str,
    tries: int,
) -> tuple[list[Removed], int]:
    """Units that, given back together, bring the answer `wanted`, as few as were found; and how many sets were tried.

    `run` answers for each of several sets given back. Nothing is returned where not even all units bring it.
    """
    first = list(units[:tries])
    if not first:
        return [], 0
    alone = run([[unit] for unit in first])
    tried = len(first)
    for unit, answer in zip(first, alone, strict=True):
        if answer.label == wanted:
            return [unit], tried
    gain = {unit.tokens: answer.scores[wanted] for unit, answer in zip(first, alone, strict=True)}
    order = [*sorted(first, key=lambda unit: -gain[unit.tokens]), *units[tries:]]
    chosen, restored = order[:1], False
    while not restored and tried < tries and len(chosen) < len(order):
        rest = [unit for unit in order if unit not in chosen][: min(_ABREAST, tries - tried)]
        answers = run([[*chosen, unit] for unit in rest])
        tried += len(rest)
        # A set that restores the answer before one that merely makes it likelier.
        best = max(range(len(rest)), key=lambda i: (answers[i].label == wanted, answers[i].scores[wanted]))
        chosen, restored = [*chosen, rest[best]], answers[best].label == wanted
    size = 2 * len(chosen)
    while not restored:
        # Work is used up: how many of the most helpful it takes, at most all.
        chosen = order[:size]
        restored = run([chosen])[0].label == wanted
        tried += 1
        if not restored and size >= len(order):
            return [], tried
        size *= 2
    return _thinned(chosen, run, wanted, tried, max(tries, tried + _ABREAST))


def _thinned(
    chosen: list[Removed],
    run: Callable[[Sequence[Sequence[Removed]]], Sequence[Prediction]],
    wanted: str,
    tried: int,
    tries: int,
) -> tuple[list[Removed], int]:
    """Without units that are not needed, the least helpful tried first, as far as `tries` go."""
    for unit in reversed(chosen):
        if tried >= tries:
            break
        fewer = [other for other in chosen if other is not unit]
        tried += 1
        if fewer and run([fewer])[0].label == wanted:
            chosen = fewer
    return chosen, tried


def _protecting(parts: Sequence[EncodedText], tokens: set[int]) -> list[EncodedText]:
    """The same with these tokens, counted through all parts, marked to stay."""
    given, first = [], 0
    for part in parts:
        own = [token - first for token in tokens if first <= token < first + len(part.ids)]
        keep = np.zeros(len(part.ids), dtype=np.bool_) if part.keep is None else part.keep.copy()
        keep[own] = True
        given.append(replace(part, keep=keep))
        first += len(part.ids)
    return given
