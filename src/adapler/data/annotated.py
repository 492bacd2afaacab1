"""Documents whose words people marked as the reason of the label, read and cut into windows. Never sees a model.

A file has a row a document: `words` (a list), `rationale` (0 or the number of an evidence for each word; null where nobody
marked any), `label`, and for pairs `text_pair`, which is not annotated and stays whole in every window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adapler.data.files import PAIR_COLUMN, Table, cell, open_table
from adapler.data.labels import Labelled, check_label, check_text
from adapler.data.load import split_files
from adapler.data.rationales import NO_WORD, SpecialIds, chunk_windows
from adapler.data.text import EncodedText, PlainTokenizer
from adapler.errors import BadConfig, BadInput
from adapler.problems import SINGLE

Rule = Literal["whole", "chunks"]
"""How a long document is cut: `whole` cuts between words and not inside a rationale, `chunks` as the authors do."""
Positions = Literal["original", "consecutive"]


@dataclass(frozen=True)
class Document:
    """One text whose words are marked."""

    where: str
    words: tuple[str, ...]
    rationale: tuple[int, ...]
    label: Any
    """As the file writes it."""
    pair: str | None = None

    @property
    def labelled(self) -> Labelled:
        """Without its marks."""
        text = " ".join(self.words)
        return cell(self.where, "label"), text if self.pair is None else (text, self.pair), self.label


@dataclass(frozen=True)
class Window:
    """A part of a document that a model reads at once."""

    document: int
    """Place of its document among those that were cut."""
    label: int
    text: EncodedText
    word_of: NDArray[np.int64]
    """Per token: its word, counted from 0 in the window; NO_WORD for special tokens and the second text of a pair."""
    annotated: NDArray[np.bool_]
    """Per word, whether people marked it."""
    words: tuple[int, int] | None = None
    """Which of its document's words, [first, last); None where it may begin inside one."""


@dataclass(frozen=True)
class Cut:
    """Documents as windows."""

    windows: list[Window]
    unmarked: int
    """Windows left out because they hold no marked word."""
    split: int
    """Rationales that a border runs through."""


def read_documents(source: str, split: str) -> tuple[list[Document], int]:
    """Annotated documents of a folder's split, or of one file, and how many rows had no annotation (they are left out)."""
    path = Path(source)
    if path.is_dir():
        files = split_files(path)
        if split not in files:
            raise BadInput(f"{path}: no {split} split; there are: {', '.join(files) or 'none'}")
        path = files[split]
    elif not path.is_file():
        raise BadInput(f"no file or folder {source!r}; give documents with the columns words, rationale and label")
    documents, without = [], 0
    with open_table(path) as table:
        for column in ("words", "rationale", "label"):
            if column not in table.columns:
                raise table.bad(
                    f"no column {column!r}; annotated documents have words (a list), rationale (0 or 1 each), label"
                )
        wanted = ["words", "rationale", "label", *([PAIR_COLUMN] if PAIR_COLUMN in table.columns else [])]
        for place, (words, marks, label, *pair) in table.rows(wanted):
            if marks is None:
                without += 1
                continue
            _check(table, place, words, marks)
            check_label(cell(table.where(place), "label"), label, SINGLE)
            for text in pair:
                check_text(cell(table.where(place), PAIR_COLUMN), text)
            documents.append(Document(table.where(place), tuple(words), tuple(map(int, marks)), label, *pair))
    return documents, without


def text_groups(documents: Sequence[Document]) -> list[int]:
    """Of each document the number of its words among those that differ: several questions may ask about one text."""
    numbers: dict[tuple[str, ...], int] = {}
    return [numbers.setdefault(document.words, len(numbers)) for document in documents]


def _check(table: Table, place: int, words: Any, marks: Any) -> None:
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise table.bad("column 'words' must hold a list of strings", place)
    if not isinstance(marks, list) or not all(isinstance(mark, int) and mark >= 0 for mark in marks):
        raise table.bad("column 'rationale' must hold a list of numbers, 0 for a word that is not marked", place)
    if len(words) != len(marks):
        raise table.bad(f"{len(words)} words, but {len(marks)} marks; expected one a word", place)
    check_text(cell(table.where(place), "words"), " ".join(words))


class Cutter:
    """Cuts documents into windows for one tokenizer and maximum length."""

    def __init__(self, tokenizer: Any, max_length: int, rule: Rule = "whole") -> None:
        plain = PlainTokenizer.of(tokenizer)
        self._engine, self._framing, self._typed = plain.engine(), plain.engine(), plain.typed
        self._framing.enable_truncation(max_length, strategy="only_first")  # for a single word longer than a window
        self._frame = self._engine.encode("").ids
        self.max_length, self.rule = max_length, rule
        if rule == "chunks" and len(self._frame) != 2:
            raise BadConfig("the window rule `chunks` puts one token in front and one behind; use `whole` with this tokenizer")

    def __call__(self, documents: Sequence[Document], labels: Sequence[int], *, most: int | None = None) -> Cut:
        """Windows with a marked word, at most `most` of each document, from its beginning."""
        windows: list[Window] = []
        unmarked = split = 0
        cut = self._whole if self.rule == "whole" else self._chunks
        for number, (document, label) in enumerate(zip(documents, labels, strict=True)):
            made, borders = cut(number, document, label)
            marked = [window for window in made if window.annotated.any()]
            windows += marked[:most]
            unmarked += len(made) - len(marked)
            split += borders
        return Cut(windows, unmarked, split)

    def _whole(self, number: int, document: Document, label: int) -> tuple[list[Window], int]:
        used = len(self._engine.encode("", document.pair).ids)
        if used >= self.max_length:
            raise BadInput(
                f"{document.where}: the second text takes {used} of {self.max_length} tokens, so none is left for the words; "
                f"raise max_length or shorten it"
            )
        whole = self._engine.encode(" ".join(document.words), add_special_tokens=False)
        sizes = np.bincount(_words_of(whole, document.words), minlength=len(document.words))
        spans = whole_spans(sizes.tolist(), document.rationale, self.max_length - used)
        windows = []
        for start, end in spans:
            words = document.words[start:end]
            encoding = self._framing.encode(" ".join(words), document.pair)
            text = EncodedText(
                ids=np.array(encoding.ids, dtype=np.int64),
                types=np.array(encoding.type_ids, dtype=np.int64) * self._typed,
                tokens=encoding.tokens,
                truncated=bool(encoding.overflowing),
            )
            annotated = np.array(document.rationale[start:end]) > 0
            windows.append(Window(number, label, text, _words_of(encoding, words), annotated, (start, end)))
        marks = document.rationale
        return windows, sum(marks[end - 1] == marks[end] != 0 for _, end in spans[:-1])

    def _chunks(self, number: int, document: Document, label: int) -> tuple[list[Window], int]:
        if document.pair is not None:
            raise BadConfig("the window rule `chunks` is the authors', for single documents; use `whole` for pairs")
        first, last = self._frame
        special = SpecialIds(cls=first, sep=last, pad=0)

        def tokenize(word: str) -> Sequence[int]:
            return list(self._engine.encode(word, add_special_tokens=False).ids)

        windows = []
        for cut in chunk_windows(document.words, document.rationale, label, number, tokenize, special, self.max_length):
            length = sum(cut.attention_mask)
            word_of = np.array(cut.word_index[:length], dtype=np.int64)
            marks = np.zeros(word_of.max() + 1, dtype=np.bool_)
            marks[word_of[np.array(cut.rationale[:length]) > 0]] = True
            ids = np.array(cut.input_ids[:length], dtype=np.int64)
            names = [str(self._engine.id_to_token(token)) for token in cut.input_ids[:length]]
            windows.append(Window(number, label, EncodedText(ids, np.zeros_like(ids), names, False), word_of, marks))
        evidence = [mark for word, mark in zip(document.words, document.rationale, strict=True) for _ in tokenize(word)]
        size = self.max_length - 2
        return windows, sum(evidence[i - 1] == evidence[i] != 0 for i in range(size, len(evidence), size))


def whole_spans(sizes: Sequence[int], marks: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Word ranges [start, end) of windows that hold up to `room` tokens and do not end inside a rationale.

    A rationale is a run of words with the same mark. One that is longer than a window begins one, and is cut where it is full.
    """
    spans, start = [], 0
    while start < len(sizes):
        end, used = start, 0
        while end < len(sizes) and (end == start or used + sizes[end] <= room):
            used += sizes[end]
            end += 1
        if end < len(sizes) and marks[end] == marks[end - 1] != 0:
            first = end - 1
            while first > start and marks[first - 1] == marks[end]:
                first -= 1
            end = first if first > start else end
        spans.append((start, end))
        start = end
    return spans


def only_words(window: Window, chosen: NDArray[np.bool_], positions: Positions = "original") -> EncodedText:
    """The window's text with the chosen words alone; special tokens and the second text of a pair stay.

    At `original` positions each token stands where it stood in the window, else they are counted anew.
    """
    stays = (window.word_of == NO_WORD) | np.append(chosen, True)[window.word_of]
    places = np.flatnonzero(stays)
    text = window.text
    return EncodedText(
        ids=text.ids[places],
        types=text.types[places],
        tokens=[text.tokens[place] for place in places],
        truncated=text.truncated,
        position=places if positions == "original" else None,
    )


def _words_of(encoding: Any, words: Iterable[str]) -> NDArray[np.int64]:
    """Word of each token of an encoding of the words with a space between them, by the place of its last character."""
    ends = np.cumsum([len(word) + 1 for word in words])  # where the next word begins
    last = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[:, 1] - 1
    own = np.array([number == 0 for number in encoding.sequence_ids], dtype=np.bool_)
    found = np.searchsorted(ends, np.maximum(last, 0), side="right")
    return np.where(own, found, NO_WORD)
