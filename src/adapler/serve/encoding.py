"""Texts made token ids, one by one where need be: what is wrong with one stands in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adapler.data.text import EncodedText, Text, TextEncoder
from adapler.errors import AdaplerError
from adapler.serve.schema import ErrorType, Refusal


@dataclass(frozen=True)
class Encoded:
    """A text in both forms."""

    text: Text
    parts: list[EncodedText]

    @property
    def tokens(self) -> int:
        """How many there are."""
        return sum(len(part.ids) for part in self.parts)


def encoded(encoder: TextEncoder, items: Sequence[Text | Refusal], *, cut: bool, places: bool) -> list[Encoded | Refusal]:
    """One an item. Unless texts may be `cut`, those past the limit are refused; with `places` tokens know theirs."""
    texts = [item for item in items if not isinstance(item, Refusal)]
    read = iter(_read(encoder, texts, cut, places))
    return [item if isinstance(item, Refusal) else next(read) for item in items]


def _read(encoder: TextEncoder, texts: Sequence[Text], cut: bool, places: bool) -> list[Encoded | Refusal]:
    try:
        parts = encoder.parts(texts, places=places)
    except AdaplerError:
        if len(texts) > 1:  # one of them is to blame
            return [each for text in texts for each in _read(encoder, [text], cut, places)]
        return [Refusal(422, ErrorType.tokenizer, "the tokenizer cannot read the text")]
    return [
        _too_long(encoder, text) if not cut and any(part.truncated for part in some) else Encoded(text, some)
        for text, some in zip(texts, parts, strict=True)
    ]


def _too_long(encoder: TextEncoder, text: Text) -> Refusal:
    given = encoder.count(text)
    said = f"Input validation error: `inputs` must have less than {encoder.max_length} tokens. Given: {given}"
    return Refusal(422, ErrorType.validation, said)
