"""What holds for all lengths, thresholds and scores: texts only get shorter, the first token stays, numbers stay finite, and
every reader of a `Trace` tells the same story. Hypothesis looks for counterexamples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import adapler.prediction
from adapler.backbones.base import Backbone
from adapler.backbones.bert import Bert
from adapler.classifier import Classifier
from adapler.data.text import Text, TextEncoder
from adapler.engine import encode, model_cost, pack
from adapler.layout import Packed, Padded
from adapler.methods.adapler import AdapLeR
from adapler.methods.adapler_losses import objective, threshold_gradients
from adapler.prediction import Prediction
from adapler.tokens import Tokens, Trace
from tests.contract.batches import LAYOUTS, places, random_texts
from tests.contract.test_planted_bugs import (
    first_token_may_fade,
    first_token_may_leave,
    removed_tokens_come_back,
    survivors_renumbered,
)
from tests.tiny import WORDS, tiny_bert, tiny_classifier, tiny_reducer

LAYERS = 4
LAMBDAS = (0.5, 10.0, 1000.0, 200_000.0)
"""Steepness of soft removal: below, at, inside and at the top of what the paper's schedules use."""


@dataclass(frozen=True)
class Case:
    """A batch and a reducer, drawn at random."""

    counts: tuple[int, ...]
    eta: tuple[float, ...]
    scale: tuple[float, ...] | None
    """Multiplies each text's thresholds; above 1 a threshold may exceed every possible score."""
    spread: float
    """Of the scores: at 0 they are uniform, at 100 one token has nearly all and others underflow to 0."""
    seed: int
    steepness: float = 10.0

    def reducer(self, backbone: Backbone) -> AdapLeR:
        reducer = tiny_reducer(backbone, seed=self.seed, spread=self.spread)
        with torch.no_grad():
            reducer.eta.copy_(torch.tensor(self.eta))
        return reducer

    @property
    def scales(self) -> Tensor | None:
        return None if self.scale is None else torch.tensor(self.scale)


ORDINARY = Case(counts=(20, 1, 9, 30), eta=(0.6,) * LAYERS, scale=None, spread=2.0, seed=0)


@st.composite
def cases(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Case:
    counts = draw(st.lists(st.integers(1, 24), min_size=1, max_size=5))
    scale = st.lists(st.floats(0.25, 4.0, width=32), min_size=len(counts), max_size=len(counts))
    eta = st.lists(st.floats(0.01, 1.0), min_size=LAYERS, max_size=LAYERS) | st.just([1.0] * LAYERS)
    return Case(
        counts=tuple(counts),
        eta=tuple(draw(eta)),
        scale=draw(st.none() | scale.map(tuple)),
        spread=draw(st.sampled_from([0.0, 0.5, 2.0, 10.0, 100.0])),
        seed=draw(st.integers(0, 2**16)),
        steepness=draw(st.sampled_from(LAMBDAS)),
    )


WORDLIKE = st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join) | st.text(max_size=30)
TEXTS = st.lists(WORDLIKE | st.tuples(WORDLIKE, WORDLIKE), min_size=1, max_size=6)


@cache
def backbone_of(layers: int) -> Backbone:
    return Bert(tiny_bert(layers))


@cache
def small_classifier() -> tuple[Classifier, TextEncoder]:
    made = tiny_classifier(spread=2.0, token_budget=64)
    return made, TextEncoder(made.tokenizer, made.max_length)


@torch.no_grad()
def check_removal(case: Case) -> None:
    """Hard removal in both layouts."""
    backbone = backbone_of(LAYERS)
    reducer, counts = case.reducer(backbone), torch.tensor(case.counts)
    for arrange in LAYOUTS.values():
        tokens = arrange(backbone, random_texts(case.counts, case.seed))
        logits, trace = encode(backbone, tokens, reducer, scale=case.scales)
        assert logits.isfinite().all()
        for before, after in pairwise([counts, *trace.lengths]):
            assert (after <= before).all(), "a text grew"
        for text, position in trace.kept:
            assert text[position == 0].tolist() == list(range(len(case.counts))), "a first token left"
        check_scores(trace, reducer, case)
        check_trace_agrees_with_itself(trace, counts)


def check_fading(case: Case) -> None:
    """Soft removal in both layouts: weights, losses, and the gradients of everything that trains."""
    backbone = backbone_of(LAYERS)
    reducer = case.reducer(backbone)
    weights = [*backbone.model.parameters(), *reducer.predictors.parameters()]
    labels = torch.arange(len(case.counts)) % 3
    for arrange in LAYOUTS.values():
        tokens = arrange(backbone, random_texts(case.counts, case.seed))
        logits, trace = encode(backbone, tokens, reducer, soft=case.steepness, scale=case.scales)
        check_scores(trace, reducer, case)
        for before, after in pairwise([torch.tensor(case.counts), *trace.lengths]):
            assert (after <= before * (1 + 1e-6)).all(), "a text grew"
        for step in trace.steps:
            assert ((step.weight_after >= 0) & (step.weight_after <= step.weight)).all(), "a token gained weight"
            assert (step.weight_after[step.protected] == 1).all(), "a first token faded"
        saliency = torch.rand(tokens.position.shape, generator=torch.Generator().manual_seed(case.seed))
        losses = objective(reducer, logits, trace, labels, saliency, gamma=0.01, phi=0.001)
        gradients = [*threshold_gradients(reducer, trace, losses.combined)]
        gradients += torch.autograd.grad(losses.total, weights, allow_unused=True, materialize_grads=True)
        for value in (logits, *vars(losses).values(), *gradients):
            assert value.isfinite().all(), "not a number"


def check_scores(trace: Trace, reducer: AdapLeR, case: Case) -> None:
    """Scores share 1 out among the tokens still there; a threshold is eta over what is left of the text."""
    lengths = [torch.tensor(case.counts), *trace.lengths]
    for step in trace.steps:
        score, layout = step.decision.score, step.layout
        assert score.isfinite().all() and (score >= 0).all(), "a score is not a share"
        assert (score[step.weight <= 0] == 0).all(), "a token that is gone has a score"
        torch.testing.assert_close(layout.total(score), torch.ones(layout.texts), atol=1e-5, rtol=0)
        eta = reducer.eta[step.layer] * (1 if case.scales is None else case.scales)
        expected = layout.spread(eta / lengths[step.layer])
        torch.testing.assert_close(step.decision.threshold, expected, atol=0, rtol=1e-5)


def check_trace_agrees_with_itself(trace: Trace, counts: Tensor) -> None:
    """`lengths`, `kept`, `depths` and the steps' decisions are four accounts of the same removal."""
    start, depths = counts.cumsum(0) - counts, trace.depths(counts)
    for layer, (text, position) in enumerate(trace.kept):
        lengths = torch.bincount(text, minlength=counts.numel())
        assert torch.equal(lengths, trace.lengths[layer].long()), "lengths and kept"
        assert torch.equal(lengths, trace.feed_forward_lengths[layer].long()), "lengths and feed_forward_lengths"
        step = trace.at(layer)
        stayed = places(step, step.decision.keep & (step.weight > 0))
        assert torch.equal(stayed[0], text) and torch.equal(stayed[1], position), "steps and kept"
        entered = torch.zeros_like(depths, dtype=torch.bool)
        entered[start[text] + position] = True
        assert torch.equal(entered, depths > layer), "kept and depths"


def check_predictions(texts: list[Text]) -> None:
    """A `Prediction` repeats the trace of its text, and its FLOPs follow from its lengths."""
    made, encoder = small_classifier()
    cost = model_cost(made.backbone, made.reducer)
    for text, prediction in zip(texts, made(texts), strict=True):
        with torch.inference_mode():
            tokens, counts = pack(made.backbone, encoder([text]), made.device)
            logits, trace = encode(made.backbone, tokens, made.reducer)
        n = int(counts)
        check_trace_agrees_with_itself(trace, counts)
        assert prediction.kept == [position.tolist() for _, position in trace.kept], "kept"
        assert prediction.lengths == [int(length) for length in trace.lengths] == prediction.to_dict()["lengths"]
        assert prediction.flops == cost.reduced(n, prediction.lengths), "flops"
        assert prediction.flops_full == cost.full(n) and len(prediction.tokens) == n
        probabilities = dict(zip(made.labels, logits.softmax(-1)[0].tolist(), strict=True))
        assert prediction.scores == pytest.approx(probabilities, abs=1e-5)
        assert prediction.score == max(prediction.scores.values()) == prediction.scores[prediction.label]


def holds(check: Callable[[Any], None], drawn: st.SearchStrategy[Any], examples: int) -> None:
    """Run a check on drawn examples, the same ones every time."""

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(drawn)
    def run(example: Any) -> None:
        check(example)

    run()


Count = Callable[[int, int], int]


def test_removal_shortens_and_spares_the_first_token(count: Count) -> None:
    holds(check_removal, cases(), count(60, 1000))


def test_fading_and_its_gradients_stay_finite(count: Count) -> None:
    holds(check_fading, cases(), count(40, 500))


def test_predictions_repeat_the_trace(count: Count) -> None:
    holds(check_predictions, TEXTS, count(40, 500))


def softmax_overflows(patch: pytest.MonkeyPatch) -> None:
    """Shares without the largest logit subtracted: large ones overflow."""
    for layout in (Padded, Packed):
        patch.setattr(layout, "largest", lambda self, values: torch.zeros(self.texts))


def absent_tokens_have_scores(patch: pytest.MonkeyPatch) -> None:
    share = Padded.share
    patch.setattr(Padded, "share", lambda self, tokens, logit: share(self, tokens, logit) + 1e-4)


def fading_in_the_wrong_direction(patch: pytest.MonkeyPatch) -> None:
    fade = Tokens.fade
    patch.setattr(Tokens, "fade", lambda self, log_weight: fade(self, -0.01 * log_weight))


def a_layer_late(patch: pytest.MonkeyPatch) -> None:
    """The kept tokens of a prediction shifted by one layer."""

    def planted(**fields: Any) -> Prediction:
        return Prediction(**{**fields, "depths": [min(depth + 1, len(fields["lengths"])) for depth in fields["depths"]]})

    patch.setattr(adapler.prediction, "Prediction", planted)


BUGS: dict[Callable[[pytest.MonkeyPatch], None], tuple[Callable[[Any], None], Any]] = {
    removed_tokens_come_back: (check_removal, ORDINARY),
    first_token_may_leave: (check_removal, ORDINARY),
    absent_tokens_have_scores: (check_removal, ORDINARY),
    survivors_renumbered: (check_removal, ORDINARY),
    first_token_may_fade: (check_fading, ORDINARY),
    fading_in_the_wrong_direction: (check_fading, ORDINARY),
    softmax_overflows: (check_fading, replace(ORDINARY, spread=500.0)),
    a_layer_late: (check_predictions, [" ".join(WORDS[:20])]),
}


@pytest.mark.parametrize("plant", BUGS)
def test_a_broken_property_would_be_noticed(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check, example = BUGS[plant]
    check(example)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check(example)
