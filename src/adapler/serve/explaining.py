"""The per-layer account of /explain: what a classifier tells of every token beside its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adapler.classifier import Classifier
from adapler.data.text import EncodedText, Text, cleaned
from adapler.explain import Explanation
from adapler.points import Operating
from adapler.prediction import Prediction


@dataclass(frozen=True)
class Explained:
    """A prediction and the account of it, as JSON holds it."""

    prediction: Prediction
    account: dict[str, Any]


def explain(
    classifier: Classifier, texts: Sequence[Text], parts: Sequence[Sequence[EncodedText]], how: Operating
) -> list[Explained]:
    """One a text, out of the run that answers it; tokens must know their places."""
    answers = classifier.answers(parts, [how] * len(parts))
    return [
        Explained(answer, Explanation(cleaned(text), answer).to_dict()) for text, answer in zip(texts, answers, strict=True)
    ]
