"""How a row becomes an answer: the one definition that every engine and every output format shares. Columns in, columns out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adapler.data.text import WINDOW_TEXTS
from adapler.scale.reading import Bad, Rows

if TYPE_CHECKING:
    from adapler.classifier import Classifier
    from adapler.prediction import Prediction

PLACE_COLUMNS = ("file", "row")
"""Where a text was: its file, and its line or row in it, from 1."""
TOKEN_COLUMNS = ("tokens", "kept")
COUNTED = ("n_tokens", "tokens_kept_last", "flops", "flops_full", "truncated")
_TOLD = 256  # texts between two tellings of progress


def answer_columns(labels: Sequence[str], *, tokens: bool = False) -> list[str]:
    """The columns of an answer, in order."""
    return ["label", "score", *COUNTED, *(f"score_{label}" for label in labels), *(TOKEN_COLUMNS if tokens else ())]


def answer_values(prediction: Prediction, labels: Sequence[str], *, tokens: bool = False) -> list[Any]:
    """A prediction in these columns."""
    counts = (len(prediction.tokens), prediction.lengths[-1], prediction.flops, prediction.flops_full, prediction.truncated)
    scores = (prediction.scores[label] for label in labels)
    explained = (prediction.tokens, prediction.kept) if tokens else ()
    return [prediction.label, prediction.score, *counts, *scores, *explained]


@dataclass
class Answers:
    """Of one part, column by column, rows in the order they were read."""

    columns: dict[str, list[Any]]
    carried: Any
    """As in `Rows`, for the rows that have an answer."""
    bad: list[Bad] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return len(self.columns["row"])

    def total(self, column: str) -> int:
        """Sum of a column of counts."""
        return int(sum(self.columns[column]))


def answer(
    classifier: Classifier, name: str, rows: Rows, *, tokens: bool = False, told: Callable[[int], None] = lambda _: None
) -> Answers:
    """Answer a part of the file `name`. Depends on the part alone, so whoever does it again gets the same.

    `told` hears every now and then how many more rows are done. An answer that is not a number is a bad row.
    """
    names = answer_columns(classifier.labels, tokens=tokens)
    values: list[list[Any]] = []
    good: list[int] = []
    bad = list(rows.bad)
    silent = len(bad)
    windows = range(0, len(rows.texts), WINDOW_TEXTS)  # of full size from the first on, and no more answers at a time
    found = (prediction for start in windows for prediction in classifier(rows.texts[start : start + WINDOW_TEXTS]))
    for index, prediction in enumerate(found):
        if math.isfinite(prediction.score):
            good.append(index)
            values.append(answer_values(prediction, classifier.labels, tokens=tokens))
        else:
            bad.append(Bad(rows.places[index], f"the model's answer is {prediction.score}, expected a number"))
        silent += 1
        if silent >= _TOLD:
            told(silent)
            silent = 0
    told(silent)
    columns: dict[str, list[Any]] = {"file": [name] * len(good), "row": [rows.places[index] for index in good]}
    columns |= {column: [row[place] for row in values] for place, column in enumerate(names)}
    carried = rows.carried
    if len(good) < len(rows.texts):
        carried = [carried[index] for index in good] if isinstance(carried, list) else carried.take(good)
    return Answers(columns, carried, sorted(bad, key=lambda each: each.place))
