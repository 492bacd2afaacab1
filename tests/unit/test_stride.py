"""Texts past the limit in windows: every token is read, the windows' mean is the answer, and its cost is theirs together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from adapler.classifier import Classifier
from adapler.data.keep import Keep
from adapler.data.text import EncodedText, Text, TextEncoder
from adapler.errors import BadConfig
from adapler.points import Dial, Point
from adapler.prediction import Prediction, combined
from adapler.runtimes.base import Answer
from adapler.runtimes.torch_packed import TorchPacked
from tests.tiny import WORDS, tiny_bert, tiny_classifier, tiny_texts, tiny_tokenizer
from tests.unit.test_text import TOKENIZERS

LONG = " ".join(WORDS[20:60])
PAIR = ("a good film " * 8, "a bad story " * 8)


def classifier(stride: int | None = 4, dial: Dial | None = None, always_keep: Sequence[str] | None = None) -> Classifier:
    plain = tiny_classifier(spread=2.0)
    parts = (plain.backbone, plain.tokenizer, plain.reducer)
    return Classifier(*parts, max_length=16, stride=stride, dial=dial, always_keep=always_keep)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("stride", [0, 1, 4, 13])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_windows_hold_every_token_and_share_the_stride(name: str, stride: int, side: str) -> None:
    tokenizer = TOKENIZERS[name]()
    tokenizer.truncation_side = side
    whole = tokenizer(LONG)["input_ids"]
    parts = TextEncoder(tokenizer, 16, stride=stride).parts([LONG])[0]
    assert len(parts) > 2 and all(len(part.ids) <= 16 and not part.truncated for part in parts)
    inner = [part.ids.tolist()[1:-1] for part in parts]
    assert all(part.ids[[0, -1]].tolist() == [whole[0], whole[-1]] for part in parts)  # each is a text of its own
    assert all(one[len(one) - stride :] == other[:stride] for one, other in pairwise(inner))
    assert inner[0] + [number for window in inner[1:] for number in window[stride:]] == whole[1:-1]


@pytest.mark.parametrize("words", [0, 1, 13, 14, 15])
def test_only_texts_past_the_limit_are_cut(words: int) -> None:
    encoder = TextEncoder(tiny_tokenizer(), 16, stride=3)
    text = " ".join(["film"] * words)
    (parts,) = encoder.parts([text])
    assert len(parts) == (1 if words <= 14 else 2)
    if len(parts) == 1:
        assert parts[0].ids.tolist() == encoder([text])[0].ids.tolist()


def test_without_a_stride_texts_are_cut_as_ever() -> None:
    encoder = TextEncoder(tiny_tokenizer(), 16)
    texts: list[Text] = [LONG, "a film", PAIR]
    for (part,), one in zip(encoder.parts(texts), encoder(texts), strict=True):
        assert part.ids.tolist() == one.ids.tolist() and part.truncated == one.truncated


@pytest.mark.parametrize("stride", [-1, 14, 15, 600])
def test_a_stride_that_leaves_no_step_is_refused(stride: int) -> None:
    with pytest.raises(BadConfig, match=rf"stride must be at least 0 and below 14, .* got {stride}$"):
        classifier(stride)


def test_the_answer_is_the_mean_of_the_windows() -> None:
    made = classifier()
    answer = made(LONG)
    windows = [made.at_scale([[part]], None)[0] for part in made.encoder.parts([LONG])[0]]
    assert answer.windows == len(windows) > 2
    means = {label: float(np.mean([window.scores[label] for window in windows])) for label in made.labels}
    assert answer.scores == pytest.approx(means, abs=1e-6)  # float32, other batches
    assert answer.label == max(means, key=lambda label: means[label])
    assert answer.score == answer.scores[answer.label]
    assert sum(answer.scores.values()) == pytest.approx(1, abs=1e-6)
    assert answer.tokens == [token for window in windows for token in window.tokens]
    assert answer.depths == [depth for window in windows for depth in window.depths]
    assert answer.lengths == [sum(layer) for layer in zip(*(window.lengths for window in windows), strict=True)]
    assert answer.lengths == [len(layer) for layer in answer.kept]
    assert answer.flops == sum(window.flops for window in windows) < answer.flops_full
    assert answer.flops_full == sum(window.flops_full for window in windows)
    assert not answer.truncated and not answer.escalated
    assert answer.to_dict()["windows"] == len(windows)


def test_a_regression_is_the_mean_of_the_values() -> None:
    model = tiny_bert(labels=1)
    model.config.problem_type = "regression"
    made = Classifier(model, tiny_tokenizer(), max_length=16, stride=0)
    values = [made.at_scale([[part]], None)[0].score for part in made.encoder.parts([LONG])[0]]
    assert max(values) - min(values) > 1e-3
    assert made(LONG).score == pytest.approx(np.mean(values), abs=1e-6)  # float32, other batches


def test_short_texts_and_pairs_are_answered_as_without() -> None:
    texts: list[Text] = [*(text for text in tiny_texts(20, longest=13)), "", PAIR, ("a film", "a story")]
    for one, other in zip(classifier()(texts), classifier(None)(texts), strict=True):
        assert (one.label, one.tokens, one.kept, one.truncated) == (other.label, other.tokens, other.kept, other.truncated)
        assert one.scores == pytest.approx(other.scores, abs=1e-6)
        assert one.windows == other.windows == 1
    assert classifier()(PAIR).truncated


def test_answers_stay_in_order_among_texts_of_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    made = classifier()
    texts: list[Text] = [*tiny_texts(25, seed=8, longest=60), PAIR, LONG, ("a film", "a story"), "film"]
    sizes: list[int] = []
    run = TorchPacked.__call__

    def watched(self: TorchPacked, batch: Sequence[EncodedText], **options: Any) -> Answer:
        sizes.append(len(batch))
        return run(self, batch, **options)

    monkeypatch.setattr(TorchPacked, "__call__", watched)
    together = made(texts)
    assert max(sizes) > len(texts)  # windows of several texts share a batch
    alone = [made(text) for text in texts]
    assert any(answer.windows > 3 for answer in alone)
    for one, other in zip(together, alone, strict=True):
        assert (one.label, one.tokens, one.kept, one.windows) == (other.label, other.tokens, other.kept, other.windows)
        assert one.scores == pytest.approx(other.scores, abs=1e-5)  # float32, other batches
    assert [answer.tokens for answer in made(iter(texts))] == [answer.tokens for answer in together]


def test_escalation_judges_the_combined_answer() -> None:
    point = Point(name="full", scale=0.0, score=0.9, loss_points=0.0, flops_speedup=1.0, flops_speedup_executed=1.0)
    dial = Dial(data="made", n=1, metric="accuracy", reference="itself", reference_score=0.9, points=(point,))
    made = classifier(dial=dial)
    texts = tiny_texts(40, seed=9, longest=80)
    fast = made(texts)
    sureness = float(np.median([answer.score for answer in fast]))
    again = made(texts, escalate=sureness)
    assert any(answer.escalated and answer.windows > 1 for answer in again)
    for text, before, after in zip(texts, fast, again, strict=True):
        assert after.escalated == (before.score < sureness)
        assert after.windows == before.windows
        if after.escalated:
            whole = made(text, point="full")
            assert after.scores == pytest.approx(whole.scores, abs=1e-5)  # float32, other batches
            assert after.flops == before.flops + whole.flops
    parts = [made.at_scale([[part] for part in text], None) for text in made.encoder.parts(texts)]
    mixed = [text for text in parts if len({part.score < sureness for part in text}) == 2]
    assert mixed  # judging windows one by one would have answered otherwise


def test_named_words_stay_in_every_window() -> None:
    text = "not a good film " * 20
    made = classifier(always_keep=["not"])
    answer = made(text)
    assert answer.windows > 3
    named = [depth for token, depth in zip(answer.tokens, answer.depths, strict=True) if token == "not"]
    assert len(named) > 20 and set(named) == {4}
    parts = TextEncoder(tiny_tokenizer(), 16, stride=4, keep=Keep(["not"])).parts([text])[0]
    for part in parts:
        assert part.keep is not None
        assert part.keep.tolist() == [token == "not" for token in part.tokens]


def test_one_window_is_its_own_answer() -> None:
    one = Prediction("a", 0.6, {"a": 0.6, "b": 0.4}, ["x"], [1], [1], 2, 3, True)
    assert combined([one]) is one


def test_a_tie_between_labels_goes_to_the_first_as_elsewhere() -> None:
    one = Prediction("a", 0.75, {"a": 0.75, "b": 0.25}, ["x"], [1], [1], 2, 3, False)
    other = Prediction("b", 0.75, {"a": 0.25, "b": 0.75}, ["y"], [1], [1], 5, 7, False)
    both = combined([other, one])
    assert (both.label, both.score, both.tokens, both.lengths) == ("a", 0.5, ["y", "x"], [2])
    assert (both.flops, both.flops_full, both.windows) == (7, 10, 2)
