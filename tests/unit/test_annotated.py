"""Annotated documents: reading, window rules, and texts of chosen words."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapler.data.annotated import Cutter, Document, only_words, read_documents, whole_spans
from adapler.data.rationales import NO_WORD, SpecialIds, chunk_windows
from adapler.data.text import TextEncoder
from adapler.errors import BadConfig, BadInput
from tests.tiny import WORDS, tiny_tokenizer

LIMIT = 40


def made(count: int = 30, words: int = 120, seed: int = 0, pair: str | None = None) -> list[Document]:
    """Documents with spans of up to 8 words marked, some words of several pieces."""
    random = np.random.default_rng(seed)
    documents = []
    for number in range(count):
        text = [word + str(random.choice(["", "ing", "ness", "xyz"])) for word in random.choice(WORDS, words)]
        rationale, place = [0] * words, 0
        for evidence in range(1, 5):
            place += int(random.integers(1, 30))
            end = min(words, place + int(random.integers(1, 9)))
            rationale[place:end] = [evidence] * max(0, end - place)
            place = end
        documents.append(Document(f"row {number}", tuple(text), tuple(rationale), number % 2, pair))
    return documents


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def check_spans(cut: Callable[[list[int], list[int], int], list[tuple[int, int]]]) -> None:
    random = np.random.default_rng(3)
    for _ in range(300):
        sizes = random.integers(1, 4, 60).tolist()
        marks = np.repeat(random.integers(0, 3, 15), 4)[:60].tolist()
        room = int(random.integers(8, 30))
        spans = cut(sizes, marks, room)
        assert [start for start, _ in spans[1:]] == [end for _, end in spans[:-1]] and (spans[0][0], spans[-1][1]) == (0, 60)
        for start, end in spans:
            assert sum(sizes[start:end]) <= room
        for start, end in spans[:-1]:
            if marks[end - 1] == marks[end] != 0:  # inside a rationale: only if that fills the window from its beginning
                assert len(set(marks[start:end])) == 1 and sum(sizes[start : end + 1]) > room


def test_whole_windows_split_no_rationale_that_fits() -> None:
    check_spans(whole_spans)


def test_windows_that_do_not_look_at_the_marks_would_be_noticed() -> None:
    with pytest.raises(AssertionError):
        check_spans(lambda sizes, marks, room: whole_spans(sizes, [0] * len(marks), room))


def test_a_rationale_longer_than_a_window_begins_one_and_is_cut_where_it_is_full() -> None:
    assert whole_spans([1] * 10, [0, 0, 1, 1, 1, 1, 1, 1, 1, 0], 4) == [(0, 2), (2, 6), (6, 10)]
    assert whole_spans([1] * 6, [0, 0, 0, 1, 1, 0], 4) == [(0, 3), (3, 6)]
    assert whole_spans([1] * 6, [1, 1, 1, 1, 2, 2], 4) == [(0, 4), (4, 6)], "two evidences side by side may be parted"
    assert whole_spans([9, 1], [0, 1], 4) == [(0, 1), (1, 2)], "a word longer than a window has one to itself"


def test_windows_of_whole_words_carry_words_and_marks_of_the_document() -> None:
    documents = made()
    cut = Cutter(tiny_tokenizer(), LIMIT)(documents, [0] * len(documents))
    encoder = TextEncoder(tiny_tokenizer(), 512)
    assert cut.split == 0 and cut.unmarked > 0
    for window in cut.windows:
        assert len(window.text.ids) <= LIMIT and window.annotated.any() and window.text.position is None
        assert window.word_of[0] == NO_WORD == window.word_of[-1]
        assert np.unique(window.word_of[1:-1]).tolist() == list(range(len(window.annotated)))
        words = documents[window.document].words
        read = encoder([" ".join(words)])[0].ids[1:-1].tolist()
        inside = window.text.ids[1:-1].tolist()
        assert any(read[i : i + len(inside)] == inside for i in range(len(read))), "the same tokens as in the whole text"
    marked = sum(int(window.annotated.sum()) for window in cut.windows)
    assert marked == sum(mark > 0 for document in documents for mark in document.rationale), "no marked word is lost"


def test_chunks_are_the_authors_windows_without_their_padding() -> None:
    tokenizer, documents = tiny_tokenizer(), made(8)
    cut = Cutter(tokenizer, LIMIT, "chunks")(documents, [1] * len(documents))
    special = SpecialIds(tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id)

    def tokenize(word: str) -> list[int]:
        return list(tokenizer.encode(word, add_special_tokens=False))

    theirs = [
        window
        for number, document in enumerate(documents)
        for window in chunk_windows(document.words, document.rationale, 1, number, tokenize, special, LIMIT)
    ]
    assert len(theirs) == len(cut.windows) and cut.split > 0, "the case has a rationale that a border runs through"
    for own, window in zip(cut.windows, theirs, strict=True):
        real = sum(window.attention_mask)
        assert own.text.ids.tolist() == window.input_ids[:real] and own.document == window.example_id
        assert own.word_of.tolist() == window.word_index[:real]
        for place in range(real):
            if window.rationale[place] > 0:
                assert own.annotated[own.word_of[place]]


def test_the_second_text_of_a_pair_stays_whole_in_every_window() -> None:
    tokenizer, documents = tiny_tokenizer(), made(4, pair="what is it ? || a film")
    cut = Cutter(tokenizer, LIMIT)(documents, [0] * 4)
    answer = tokenizer.encode("what is it ? || a film", add_special_tokens=False)
    for window in cut.windows:
        behind = [*answer, tokenizer.sep_token_id]
        assert window.text.ids[-len(behind) :].tolist() == behind and len(window.text.ids) <= LIMIT
        assert (window.word_of[-len(behind) :] == NO_WORD).all()
        alone = only_words(window, np.zeros_like(window.annotated))
        assert alone.ids.tolist() == [tokenizer.cls_token_id, tokenizer.sep_token_id, *answer, tokenizer.sep_token_id]
    with pytest.raises(BadConfig, match="whole"):
        Cutter(tokenizer, LIMIT, "chunks")(documents, [0] * 4)
    with pytest.raises(BadInput, match="row 0"):
        Cutter(tokenizer, 10)(documents, [0] * 4)


def test_only_the_chosen_words_stay_at_their_places_or_closed_up() -> None:
    document = Document("", ("a", "boring", "actings", "film"), (0, 1, 1, 0), 0)
    (window,) = Cutter(tiny_tokenizer(), LIMIT)([document], [0]).windows
    assert window.text.tokens == ["[CLS]", "a", "boring", "acting", "##s", "film", "[SEP]"]
    kept = only_words(window, window.annotated)
    assert kept.tokens == ["[CLS]", "boring", "acting", "##s", "[SEP]"]
    assert kept.position is not None and kept.position.tolist() == [0, 2, 3, 4, 6]
    assert only_words(window, window.annotated, "consecutive").position is None


def test_documents_are_read_and_those_without_annotation_counted(tmp_path: Path) -> None:
    rows = [
        {"words": ["a", "b"], "rationale": [0, 1], "label": "pos", "text": "a b"},
        {"words": ["c"], "rationale": None, "label": "neg", "text": "c"},
    ]
    file = tmp_path / "test.jsonl.gz"
    with gzip.open(file, "wt") as stream:
        stream.write("".join(json.dumps(row) + "\n" for row in rows))
    for source in (str(tmp_path), str(file)):
        (document,), without = read_documents(source, "test")
        assert (document.words, document.rationale, document.label, without) == (("a", "b"), (0, 1), "pos", 1)
        assert document.labelled[1] == "a b"
    with pytest.raises(BadInput, match="no train split"):
        read_documents(str(tmp_path), "train")
    with pytest.raises(BadInput, match="nowhere"):
        read_documents(str(tmp_path / "nowhere"), "test")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"words": ["a", "b"], "rationale": [1], "label": 0}, "2 words, but 1 marks"),
        ({"words": "a b", "rationale": [1], "label": 0}, "list of strings"),
        ({"words": ["a"], "rationale": ["x"], "label": 0}, "list of numbers"),
        ({"words": ["a"], "rationale": [1], "label": None}, "expected a label"),
        ({"words": ["a"], "label": 0}, "no column 'rationale'"),
    ],
)
def test_a_wrong_row_is_told_with_its_place(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        read_documents(write(tmp_path / "d.jsonl", [row]), "test")
