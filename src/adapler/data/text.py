"""Texts to token ids, and ids to batches under a token budget. Knows tokenizers, never a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from adapler.data.keep import Keep, covered
from adapler.data.words import Places, places_of
from adapler.errors import BadConfig, BadInput, BadModel
from adapler.safefile import reason

Text = str | tuple[str, str]
"""One text, or one pair."""

FIRST_WINDOW, WINDOW_TEXTS = 256, 2048
"""Texts sorted by length together; of a stream few at first, so that its first answers come soon."""
WINDOW_CHARACTERS = 8_000_000
_LONG_PAIR = 8  # characters per token the model reads, from which a pair is cut before it is tokenised as one
_SPARE = 64  # tokens


@dataclass(frozen=True)
class EncodedText:
    """One text as the model reads it."""

    ids: NDArray[np.int64]
    types: NDArray[np.int64]
    """Segment of each token: 1 on the second text of a pair where the family tells them apart."""
    tokens: list[str]
    truncated: bool
    keep: NDArray[np.bool_] | None = None
    """Per token, whether it must stay to the end; None where none must but the first."""
    position: NDArray[np.int64] | None = None
    """Place of each token in the text it was taken from; None where all of the text is here, and they count from 0. Where a
    place is past the number of tokens, nobody may ask a trace how deep each went."""
    places: Places | None = None
    """On request: where each token stands in the text."""


@dataclass(frozen=True)
class PlainTokenizer:
    """A fast tokenizer as data: all that is read of transformers' wrapper, so that none is needed to use it."""

    json: str
    """What `tokenizer.json` holds."""
    truncation_side: str
    """`right` where the end of a long text is not read, `left` where its beginning is not."""
    typed: bool
    """Whether the model tells the texts of a pair apart by segment numbers."""
    split_special_tokens: bool
    """Whether a special token's name in a text is read as ordinary characters."""

    @classmethod
    def of(cls, tokenizer: Any) -> PlainTokenizer:
        """From a transformers fast tokenizer."""
        return cls(
            json=tokenizer.backend_tokenizer.to_str(),
            truncation_side=tokenizer.truncation_side,
            typed="token_type_ids" in tokenizer.model_input_names,
            split_special_tokens=tokenizer.split_special_tokens,
        )

    def engine(self) -> Tokenizer:
        """A tokenizer that neither pads nor cuts."""
        engine = Tokenizer.from_str(self.json)
        engine.no_padding()
        engine.no_truncation()
        engine.encode_special_tokens = self.split_special_tokens
        return engine


class TextEncoder:
    """A fast tokenizer fixed to one maximum length. Unlike transformers' wrapper it keeps no state between calls, so
    threads may share it."""

    def __init__(self, tokenizer: Any, max_length: int, *, keep: Keep | None = None, stride: int | None = None) -> None:
        """`tokenizer` is a transformers fast tokenizer, or a plain one; `max_length` counts special tokens.

        The tokens of what `keep` finds are marked to stay. `stride` is how many tokens the `parts` of a long text share.
        """
        plain = tokenizer if isinstance(tokenizer, PlainTokenizer) else PlainTokenizer.of(tokenizer)
        self._plain = plain
        self._whole, self._cutting = plain.engine(), plain.engine()
        added = self._cutting.num_special_tokens_to_add(is_pair=True)
        if added > max_length:
            raise BadConfig(f"max_length must be at least {added}, the special tokens around a pair, got {max_length}")
        self._cutting.enable_truncation(max_length, direction=plain.truncation_side)
        self._cuts_ends = plain.truncation_side == "right"
        self._names = _names(self._whole)
        self._typed = plain.typed
        self.keep, self.stride = keep, stride
        self._striding = None if stride is None else _striding(plain, max_length, stride)
        self.max_length = max_length

    def __reduce__(self) -> tuple[Any, ...]:
        # Made again: a pickled tokenizer forgets how it reads special tokens.
        return partial(TextEncoder, keep=self.keep, stride=self.stride), (self._plain, self.max_length)

    def cutting(self, side: str) -> TextEncoder:
        """The same, but that of long texts it drops the end (`right`) or the beginning (`left`)."""
        plain = replace(self._plain, truncation_side=side)
        return TextEncoder(plain, self.max_length, keep=self.keep, stride=self.stride)

    def count(self, text: Text) -> int:
        """Tokens of a whole text, special ones included, however many the model reads."""
        clean = cleaned(text)
        parts = (clean,) if isinstance(clean, str) else clean
        special = int(self._whole.num_special_tokens_to_add(is_pair=len(parts) == 2))
        return special + sum(len(self._whole.encode(part, add_special_tokens=False).ids) for part in parts)

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are."""
        return int(self._whole.get_vocab_size())

    def __call__(self, texts: Sequence[Text], *, places: bool = False) -> list[EncodedText]:
        """Texts and pairs may be mixed. Truncation is longest-first for pairs, as transformers does it.

        With `places`, tokens know where they stand in the text as `cleaned` gives it.
        """
        clean = [cleaned(text) for text in texts]
        encodings = self._encodings(self._cutting, clean, places)
        return [
            self._encoded(text, [each], cut=bool(each.overflowing), places=places)[0]
            for text, each in zip(clean, encodings, strict=True)
        ]

    def parts(self, texts: Sequence[Text], *, places: bool = False) -> list[list[EncodedText]]:
        """What is read of each text at a time. With a stride a text past the limit is windows that overlap, from its beginning
        to its end; a pair is cut all the same, as there is no telling which of its texts should be read in windows."""
        if self._striding is None:
            return [[text] for text in self(texts, places=places)]
        clean = [cleaned(text) for text in texts]
        windowed = iter(self._encodings(self._striding, [text for text in clean if isinstance(text, str)], places))
        cut = iter(self([text for text in clean if not isinstance(text, str)], places=places))
        parts = []
        for text in clean:
            if isinstance(text, str):
                first = next(windowed)
                parts.append(self._encoded(text, [first, *first.overflowing], cut=False, places=places))
            else:
                parts.append([next(cut)])
        return parts

    def _encodings(self, engine: Tokenizer, texts: Sequence[Text], places: bool) -> list[Any]:
        # Offsets cost a third of the time, so they are made only where they are read; nor does the fast way name the tokens.
        encode = engine.encode_batch_fast if self.keep is None and not places else engine.encode_batch
        try:
            return list(encode([self._prepared(text) for text in texts]))
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # the library's own errors, and its panics, which are not even `Exception`s
            raise BadModel(
                f"the tokenizer cannot read a text ({reason(error)[:200]}); save the model's own tokenizer again"
            ) from error

    def _encoded(self, text: Text, encodings: Sequence[Any], *, cut: bool, places: bool) -> list[EncodedText]:
        """One or more encodings out of the same text."""
        # Sought in the whole text: what is cut off may be the rest of a phrase, or show that a word goes on.
        found = [] if self.keep is None else self.keep.find((text,) if isinstance(text, str) else text)
        read = []
        for encoding in encodings:
            ids = np.array(encoding.ids, dtype=np.int64)
            types = np.array(encoding.type_ids, dtype=np.int64) * self._typed
            names, stand = self._names[ids].tolist(), places_of(encoding) if places else None
            read.append(EncodedText(ids, types, names, cut, covered(found, encoding), places=stand))
        return read

    def _prepared(self, text: Text) -> Text:
        if isinstance(text, tuple) and len(text[0]) + len(text[1]) > _LONG_PAIR * self.max_length:
            # The tokenizer builds every combination of both overflows: seconds for two long texts, minutes for longer.
            return self._shortened(*text)
        return text

    def _shortened(self, first: str, second: str) -> tuple[str, str]:
        """Both texts without words that truncation drops whole. The longer stays the longer: an odd token left is its own."""
        one, two = (self._whole.encode(text, add_special_tokens=False) for text in (first, second))
        whole, cut = (_word_end, _head) if self._cuts_ends else (_word_begin, _tail)
        # The first word of a tail may be read otherwise than after a space, and be of more or fewer tokens.
        spare = 0 if self._cuts_ends else _SPARE
        if len(one) > len(two):
            of_two = whole(two, self.max_length + spare)
            of_one = whole(one, max(self.max_length, of_two) + spare)
        else:
            of_one = whole(one, self.max_length + spare)
            of_two = whole(two, max(self.max_length, of_one - 1) + spare)
        return cut(first, one, of_one), cut(second, two, of_two)


def _striding(plain: PlainTokenizer, max_length: int, stride: int) -> Tokenizer:
    """A tokenizer that cuts texts into windows, from the beginning, whichever end is dropped elsewhere."""
    engine = plain.engine()
    room = max_length - engine.num_special_tokens_to_add(is_pair=False)
    if not 0 <= stride < room:
        raise BadConfig(
            f"stride must be at least 0 and below {room}, the tokens max_length {max_length} leaves to a text, got {stride}"
        )
    engine.enable_truncation(max_length, stride=stride)
    return engine


def _names(engine: Tokenizer) -> NDArray[Any]:
    """Of all tokens, by id."""
    known = engine.get_vocab(with_added_tokens=True)
    names = np.full(max(known.values(), default=-1) + 1, "", dtype=object)
    names[list(known.values())] = list(known)
    return names


def _word_end(encoding: Any, index: int) -> int:
    """How many tokens there are up to the end of the word that holds token `index`; all, if there is no such token."""
    if index >= len(encoding):
        return len(encoding)
    words = encoding.word_ids
    end = index + 1
    while end < len(words) and words[end] is not None and words[end] == words[index]:
        end += 1
    return end


def _word_begin(encoding: Any, index: int) -> int:
    """The same counted from the end: how many tokens there are from the beginning of the word that holds that token."""
    if index >= len(encoding):
        return len(encoding)
    words = encoding.word_ids
    begin = len(words) - 1 - index
    while begin > 0 and words[begin - 1] is not None and words[begin - 1] == words[begin]:
        begin -= 1
    return len(words) - begin


def _head(text: str, encoding: Any, count: int) -> str:
    return text if count == len(encoding) else text[: encoding.offsets[count - 1][1]]


def _tail(text: str, encoding: Any, count: int) -> str:
    return text if count == len(encoding) else text[encoding.offsets[len(encoding) - count][0] :]


def protected(batch: Sequence[EncodedText]) -> NDArray[np.bool_] | None:
    """Which of a batch's tokens, end to end, must stay to the end; None where no text says so of any."""
    if all(text.keep is None for text in batch):
        return None
    return np.concatenate([np.zeros(len(text.ids), dtype=np.bool_) if text.keep is None else text.keep for text in batch])


def as_text(item: object, index: int) -> Text:
    """A string or a pair of strings; anything else is refused with its place in the input."""
    if isinstance(item, str):
        return item
    if isinstance(item, tuple | list) and len(item) == 2 and all(isinstance(part, str) for part in item):
        return (item[0], item[1])
    shown = repr(item)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    raise BadInput(f"item {index}: expected a string or a pair of strings, got {type(item).__name__} {shown}")


def windows(texts: Iterable[object]) -> Iterator[list[Text]]:
    """Cut a stream into lists small enough to hold, large enough to sort by length."""
    if isinstance(texts, bytes | bytearray | Mapping):  # these would give numbers, or only the keys
        raise BadInput(f"expected texts, got {type(texts).__name__}; give a string, a pair, or a list or iterator of them")
    stream = enumerate(texts)
    size = WINDOW_TEXTS if isinstance(texts, Sized) else min(FIRST_WINDOW, WINDOW_TEXTS)
    while True:
        window: list[Text] = []
        characters = 0
        for index, item in islice(stream, size):
            text = as_text(item, index)
            window.append(text)
            characters += len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
            if characters >= WINDOW_CHARACTERS:
                break
        if not window:
            return
        yield window
        size = min(2 * size, WINDOW_TEXTS)


def budget_batches(lengths: Sequence[int], budget: int, *, even: int | None = None) -> list[list[int]]:
    """Indices grouped so that texts of like length run together and longest x count stays within `budget` tokens.

    A text longer than the budget runs alone. With `even`, texts of one length that come to so many tokens make batches of
    their own: those need neither padding nor a mask.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True)
    if even is None:
        return _filled(order, lengths, budget)
    batches, mixed = [], []
    for length, group in groupby(order, key=lambda i: lengths[i]):
        alike = list(group)
        if length * len(alike) >= even:
            batches += _filled(alike, lengths, budget)
        else:
            mixed += alike
    return batches + _filled(mixed, lengths, budget)


def _filled(order: Iterable[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Cut a list that is sorted by length, longest first."""
    batches: list[list[int]] = []
    for index in order:
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def cleaned(text: Text) -> Text:
    """The text as tokenizers read it."""
    return _clean(text) if isinstance(text, str) else (_clean(text[0]), _clean(text[1]))


def _clean(text: str) -> str:
    """Half characters (lone surrogates), which no tokenizer can read, become U+FFFD; whole pairs become their character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
