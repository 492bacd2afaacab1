"""Texts and labels as people hold them in memory: lists, arrays, columns of data frames. Never sees a model.

No library of data frames is named here: whatever numpy takes for an array is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from adapler.data.files import described
from adapler.data.text import Text, as_text
from adapler.errors import BadInput

Many = Iterable[Any]
"""A list, an array, a column of a data frame, or a whole frame."""


@dataclass(frozen=True)
class Labels:
    """Labels of texts in their order."""

    each: list[Any]
    """A name, a number, or a list of names, where a text may have any number of labels."""
    columns: int = 0
    """Where they came as a table of 0 and 1, as scikit-learn writes several: how many columns, whose numbers are the names."""


def texts_of(given: Many) -> list[Text]:
    """Strings, and pairs where there are two columns or rows of two."""
    shape, rows = _rows(given, "texts")
    if len(shape) > 2 or shape[1:] > (2,):
        raise BadInput(f"texts came in the shape {shape}; give one column of texts, or two columns of pairs")
    return [as_text(row, index) for index, row in enumerate(rows)]


def labels_of(given: Many) -> Labels:
    """One column is a label a text. Several are a table of 0 and 1, and so are rows of 0 and 1 in a list, if all are of one
    length and hold more than one; other lists hold names."""
    shape, rows = _rows(given, "labels")
    if _is_table(rows):
        names = [[str(column) for column, there in enumerate(row) if there] for row in rows]
        return Labels(names, columns=len(rows[0]))
    if len(shape) > 1:
        raise BadInput(
            f"labels came in the shape {shape} and are not all 0 or 1; give one column, or a table of 0 and 1 with a column "
            "for each label, or a list of names a text"
        )
    return Labels([_label(row, index) for index, row in enumerate(rows)])


def _rows(given: Many, what: str) -> tuple[tuple[int, ...], list[Any]]:
    """Shape and rows, in plain Python; a list has one dimension, whatever its items are."""
    single = isinstance(given, str | bytes | bytearray | Mapping | Set) or not isinstance(given, Iterable)
    table = np.asarray(given) if hasattr(given, "__array__") and not single else None
    if single or (table is not None and table.ndim == 0):
        raise BadInput(f"expected {what} in a list, an array or a column of a data frame, got {described(given)}")
    if table is None:
        rows = [_plain(row) for row in given]
        return (len(rows),), rows
    if table.ndim == 2 and table.shape[1] == 1:
        table = table[:, 0]
    return table.shape, [_plain(row) for row in table.tolist()]


def _plain(value: Any) -> Any:
    """What an array or a tensor holds, as Python's own; a tuple as a list."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def _is_table(rows: Sequence[Any]) -> bool:
    if not rows or not all(isinstance(row, list) for row in rows):
        return False
    width = len(rows[0])
    return width > 1 and all(len(row) == width and all(map(_is_flag, row)) for row in rows)


def _is_flag(value: Any) -> bool:
    return isinstance(value, int | float | np.generic) and bool(value in (0, 1))


def _label(value: Any, index: int) -> Any:
    if isinstance(value, list | Set):
        names = [_plain(name) for name in value]
        if all(isinstance(name, str | int) for name in names):
            return [str(name) for name in names]
    elif isinstance(value, str | int | float) and value == value:  # NaN, which stands for a missing one, is not
        return value
    raise BadInput(f"label {index}: expected a name, a number or a list of names, got {described(value)}")
