"""Words that are never dropped: what users name, as patterns, and which tokens lie under their matches."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapler.errors import BadConfig

AlwaysKeep = Sequence[str | re.Pattern[str]] | re.Pattern[str]
"""Words or phrases, found whole and in any case, and patterns, found as they are written."""

Found = list[NDArray[np.int64] | None]
"""Of each text, at each place, how many characters before it are under a match; None where none is."""

_MARKS = range(ord("\u0300"), 0x1F000)
"""Where all characters lie that go on top of others, but for rare selectors of a glyph's variant."""


class Keep:
    """What must stay, ready to be found in texts."""

    def __init__(self, wanted: AlwaysKeep) -> None:
        """Refuses what names nothing: an empty word, or a plain string, which would be taken letter by letter."""
        if isinstance(wanted, str) or not isinstance(wanted, Sequence | re.Pattern):
            raise BadConfig(
                f"always_keep must be a list of words or a compiled pattern, got {type(wanted).__name__} {_short(wanted)}; "
                "put a single word into a list"
            )
        items = [wanted] if isinstance(wanted, re.Pattern) else list(wanted)
        for item in items:
            if isinstance(item, re.Pattern) and isinstance(item.pattern, str):
                continue
            if not isinstance(item, str):
                raise BadConfig(f"always_keep takes words and patterns of text, got {type(item).__name__} {_short(item)}")
            if not item.strip():
                raise BadConfig(f"always_keep got the word {item!r}, which names nothing; leave it out")
        words = [item for item in items if isinstance(item, str)]
        self._patterns = [item for item in items if isinstance(item, re.Pattern)]
        self._words = _whole_words(words) if words else None

    def find(self, texts: Sequence[str]) -> Found:
        """Where they are in a text, or in both of a pair."""
        return [_marked(self._spans(text), len(text)) for text in texts]

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        if self._words is not None:
            yield from (match.span(1) for match in self._words.finditer(text))
        for pattern in self._patterns:
            yield from (match.span() for match in pattern.finditer(text))


def covered(found: Found, encoding: Any) -> NDArray[np.bool_] | None:
    """Per token of a tokenizers encoding, whether a match covers one of its characters; None where that is none.

    The encoding may be of less than the whole text, as long as its offsets count from the text's beginning.
    """
    if all(marks is None for marks in found):
        return None
    start, end = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
    # Special tokens belong to no text.
    owner = np.array([-1 if number is None else number for number in encoding.sequence_ids], dtype=np.int64)
    keep = np.zeros(len(owner), dtype=np.bool_)
    for number, marks in enumerate(found):
        if marks is not None:
            own = owner == number
            keep[own] = marks[end[own]] > marks[start[own]]
    return keep if keep.any() else None


def keeper(wanted: AlwaysKeep | None) -> Keep | None:
    """None where nothing is named."""
    keep = None if wanted is None else Keep(wanted)
    return keep if wanted else None


def read_always_keep(given: Iterable[str]) -> list[str | re.Pattern[str]]:
    """Words and, between slashes, patterns, as a command line has them."""
    return [_pattern(item[1:-1]) if len(item) > 1 and item[0] == item[-1] == "/" else item for item in given]


def _pattern(source: str) -> re.Pattern[str]:
    if not source:
        raise BadConfig(
            "always_keep got the pattern //, which matches nothing but emptiness; put a pattern between the slashes"
        )
    try:
        return re.compile(source)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadConfig(
            f"always_keep got /{source[:80]}/, which is no regular expression ({error}); "
            "correct it, or leave the slashes out to mean a word"
        ) from error


def _whole_words(words: Sequence[str]) -> re.Pattern[str]:
    """Finds each place where a word begins, and as group 1 the longest that does: words may overlap."""
    # An accent is a character of its own in one form of a text, and part of its letter in the other.
    forms = {unicodedata.normalize(form, " ".join(word.split())) for word in words for form in ("NFC", "NFD")}
    ordered = sorted(forms, key=lambda form: (-len(form), form))
    any_of = "|".join(r"\s+".join(re.escape(part) for part in form.split(" ")) for form in ordered)
    letter = rf"[\w{_marks()}]"
    edge = f"(?:(?<!{letter})|(?!{letter}))"  # not inside a word; what is no letter, such as "!", needs no space around it
    return re.compile(f"{edge}(?=({any_of}){edge})", re.IGNORECASE)


@cache
def _marks() -> str:
    """Accents and vowel signs, which belong to a word though `\\w` leaves them out; as ranges."""
    numbers = [number for number in _MARKS if unicodedata.category(chr(number)).startswith("M")]
    starts = [number for number in numbers if unicodedata.category(chr(number - 1))[0] != "M"]
    ends = [number for number in numbers if unicodedata.category(chr(number + 1))[0] != "M"]
    return "".join(f"{chr(start)}-{chr(end)}" for start, end in zip(starts, ends, strict=True))


def _marked(spans: Iterable[tuple[int, int]], length: int) -> NDArray[np.int64] | None:
    """As in `Found`, of one text. Empty matches cover nothing."""
    covering = [(start, end) for start, end in spans if start < end]
    if not covering:
        return None
    under = np.zeros(length + 1, dtype=np.int64)
    for start, end in covering:
        under[start + 1 : end + 1] = 1
    return np.cumsum(under)


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
