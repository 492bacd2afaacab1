"""From texts in token ids to predictions: batches, windows of a long stream, unsure answers given again. Opens nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from adapler.data.text import WINDOW_TEXTS, EncodedText, Text, as_text, budget_batches, windows
from adapler.memory import give_back
from adapler.points import Operating
from adapler.prediction import Prediction, combined, predictions
from adapler.runtimes.base import Answer, Runtime

T = TypeVar("T")

EVEN = 1024
"""Tokens from which texts of one length run as a batch of their own, at full length; where tokens leave, no length stays."""


class Answering:
    """A runtime that is given texts in batches of a token budget; None leaves the budget to it."""

    def __init__(self, runtime: Runtime, token_budget: int | None) -> None:
        self.runtime, self.token_budget = runtime, token_budget
        self._full = cache(runtime.cost.full)

    def __reduce__(self) -> tuple[Any, ...]:
        return Answering, (self.runtime, self.token_budget)  # a cache has no pickle

    def __call__(self, parts: Sequence[Sequence[EncodedText]], how: Sequence[Operating]) -> list[Prediction]:
        """One a text, each run in its own way; those that were unsure, given again."""
        answers = self.at(parts, [each.scale for each in how])
        unsure = [
            index
            for index, (answer, each) in enumerate(zip(answers, how, strict=True))
            if each.escalate is not None and answer.score < each.escalate
        ]
        again = self.at([parts[index] for index in unsure], [how[index].careful for index in unsure])
        for index, answer in zip(unsure, again, strict=True):
            answers[index] = answer.after(answers[index])
        return answers

    def at(self, parts: Sequence[Sequence[EncodedText]], scales: Sequence[float | None]) -> list[Prediction]:
        """One a text, whose parts run in batches with all others."""
        spread = [scale for text, scale in zip(parts, scales, strict=True) for _ in text]
        answers = iter(self._predict([part for text in parts for part in text], spread))
        return [combined(list(islice(answers, len(text)))) for text in parts]

    def _predict(self, encoded: Sequence[EncodedText], scales: Sequence[float | None]) -> list[Prediction]:
        """Each text at its own scale."""
        full = [each == 0 for each in scales]
        whole = all(full) or not self.runtime.cost.predictors
        counts = [len(text.ids) for text in encoded]
        budget = self.token_budget or self.runtime.budget(sum(counts), reduced=not whole)
        batches = budget_batches(counts, budget, even=EVEN if whole else None)
        texts = [[encoded[index] for index in batch] for batch in batches]
        factors = [[1.0 if scales[index] is None else scales[index] or 0.0 for index in batch] for batch in batches]
        alike = len(set(scales)) == 1
        # At full length predictors are asked only for what they say of the tokens, where that is wanted.
        told = bool(encoded) and encoded[0].places is not None
        reduced = not all(full) or told
        answers = self.runtime.each(texts, scale=scales[0] if alike else factors, reduced=reduced)
        found: dict[int, Prediction] = {}
        for batch, given, answer in zip(batches, texts, answers, strict=True):
            # A text at full length among others meets predictors that change nothing for it; its account is as if alone.
            found |= zip(batch, self._predictions(given, answer, full=[full[index] for index in batch]), strict=True)
        return [found[index] for index in range(len(encoded))]

    def _predictions(
        self, batch: Sequence[EncodedText], answer: Answer, *, full: bool | Sequence[bool]
    ) -> Iterator[Prediction]:
        return predictions(batch, answer, self.runtime, self._full, full=full)


def answered(texts: Any, answer: Callable[[Sequence[Text]], list[T]]) -> T | list[T] | Iterator[T]:
    """One answer, a list or an iterator, as `texts` is."""
    if isinstance(texts, str) or (isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(t, str) for t in texts)):
        return answer([as_text(texts, 0)])[0]
    if not isinstance(texts, Iterable):
        as_text(texts, 0)  # neither a text nor a collection of texts: the same typed error
    answers = _stream(texts, answer)
    return list(answers) if hasattr(texts, "__len__") else answers


def _stream(texts: Iterable[object], answer: Callable[[Sequence[Text]], list[T]]) -> Iterator[T]:
    for window in windows(texts):
        yield from answer(window)
        if len(window) == WINDOW_TEXTS:  # a few milliseconds: nothing after thousands of texts, much after one
            give_back()
