"""Texts and labels out of memory: ordinary shapes are taken for what they are, all others are refused with a typed error."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from adapler.data.arrays import Labels, labels_of, texts_of
from adapler.errors import BadInput

SHORT = [1, 0, 1]
TABLE = [[0, 1, 0], [1, 1, 0], [0, 0, 0]]
NAMED = Labels([["1"], ["0", "1"], []], columns=3)


def frame(columns: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns)


@pytest.mark.parametrize(
    "given",
    [
        SHORT,
        tuple(SHORT),
        iter(SHORT),
        np.asarray(SHORT),
        np.asarray(SHORT, dtype=object),
        np.asarray(SHORT)[:, None],
        [np.int64(1), np.int64(0), np.int64(1)],
        torch.tensor(SHORT),
        list(torch.tensor(SHORT)),
    ],
)
def test_one_column_is_one_label_a_text(given: Any) -> None:
    found = labels_of(given)
    assert found == Labels([1, 0, 1]) and all(type(label) is int for label in found.each)


@pytest.mark.parametrize(
    "given",
    [
        TABLE,
        [tuple(row) for row in TABLE],
        [[bool(value) for value in row] for row in TABLE],
        [[float(value) for value in row] for row in TABLE],
        [np.asarray(row) for row in TABLE],
        [list(np.asarray(row)) for row in TABLE],
        np.asarray(TABLE),
        np.asarray(TABLE, dtype=bool),
        np.asarray(TABLE, dtype=float),
        np.asarray(TABLE, dtype=object),
        torch.tensor(TABLE),
    ],
)
def test_rows_of_0_and_1_are_a_table_however_they_are_held(given: Any) -> None:
    assert labels_of(given) == NAMED


def test_other_lists_hold_names() -> None:
    assert labels_of([["a", "b"], ["b"], []]) == Labels([["a", "b"], ["b"], []])
    assert labels_of([[0, 2], [1, 0]]) == Labels([["0", "2"], ["1", "0"]])  # numbers, not all of them 0 or 1
    assert labels_of([[0, 1], [1]]) == Labels([["0", "1"], ["1"]])  # not of one length
    assert labels_of([["0", "1"], ["1", "0"]]).columns == 0  # names, whatever they look like
    assert labels_of([[0], [1]]) == Labels([["0"], ["1"]])
    assert labels_of([{"a"}, set()]) == Labels([["a"], []])


def test_data_frames_are_read_by_column() -> None:
    table = np.asarray(TABLE)
    flags = frame({"x": table[:, 0].tolist(), "y": table[:, 1].tolist(), "z": table[:, 2].tolist()})
    assert labels_of(flags) == NAMED
    assert labels_of(flags.astype({"x": bool})) == NAMED  # of mixed types
    assert labels_of(frame({"label": ["a", "b"]})) == labels_of(frame({"label": ["a", "b"]})["label"]) == Labels(["a", "b"])
    assert labels_of(frame({"label": [["a"], ["a", "b"]]})["label"]) == Labels([["a"], ["a", "b"]])
    assert texts_of(frame({"text": ["one", "two"]})) == texts_of(frame({"text": ["one", "two"]})["text"]) == ["one", "two"]
    assert texts_of(frame({"first": ["a", "b"], "second": ["c", "d"]})) == [("a", "c"), ("b", "d")]
    with pytest.raises(BadInput, match=r"shape \(1, 3\)"):
        texts_of(frame({"a": ["x"], "b": ["y"], "c": ["z"]}))
    with pytest.raises(BadInput, match="label 1: expected"):
        labels_of(frame({"label": ["a", None]}))
    with pytest.raises(BadInput, match="item 1: expected a string"):
        texts_of(frame({"text": ["a", None]}))


@pytest.mark.parametrize(
    "given", [["a", "b"], np.asarray(["a", "b"]), np.asarray([["a"], ["b"]]), (text for text in "ab"), [np.str_("a"), "b"]]
)
def test_texts_are_plain_strings(given: Any) -> None:
    found = texts_of(given)
    assert found == ["a", "b"] and all(type(text) is str for text in found)


@pytest.mark.parametrize(
    "given",
    [
        [("a", "b"), ("c", "d")],
        [["a", "b"], ["c", "d"]],
        [np.asarray(["a", "b"]), ("c", "d")],
        np.asarray([["a", "b"], ["c", "d"]]),
        np.asarray([["a", "b"], ["c", "d"]], dtype=object),
    ],
)
def test_rows_of_two_are_pairs(given: Any) -> None:
    assert texts_of(given) == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("abc", "expected labels in a list"),
        ({"a": 1}, "expected labels in a list"),
        ({"a", "b"}, "expected labels in a list"),
        (3, "expected labels in a list"),
        (np.asarray(3), "expected labels in a list"),
        (np.asarray([[0, 2], [1, 0]]), "labels came in the shape (2, 2) and are not all 0 or 1"),
        (np.asarray([["a", "b"], ["c", "d"]]), "labels came in the shape (2, 2) and are not all 0 or 1"),
        (np.zeros((2, 2, 2)), "labels came in the shape (2, 2, 2)"),
        ([[0.2, 0.8], [0.5, 0.5]], "label 0: expected a name, a number or a list of names, got list [0.2, 0.8]"),
        (["a", None], "label 1: expected a name, a number or a list of names, got null"),
        ([1.0, float("nan")], "label 1: expected"),
        ([["a"], [None]], "label 1: expected"),
        ([object()], "label 0: expected"),
    ],
)
def test_labels_of_another_kind_are_refused(given: Any, said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        labels_of(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("a text", "expected texts in a list"),
        ({"text": ["a"]}, "expected texts in a list"),
        (np.asarray([["a", "b", "c"]]), "texts came in the shape (1, 3); give one column of texts, or two columns of pairs"),
        (np.zeros((2, 2)), "item 0: expected a string or a pair of strings"),
        ([["a", "b", "c"]], "item 0: expected a string or a pair of strings"),
    ],
)
def test_texts_of_another_kind_are_refused(given: Any, said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        texts_of(given)
