"""The batch a text is in changes neither its label nor the tokens it keeps.

In float64 without exception. In float32 sums differ in their last bits between batches, so a token whose score is next to
its threshold may flip: a flip is allowed only there, is counted, and the count is recorded by `--prove`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from adapler.answering import Answering
from adapler.buckets import Buckets
from adapler.classifier import Classifier
from adapler.data.text import EncodedText, TextEncoder, budget_batches
from adapler.engine import encode, pack
from adapler.layout import Packed
from adapler.records import Record
from adapler.tokens import Trace
from tests.contract.batches import UselessCaseError, assert_worth_testing
from tests.tiny import tiny_classifier, tiny_texts

SIZES = (1, 7, 32)
BUDGET = 1024
NEAR = 1e-4
"""How close score and threshold must be, relative to the threshold, for a float32 flip to be rounding."""


@dataclass(frozen=True)
class Answer:
    """What a text got: its label, how many layers each of its tokens entered, and its scores relative to the thresholds."""

    label: int
    depth: Tensor
    margins: list[Tensor]
    """Per layer (n,): |score - threshold| / threshold of each token still there, infinite on the others."""


def answers(made: Classifier, texts: Sequence[EncodedText], batches: Sequence[Sequence[int]]) -> list[Answer]:
    """Every text's answer when run in the given batches, in the order of the texts."""
    found: dict[int, Answer] = {}
    for batch in batches:
        with torch.inference_mode():
            tokens, counts = pack(made.backbone, [texts[i] for i in batch], made.device)
            logits, trace = encode(made.backbone, tokens, made.reducer)
        found |= zip(batch, _split(logits, trace, counts), strict=True)
    return [found[i] for i in range(len(texts))]


def check_batches_do_not_matter(made: Classifier, n: int) -> int:
    """Run `n` texts in batches of several sizes and by token budget; the texts of which a near-tie flipped are counted."""
    texts = TextEncoder(made.tokenizer, made.max_length)(tiny_texts(n))
    counts = [len(text.ids) for text in texts]
    groupings = {f"{size} a batch": [list(range(n))[i : i + size] for i in range(0, n, size)] for size in SIZES}
    groupings[f"{BUDGET} tokens"] = budget_batches(counts, BUDGET)
    alone, *others = (answers(made, texts, grouping) for grouping in groupings.values())
    flipped = set()
    for how, grouped in zip(list(groupings)[1:], others, strict=True):
        for number, (expected, got) in enumerate(zip(alone, grouped, strict=True)):
            if torch.equal(expected.depth, got.depth):
                assert got.label == expected.label, f"text {number} changes its label, {how}"
                continue
            assert made.backbone.model.dtype == torch.float32, f"text {number} keeps other tokens, {how}"
            layer = int(torch.minimum(expected.depth, got.depth)[expected.depth != got.depth].min())  # the first to disagree
            differ = (expected.depth > layer) != (got.depth > layer)
            assert float(expected.margins[layer][differ].max()) < NEAR, f"text {number} flips without a near-tie, {how}"
            flipped.add(number)
    lengths = [torch.tensor([int((a.depth > layer).sum()) for a in alone]) for layer in range(len(made.backbone.blocks))]
    assert_worth_testing(lengths, torch.tensor(counts))
    if np.bincount([answer.label for answer in alone]).max() > 0.9 * n:
        raise UselessCaseError("nearly all texts have one label")
    return len(flipped)


def check_classifier_answers_in_order(made: Classifier, n: int) -> None:
    """A list through the token budget gives, in order, what each text gives by itself."""
    texts = tiny_texts(n)
    assert len(budget_batches([len(text.split()) for text in texts], made.token_budget or 4096)) > 2
    together = made(texts)
    for text, got in zip(texts, together, strict=True):
        expected = made(text)
        assert (got.label, got.tokens, got.kept) == (expected.label, expected.tokens, expected.kept), text
        assert got.score == pytest.approx(expected.score, abs=1e-9)
    lengths = [torch.tensor([p.lengths[layer] for p in together]) for layer in range(len(made.backbone.blocks))]
    assert_worth_testing(lengths, torch.tensor([len(p.tokens) for p in together]))


def subject(dtype: torch.dtype) -> Classifier:
    """Six layers, thresholds that let more than half of the tokens go, labels that differ between texts."""
    made = tiny_classifier(layers=6, spread=2.0, token_budget=BUDGET)
    assert made.reducer is not None
    made.backbone.model.to(dtype)
    made.reducer.to(dtype)
    return made


def _split(logits: Tensor, trace: Trace, counts: Tensor) -> Iterator[Answer]:
    """The answers of one packed batch, text by text."""
    ends = counts.cumsum(0).tolist()
    depths = trace.depths(counts)
    start = counts.cumsum(0) - counts
    margins = []
    for step in trace.steps:
        assert isinstance(step.layout, Packed)
        margin = torch.full((ends[-1],), float("inf"), dtype=step.weight.dtype)
        decision = step.decision
        margin[start[step.layout.text] + step.position] = (decision.score - decision.threshold).abs() / decision.threshold
        margins.append(margin)
    for label, first, end in zip(logits.argmax(-1).tolist(), start.tolist(), ends, strict=True):
        yield Answer(label, depths[first:end], [margin[first:end] for margin in margins])


def test_in_float64_the_batch_never_matters(count: Callable[[int, int], int]) -> None:
    assert check_batches_do_not_matter(subject(torch.float64), count(300, 2000)) == 0


def test_in_float32_only_near_ties_flip(count: Callable[[int, int], int], prove: Callable[[str, list[Record]], None]) -> None:
    n = count(300, 2000)
    flips = check_batches_do_not_matter(subject(torch.float32), n)
    assert flips <= n // 100  # a near-tie is rare; many flips would be a bug inside the tolerance
    batch = f"{', '.join(map(str, SIZES))} texts, {BUDGET} tokens"
    config = {"layers": 6, "hidden": 32, "near": NEAR}
    prove(
        "batch-invariance",
        [
            Record(
                kind="prove",
                variant="batch invariance float32",
                method="adapler",
                backbone="bert",
                value=flips,
                unit="flips",
                n=n,
                batch=batch,
                threads=torch.get_num_threads(),
                config=config,
            )
        ],
    )


def test_a_list_gets_the_answers_its_texts_get_alone(count: Callable[[int, int], int]) -> None:
    check_classifier_answers_in_order(subject(torch.float64), count(150, 500))


def length_of_the_longest(patch: pytest.MonkeyPatch) -> None:
    """The threshold counts what the rows of attention count: padding up to the longest text of the batch."""
    patch.setattr(Packed, "length", lambda self, tokens: self.total(tokens.weight).amax().expand(self.texts))


def softmax_over_the_batch(patch: pytest.MonkeyPatch) -> None:
    def planted(self: Packed, tokens: Any, logit: Tensor) -> Tensor:
        return logit.softmax(0) * self.texts

    patch.setattr(Packed, "share", planted)


def attention_to_the_rows_filling(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Packed, "mask", lambda self, tokens, dtype: None)
    patch.setattr(Buckets, "filled", lambda self, values, fill: values.new_zeros(self.places))


def a_thousandth_off_in_batches(patch: pytest.MonkeyPatch) -> None:
    """An error small enough to look like rounding, and too large to be it."""
    patch.setattr(Packed, "length", lambda self, tokens: self.total(tokens.weight) * (1.001 if self.texts > 1 else 1.0))


def answers_in_order_of_length(patch: pytest.MonkeyPatch) -> None:
    """Batches are made of sorted texts, and the answers come back sorted too."""

    def planted(self: Any, encoded: Sequence[Any], scales: Sequence[float | None]) -> list[Any]:
        batches = budget_batches([len(text.ids) for text in encoded], self.token_budget or 4096)
        texts = [[encoded[i] for i in batch] for batch in batches]
        answers = zip(texts, self.runtime.each(texts), strict=True)
        return [prediction for given, answer in answers for prediction in self._predictions(given, answer, full=False)]

    patch.setattr(Answering, "_predict", planted)


@pytest.mark.parametrize(
    "plant", [length_of_the_longest, softmax_over_the_batch, attention_to_the_rows_filling, a_thousandth_off_in_batches]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_batch_that_matters_would_be_noticed(
    plant: Callable[[pytest.MonkeyPatch], None], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_batches_do_not_matter(subject(dtype), 40)


def test_answers_in_another_order_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    answers_in_order_of_length(monkeypatch)
    with pytest.raises(AssertionError):
        check_classifier_answers_in_order(subject(torch.float64), 150)
