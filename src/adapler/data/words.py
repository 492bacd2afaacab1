"""Words out of tokens, by where each token stands in its text. Knows offsets, never a kind of tokenizer or a model.

Tokens go on with a word where they touch inside it: at a seam between two letters or digits, or where they share a
character. So pieces of any fast tokenizer are joined alike, whether it marks what goes on (`##ing`) or what begins (`Ġgood`,
`▁good`). Special tokens stand in no text and belong to no word; nor does a token of nothing but white space.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from adapler.data.text import Text

SHARED, BLANK = "▫", "␣"
"""What stands for a token all of whose characters were shown by the one before, and for one of white space."""
_HAN = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))


@dataclass(frozen=True)
class Places:
    """Where the tokens of a text stand."""

    spans: list[tuple[int, int]]
    """Start and end of each, in characters of its text."""
    texts: list[int | None]
    """Which text that is: 0, 1 for the second of a pair, None for special tokens."""

    def __len__(self) -> int:
        return len(self.spans)


class Word(NamedTuple):
    """A word of a text, as far as it was read."""

    text: str
    start: int
    """In characters of its text."""
    end: int
    of: int
    """Which text of a pair: 0 or 1."""
    tokens: tuple[int, ...]
    """Positions of its pieces."""
    window: int = 0
    """Which window it was read in; where windows overlap, a word is read in both."""


def places_of(encoding: Any) -> Places:
    """Of a tokenizers encoding that has offsets."""
    return Places(encoding.offsets, encoding.sequence_ids)


def words_of(text: Text, places: Places, *, first: int = 0, window: int = 0) -> list[Word]:
    """The words of one window, whose tokens are counted from `first`."""
    found: list[Word] = []
    tokens: list[int] = []
    begin = until = owner = 0
    texts = _texts(text)

    def close() -> None:
        if tokens:
            found.append(Word(texts[owner][begin:until], begin, until, owner, tuple(tokens), window))

    for number, start, end, of in _spans(texts, places):
        if tokens and of == owner and _goes_on(texts[of], until, start):
            until = max(until, end)
        else:
            close()
            tokens, begin, until, owner = [], start, end, of
        tokens.append(first + number)
    close()
    return found


def shown(text: Text, places: Places, names: Sequence[str]) -> list[str]:
    """What a reader is shown of each token: its own part of the text; of a special token its name."""
    pieces = [name if of is None else BLANK for name, of in zip(names, places.texts, strict=True)]
    until = owner = 0
    texts = _texts(text)
    for number, start, end, of in _spans(texts, places):
        if of != owner:
            until, owner = 0, of
        pieces[number] = texts[of][max(start, until) : end] or SHARED
        until = max(until, end)
    return pieces


def runs_right_to_left(letters: str) -> bool:
    """By most of its letters: the first one, by which a browser decides, may be that of a name."""
    kinds = [unicodedata.bidirectional(letter) for letter in letters]
    return sum(kind in ("R", "AL") for kind in kinds) > kinds.count("L")


def _spans(texts: Sequence[str], places: Places) -> Iterator[tuple[int, int, int, int]]:
    """Token, start, end and text of what stands in one; white space that some tokenizers count in is left out."""
    for number, ((start, end), of) in enumerate(zip(places.spans, places.texts, strict=True)):
        if of is None:
            continue
        piece = texts[of][start:end]
        bare = piece.strip()
        if bare:
            begin = start if len(bare) == len(piece) else start + len(piece) - len(piece.lstrip())
            yield number, begin, begin + len(bare), of


def _texts(text: Text) -> Sequence[str]:
    return (text,) if isinstance(text, str) else text


def _goes_on(text: str, until: int, start: int) -> bool:
    """Whether a token that starts there goes on with the word up to there."""
    return start < until or (start == until and _inside(text[start - 1]) and _inside(text[start]))


def _inside(character: str) -> bool:
    """Letters, digits and the marks upon them; but an ideograph is a word by itself."""
    if character.isascii():
        return character.isalnum() or character == "_"
    number = ord(character)
    if any(low <= number <= high for low, high in _HAN):
        return False
    return unicodedata.category(character)[0] in "LMN" or character in "\u200c\u200d"  # joiners stand inside words
