"""Models and data that live in memory: a transformers classifier reduced in one call, and an estimator as in scikit-learn.

classifier = adapler.reduce(model, tokenizer, (texts, labels), target_speedup=3)
estimator = adapler.Estimator(target_speedup=3).fit(texts, labels)
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score, r2_score

from adapler.checkpoint import quiet
from adapler.classifier import Classifier
from adapler.config import build_config
from adapler.data.arrays import Labels, Many, labels_of, texts_of
from adapler.data.files import PAIR_COLUMN, TEXT_COLUMN
from adapler.data.labels import label_keys
from adapler.data.load import SPLITS
from adapler.data.text import Text
from adapler.errors import BadConfig, BadInput, BadModel
from adapler.problems import MULTI, REGRESSION, SINGLE
from adapler.training.run import GIVEN, train
from adapler.training.session import Progress

Split = tuple[Many, Many]
"""Texts (or pairs) and their labels, as `arrays.py` reads them."""


def reduce(
    model: Any,
    tokenizer: Any,
    data: str | Path | Split | Mapping[str, Split],
    *,
    out: str | Path | None = None,
    target_speedup: float | None = None,
    max_loss: float | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Classifier:
    """A faster classifier out of a transformers model; what it loses is measured against that model, which is left as it is.

    `data` is what `adapler train --data` takes, or texts and labels, or those by split (`train`, `dev`, `test`). A model that
    is trained for the data's labels skips phase 1. `settings` are training's, nested. The run and its report stay in `out`
    where one is given, and go on there after an interruption.
    """
    with _folder(out) as run:
        given = run / GIVEN
        with quiet():
            model.save_pretrained(given / "model")
            tokenizer.save_pretrained(given / "model")
        source = str(data) if isinstance(data, str | Path) else str(_written(_splits(data), given / "data"))
        steer = {"target_speedup": target_speedup, "max_loss": max_loss}
        asked = {
            "model": str(given / "model"),
            "data": {"source": source},
            "steer": {key: value for key, value in steer.items() if value is not None},
        }
        train(build_config(settings or {}, asked), run, progress)
        return Classifier.from_pretrained(run)


class Estimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Three phases behind `fit`, `predict` and `predict_proba`, for people with arrays of texts and labels."""

    def __init__(
        self,
        model: str = "minilm",
        target_speedup: float | None = None,
        max_loss: float | None = None,
        settings: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
        seed: int = 0,
    ) -> None:
        """`settings` are training's, nested: `{"finetune": {"epochs": 2}}`. The run stays in `out`, where one is given."""
        self.model = model
        self.target_speedup = target_speedup
        self.max_loss = max_loss
        self.settings = settings
        self.out = out
        self.seed = seed

    def fit(self, X: Many, y: Many) -> Estimator:  # noqa: N803 (scikit-learn's name)
        """Learn from texts (or pairs) and their labels; a tenth of them is set aside to choose by."""
        splits = _splits((X, y))
        with _folder(self.out) as run:
            steer = {"target_speedup": self.target_speedup, "max_loss": self.max_loss}
            asked = {
                "model": self.model,
                "data": {"source": str(_written(splits, run / GIVEN / "data"))},
                "steer": {key: value for key, value in steer.items() if value is not None},
                "run": {"seed": self.seed},
            }
            self.report_ = train(build_config(self.settings or {}, asked), run)
            self.classifier_ = Classifier.from_pretrained(run)
        _, labels = splits["train"]
        written = {key: label for label in labels.each if not isinstance(label, list) for key in label_keys(label, SINGLE)}
        names = range(labels.columns) if labels.columns else [written.get(name, name) for name in self.classifier_.labels]
        self.classes_ = np.asarray(list(names))
        return self

    def predict(self, X: Many) -> NDArray[Any]:  # noqa: N803
        """The label of each text; of several labels a 0 and 1 for each (texts, labels); a quantity as it is."""
        answers = self._fitted(X)
        problem = self.classifier_.runtime.problem_type
        if problem == REGRESSION:
            return np.asarray([answer.score for answer in answers])
        if problem == MULTI:
            return np.asarray([[int(str(label) in answer.labels) for label in self.classes_] for answer in answers])
        numbers = [self.classifier_.labels.index(answer.label) for answer in answers]
        return np.asarray(self.classes_[numbers])

    def predict_proba(self, X: Many) -> NDArray[np.float64]:  # noqa: N803
        """Probability of every label: (texts, labels), in the order of `classes_`."""
        return np.asarray([[answer.scores.get(str(label), 0.0) for label in self.classes_] for answer in self._fitted(X)])

    def score(self, X: Many, y: Many, sample_weight: Many | None = None) -> float:  # noqa: N803
        """Share of right answers (of several labels, of rows that are right as a whole); of quantities, R²."""
        predicted, labels = self.predict(X), labels_of(y)
        problem = self.classifier_.runtime.problem_type
        right = self._table(labels) if problem == MULTI else labels.each
        measure = r2_score if problem == REGRESSION else accuracy_score
        return float(measure(right, predicted, sample_weight=sample_weight))

    def _table(self, labels: Labels) -> NDArray[np.int64]:
        """As `predict` gives several labels: 0 and 1 for each of `classes_`."""
        known = [str(name) for name in (range(labels.columns) if labels.columns else self.classes_)]
        rows = [row if isinstance(row, list) else [str(row)] for row in labels.each]
        unknown = sorted({name for row in rows for name in row} - set(known))
        if unknown or len(known) != len(self.classes_):
            found = repr(unknown[0]) if unknown else f"a table of {len(known)} columns"
            raise BadInput(f"the labels hold {found}, the estimator has learnt {', '.join(map(str, self.classes_))}")
        return np.asarray([[int(name in row) for name in known] for row in rows])

    def _fitted(self, texts: Many) -> Any:
        if not hasattr(self, "classifier_"):
            raise BadModel("the estimator has learnt nothing yet; call fit first")
        return self.classifier_(texts_of(texts))


@contextmanager
def _folder(out: str | Path | None) -> Iterator[Path]:
    """The run's folder, or one that is removed in the end."""
    if out is not None:
        yield Path(out)
        return
    made = Path(tempfile.mkdtemp(prefix="adapler-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)  # the classifier has read its weights


def _splits(data: Split | Mapping[str, Split]) -> dict[str, tuple[list[Text], Labels]]:
    """What was given, by split."""
    given: Mapping[str, Split] = data if isinstance(data, Mapping) else {"train": data}
    known = {name for names in SPLITS.values() for name in names}
    unknown = sorted(set(given) - known)
    if unknown:
        raise BadConfig(f"no split {unknown[0]!r}; splits are {', '.join(SPLITS)}")
    splits = {split: (texts_of(texts), labels_of(labels)) for split, (texts, labels) in given.items()}
    for split, (texts, labels) in splits.items():
        if len(texts) != len(labels.each):
            raise BadInput(f"{split}: {len(texts)} texts and {len(labels.each)} labels; every text needs one")
    if len({labels.columns for _, labels in splits.values()}) > 1:  # the same rows would mean other labels in each
        columns = ", ".join(f"{split} {labels.columns or 'none'}" for split, (_, labels) in splits.items())
        raise BadInput(f"the splits' labels are not tables of as many columns ({columns}); write them alike")
    return splits


def _written(splits: Mapping[str, tuple[list[Text], Labels]], folder: Path) -> Path:
    """Data in memory as a folder of splits, which a run can come back to."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, (texts, labels) in splits.items():
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as stream:
            for text, label in zip(texts, labels.each, strict=True):
                first, *second = [text] if isinstance(text, str) else text
                row = {TEXT_COLUMN: first, **({PAIR_COLUMN: second[0]} if second else {}), "label": label}
                stream.write(json.dumps(row) + "\n")
    return folder
