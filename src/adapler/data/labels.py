"""Labels as data writes them, as numbers: one of several names, any number of several, or a quantity. Cells that lack their
text or label are refused here, whatever they were read from."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from adapler.data.files import described
from adapler.data.tasks import Task
from adapler.data.text import Text
from adapler.errors import BadInput
from adapler.problems import MULTI, REGRESSION, SINGLE, Label, Problem

Labelled = tuple[str, Text, Any]
"""Where the label stands (file, line and column, for errors), the row's text, its label as written."""
SEPARATOR = "|"
"""Between the labels of a text in a file whose cells cannot hold lists."""
_MISSING = ("", "nan")
"""How tables write a label that is not there, in any case and between spaces."""
_REMEDY = "fill it in or leave the row out"


@dataclass(frozen=True)
class Examples:
    """Texts and their labels, as numbers."""

    texts: list[Text]
    labels: list[Label]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def numbers(self) -> list[int]:
        """The labels' numbers, where every text has one label."""
        return [label for label in self.labels if isinstance(label, int)]

    def only(self, indices: Iterable[int]) -> Examples:
        """The chosen examples, in the order given."""
        chosen = list(indices)
        return Examples([self.texts[i] for i in chosen], [self.labels[i] for i in chosen])


def check_text(where: str, text: Any) -> None:
    """Refuse a cell that holds no text to learn from or to be measured on: an empty one is how tables write a missing value."""
    if not isinstance(text, str):
        raise BadInput(f"{where} holds {described(text)}, expected a string; {_REMEDY}")
    if not text.strip():
        raise BadInput(f"{where} is empty, expected a text; {_REMEDY}")


def check_label(where: str, label: Any, problem: Problem | None) -> None:
    """Refuse a cell that is no label: a list of names is one, nothing at all only where a text may have no label."""
    if not _is_label(label, problem):
        found = f"holds {described(label)}" if label != "" else "is empty"
        raise BadInput(f"{where} {found}, expected a label; {_REMEDY}")


def problem_seen(rows: Sequence[Labelled]) -> Problem:
    """What the labels look like: lists, fractions, or else names."""
    lists = sum(isinstance(label, list) for _, _, label in rows)
    if lists == len(rows) and rows:
        return MULTI
    if lists:
        where = next(where for where, _, label in rows if not isinstance(label, list))
        raise BadInput(f"{where} holds one label where others hold a list; write lists throughout")
    numbers = [_as_float(label) for _, _, label in rows]
    fractions = any(number is not None and not number.is_integer() for number in numbers)
    return REGRESSION if fractions and None not in numbers else SINGLE


def label_names(
    train: Sequence[Labelled], problem: Problem, task: Task | None, column: str
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Every label of train as written -> its number, and the names in order of number."""
    found = labels_seen(train, problem)
    if problem == REGRESSION:
        return {}, (column,)
    numbers = [_as_int(label) for label in found]
    if found and all(number is not None for number in numbers):
        ordered: list[str] = sorted(found, key=lambda label: _as_int(label) or 0)
        if task and task.labels and set(numbers) <= set(range(len(task.labels))):
            return {label: _as_int(label) or 0 for label in ordered}, task.labels
    else:
        ordered = sorted(found)
        if task and set(ordered) <= set(task.labels):
            return {label: number for number, label in enumerate(task.labels)}, task.labels
    return {label: number for number, label in enumerate(ordered)}, tuple(ordered)


def labels_seen(train: Sequence[Labelled], problem: Problem) -> set[str]:
    """Every label of train as written. Too few to learn from are refused, also where a task or a model knows more of them."""
    if not train:
        raise BadInput("the train split is empty; expected labelled texts")
    found = {key for _, _, label in train for key in label_keys(label, problem)}
    where = train[0][0]
    if not found:
        raise BadInput(f"{where} holds no label, as do all other rows; there is nothing to learn")
    if problem == SINGLE and len(found) < 2:
        raise BadInput(f"{where} holds {found.pop()!r}, as do all other rows; a classifier needs at least two labels")
    return found


def label_numbers(names: Sequence[str]) -> dict[str, int]:
    """Labels as data may write them, by name or by number -> their numbers, for a model that knows their names."""
    numbers = {name: number for number, name in enumerate(names)}
    return numbers | {str(number): number for number in range(len(names)) if str(number) not in numbers}


def numbered(
    rows: Sequence[Labelled], values: dict[str, int], problem: Problem = SINGLE, where_known: str = "train"
) -> Examples:
    """Texts with their labels as numbers."""
    return Examples([text for _, text, _ in rows], [_label(row, values, problem, where_known) for row in rows])


def label_keys(label: Any, problem: Problem) -> Iterator[str]:
    """The names a label holds. They are compared as text, so that 1 in one file and "1" in another are the same."""
    if problem == MULTI:
        if isinstance(label, str):
            label = [part for part in (part.strip() for part in label.split(SEPARATOR)) if part]
        yield from (_key(each) for each in ([] if label is None else label if isinstance(label, list) else [label]))
    else:
        yield _key(label)


def _label(row: Labelled, values: dict[str, int], problem: Problem, where_known: str) -> Label:
    where, _, label = row
    if problem == REGRESSION:
        number = _as_float(label)
        if number is None or not math.isfinite(number):
            raise BadInput(f"{where} holds {label!r}, which is no number, and the labels are quantities")
        return number
    keys = list(label_keys(label, problem))
    for key in keys:
        if key not in values:
            raise BadInput(f"{where} holds {key!r}, a label not known to {where_known}, which has {', '.join(values)}")
    if problem == SINGLE:
        return values[keys[0]]
    given = {values[key] for key in keys}
    return tuple(float(number in given) for number in range(max(values.values()) + 1))


def _is_label(label: Any, problem: Problem | None) -> bool:
    if label is None:
        return problem == MULTI
    if isinstance(label, list):
        if problem not in (None, MULTI) or not all(isinstance(each, str | int) for each in label):
            return False
        problem = MULTI
    elif not isinstance(label, str | int | float):
        return False
    return all(key.strip().lower() not in _MISSING for key in label_keys(label, problem or SINGLE))


def _key(label: Any) -> str:
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _as_int(label: str) -> int | None:
    with contextlib.suppress(ValueError):
        return int(label)
    return None


def _as_float(label: Any) -> float | None:
    with contextlib.suppress(ValueError, TypeError):
        return float(label)
    return None
