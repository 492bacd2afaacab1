"""The per-layer account of /explain: what a classifier tells of every token beside its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adapler.classifier import Classifier
from adapler.data.text import cleaned
from adapler.explain import Explanation
from adapler.points import Operating
from adapler.prediction import Prediction
from adapler.serve.encoding import Encoded


@dataclass(frozen=True)
class Explained:
    """A prediction and the account of it, as JSON holds it."""

    prediction: Prediction
    account: dict[str, Any]


def explain(classifier: Classifier, texts: Sequence[Encoded], how: Operating) -> list[Explained]:
    """One a text, out of the run that answers it; tokens must know their places."""
    answers = classifier.answers([each.parts for each in texts], [how] * len(texts))
    accounts = [Explanation(cleaned(each.text), answer).to_dict() for each, answer in zip(texts, answers, strict=True)]
    return [Explained(answer, account) for answer, account in zip(answers, accounts, strict=True)]
