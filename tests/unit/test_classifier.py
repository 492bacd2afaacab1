"""Classifier: what may be given, what comes back, in which order, at what cost, and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, repeat
from typing import Any

import numpy as np
import pytest
import torch
from transformers import pipeline

from adapler.classifier import Classifier
from adapler.data import text as text_module
from adapler.data.text import EncodedText, Text
from adapler.errors import BadConfig, BadInput
from adapler.points import Operating
from adapler.prediction import Prediction
from adapler.runtimes.base import Answer
from adapler.runtimes.torch_packed import TorchPacked
from tests.tiny import tiny_bert, tiny_classifier, tiny_texts, tiny_tokenizer

ODD_TEXTS = {
    "empty": "",
    "one token": "film",
    "one unknown character": "\ue000",
    "100,000 characters": "a good film " * 8334,
    "one word of 100,000 characters": "x" * 100_000,
    "control characters": "".join(map(chr, range(1, 32))) + "\x7f",
    "NUL": "a\x00b\x00",
    "right to left": "\u202eשלום עולם\u202c مرحبا",
    "emoji joined": "👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈",
    "only spaces": " \t\n\r\u00a0\u3000 ",
    "half a character": "a \ud800 film \udc00",
    "byte order mark": "\ufeffa film",
    "combining marks": "e" + "\u0301" * 500,
    "special tokens": "[CLS] [SEP] [PAD] [MASK] [UNK]",
}


@pytest.fixture(scope="module")
def made() -> Classifier:
    return tiny_classifier()


def close(one: Sequence[Prediction], two: Sequence[Prediction]) -> bool:
    """Equal in everything but the last digits of the scores, which batches round differently."""
    same = [(p.label, p.tokens, p.kept, p.truncated) for p in one] == [(p.label, p.tokens, p.kept, p.truncated) for p in two]
    first, second = ([list(p.scores.values()) for p in answers] for answers in (one, two))
    return same and np.allclose(first, second, atol=1e-5)  # float32, other summation order


def test_a_text_gives_a_prediction(made: Classifier) -> None:
    answer = made("a good film")
    assert isinstance(answer, Prediction)
    assert answer.tokens == ["[CLS]", "a", "good", "film", "[SEP]"]
    assert answer.scores.keys() == set(made.labels)
    assert answer.score == max(answer.scores.values()) == answer.scores[answer.label]
    assert sum(answer.scores.values()) == pytest.approx(1, abs=1e-6)
    assert json.loads(json.dumps(answer.to_dict()))["lengths"] == answer.lengths


def test_a_pair_gives_a_prediction(made: Classifier) -> None:
    answer = made(("a good film", "a bad film"))
    assert isinstance(answer, Prediction)
    assert answer.tokens == ["[CLS]", "a", "good", "film", "[SEP]", "a", "bad", "film", "[SEP]"]


def test_a_list_gives_a_list_in_order(made: Classifier) -> None:
    texts: list[Text] = [*tiny_texts(40, seed=1), ("a film", "a story"), ("a film", "no story")]
    random.Random(0).shuffle(texts)
    answers = made(texts)
    assert isinstance(answers, list)
    assert close(answers, [made(text) for text in texts])


def test_collections_of_other_kinds_give_lists(made: Classifier) -> None:
    texts = ["a good film", "a bad film", "no film"]
    others: list[Any] = [tuple(texts), np.array(texts), dict.fromkeys(texts).keys()]
    for collection in others:
        assert made(collection) == made(texts)
    pairs: Any = [["a film", "a story"]]  # as JSON has them
    assert made(pairs) == made([("a film", "a story")])


def test_two_strings_are_a_pair_in_a_tuple_and_two_texts_in_a_list(made: Classifier) -> None:
    assert isinstance(made(("a film", "a story")), Prediction)
    assert len(made(["a film", "a story"])) == 2


def test_nothing_gives_nothing(made: Classifier) -> None:
    assert made([]) == []
    assert list(made(iter([]))) == []


def test_an_iterator_gives_the_answers_of_a_list(made: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "WINDOW_TEXTS", 7)
    texts = tiny_texts(30, seed=2)
    answers = made(text for text in texts)
    assert isinstance(answers, Iterator)
    assert close(list(answers), [made(text) for text in texts])


def test_an_endless_iterator_is_read_a_window_ahead(made: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "WINDOW_TEXTS", 16)
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        for text in repeat("a good film"):
            taken += 1
            yield text

    answers = made(endless())
    assert taken == 0
    for given in range(1, 50):
        next(answers)
        assert given <= taken <= given + 16


@pytest.mark.parametrize("name", ODD_TEXTS)
def test_every_string_gets_a_prediction(made: Classifier, name: str) -> None:
    text = ODD_TEXTS[name]
    for answer in made([text, (text, "a film"), ("a film", text), (text, text)]):
        assert all(0 <= score <= 1 for score in answer.scores.values())
        assert len(answer.tokens) <= made.max_length
        assert answer.kept[-1]


def test_half_characters_are_read_as_the_replacement_character(made: Classifier) -> None:
    assert made("a \ud800 film") == made("a \ufffd film")


def test_kept_are_places_in_tokens_and_only_get_fewer(made: Classifier) -> None:
    for answer in made([*tiny_texts(50, seed=3), "", "film"]):
        assert len(answer.kept) == 4
        assert answer.lengths == [len(layer) for layer in answer.kept]
        before = set(range(len(answer.tokens)))
        for layer in answer.kept:
            assert layer == sorted(layer)
            assert 0 in layer  # the first token may never leave
            assert set(layer) <= before
            before = set(layer)
    assert any(answer.lengths[-1] < len(answer.tokens) for answer in made(tiny_texts(5)))


def test_costs_are_those_of_the_lengths(made: Classifier) -> None:
    full = tiny_classifier(reduced=False)
    for text in tiny_texts(5, seed=4):
        answer, whole = made(text), full(text)
        n = len(answer.tokens)
        assert whole.kept == [list(range(n))] * 4
        assert whole.flops == whole.flops_full == answer.flops_full == made.cost.full(n)
        assert answer.flops == made.cost.reduced(n, answer.lengths)
        assert isinstance(answer.flops, int)
    long = made("a good film and a bad story " * 20)
    assert long.flops < long.flops_full


def test_a_cut_text_says_so() -> None:
    made = tiny_classifier(max_length=8)
    words = "a good film about people and music"
    for count in range(8):
        text = " ".join(words.split()[:count])
        assert made(text).truncated == (count > 6)
        assert len(made(text).tokens) == min(count + 2, 8)
    assert not made(("a film", "a bad story")).truncated
    cut = made(("a film about", "a bad story"))
    assert cut.truncated
    assert cut.tokens == ["[CLS]", "a", "film", "[SEP]", "a", "bad", "story", "[SEP]"]


@pytest.mark.parametrize("item", [None, 5, b"bytes", {"text": "a"}, ("a", "b", "c"), ("a", 5), [], 1.5])
def test_what_is_no_text_is_refused_with_its_place(made: Classifier, item: Any) -> None:
    with pytest.raises(BadInput, match=r"^item 2: expected a string or a pair of strings, got "):
        made(["a", ("a", "b"), item])
    answers = made(iter(["a", ("a", "b"), item]))
    with pytest.raises(BadInput, match=r"^item 2: "):
        list(answers)


@pytest.mark.parametrize("texts", [None, 5, 1.5, b"bytes", b"", {"text": "a film"}, {}, ("a", 5), ("a", None), object()])
def test_what_is_no_collection_of_texts_is_refused(made: Classifier, texts: Any) -> None:
    with pytest.raises(BadInput, match="expected"):
        made(texts)


def test_a_wrong_item_far_into_a_stream_is_named_by_its_place(made: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "WINDOW_TEXTS", 8)
    stream: Iterator[Any] = iter([*repeat("a", 20), 7])
    answers = made(stream)
    assert len(list(islice(answers, 16))) == 16  # what came before is answered
    with pytest.raises(BadInput, match=r"^item 20: .* got int 7$"):
        next(answers)
    with pytest.raises(BadInput, match=r"^item 20: "):
        made([*repeat("a", 20), 7])  # type: ignore[list-item]


def test_batches_keep_to_the_token_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny_classifier(token_budget=100)
    sizes: list[list[int]] = []
    run = TorchPacked.__call__

    def watched(self: TorchPacked, texts: Sequence[EncodedText], **options: Any) -> Answer:
        sizes.append([len(text.ids) for text in texts])
        return run(self, texts, **options)

    monkeypatch.setattr(TorchPacked, "__call__", watched)
    texts = [*tiny_texts(200, seed=5), "film " * 300]
    answers = made(texts)
    assert sum(map(len, sizes)) == len(texts)
    assert all(len(batch) == 1 or sum(batch) <= 100 for batch in sizes)
    assert max(map(sum, sizes)) == 302  # alone, as it is longer than the budget
    assert close(answers, tiny_classifier()(texts))


def test_threads_may_share_a_classifier(made: Classifier) -> None:
    texts: list[Text] = [*tiny_texts(24, seed=6), ("a film", "a story " * 600)]
    expected = made(texts)
    with ThreadPoolExecutor(8) as pool:
        for answers in pool.map(lambda _: made(texts), range(24)):
            assert answers == expected


def test_the_tokenizer_may_be_used_elsewhere_meanwhile(made: Classifier) -> None:
    expected = made("a good film about people")
    made.tokenizer(["a", "a b c d e"], padding="max_length", truncation=True, max_length=3)
    assert made("a good film about people") == expected


@pytest.mark.parametrize("max_length", [0, 1, 2, 513, -5])
def test_a_maximum_length_outside_the_model_is_refused(max_length: int) -> None:
    with pytest.raises(BadConfig, match=r"max_length must lie in 3 to 512"):
        tiny_classifier(max_length=max_length)


@pytest.mark.parametrize("token_budget", [0, -1])
def test_a_budget_of_no_tokens_is_refused(token_budget: int) -> None:
    with pytest.raises(BadConfig, match="token_budget must be at least 1"):
        tiny_classifier(token_budget=token_budget)


def test_the_shortest_maximum_length_works() -> None:
    made = tiny_classifier(max_length=3, token_budget=1)
    assert made("a good film").tokens == ["[CLS]", "a", "[SEP]"]
    assert made(("a good film", "a story")).tokens == ["[CLS]", "[SEP]", "[SEP]"]


def test_a_device_may_be_named() -> None:
    model, tokenizer = tiny_bert(), tiny_tokenizer()
    for device in ("cpu", torch.device("cpu")):
        made = Classifier(model, tokenizer, device=device)
        assert made.device == torch.device("cpu")
        assert made("a film").label in made.labels


def test_the_tokenizer_may_shorten_the_model() -> None:
    assert Classifier(tiny_bert(), tiny_tokenizer(max_length=32)).max_length == 32
    assert Classifier(tiny_bert(max_positions=64), tiny_tokenizer()).max_length == 64


@pytest.mark.parametrize(
    ("problem_type", "labels"),
    [
        (None, 3),
        (None, 1),
        ("single_label_classification", 3),
        ("multi_label_classification", 3),
        ("multi_label_classification", 1),
        ("regression", 1),
        ("regression", 3),
    ],
)
def test_scores_are_those_of_the_pipeline(problem_type: str | None, labels: int) -> None:
    model, tokenizer = tiny_bert(labels=labels), tiny_tokenizer()
    model.config.problem_type = problem_type
    model.config.id2label = {number: f"label {number}" for number in range(labels)}
    made = Classifier(model, tokenizer)
    classify: Callable[..., Any] = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None, device="cpu")
    for text in tiny_texts(4, seed=7):
        expected = {entry["label"]: entry["score"] for entry in classify([text])[0]}
        answer = made(text)
        assert answer.scores == pytest.approx(expected, abs=1e-6)  # float32, other summation order
        assert answer.label == max(expected, key=lambda label: expected[label])


def test_long_texts_and_pairs_get_the_scores_of_the_pipeline() -> None:
    model, tokenizer = tiny_bert(), tiny_tokenizer()
    made = Classifier(model, tokenizer, max_length=33)
    for texts in (("a good film " * 30, None), ("a good film " * 30, "a bad story " * 50)):
        inputs = tokenizer(*texts, truncation=True, max_length=33, return_tensors="pt")
        with torch.no_grad():
            expected = model(**inputs).logits.softmax(-1)[0]
        answer = made(texts[0]) if texts[1] is None else made((texts[0], texts[1]))
        assert list(answer.scores.values()) == pytest.approx(expected.tolist(), abs=1e-6)  # float32, other summation order
        assert answer.truncated


def check_mixed_points(made: Classifier) -> None:
    """Texts that each run in their own way, in one list, are answered as by calls of their own."""
    texts = tiny_texts(24, seed=7)
    ways = [Operating(), Operating(0.0), Operating(0.5), Operating(2.0), Operating(2.0, 0.99, 0.0)]
    hows = [ways[index % len(ways)] for index in range(len(texts))]
    together = made.answers(made.encoder.parts(texts), hows)
    assert len({answer.flops / answer.flops_full for answer in together}) > len(ways)
    assert any(answer.escalated for answer in together)
    for text, how, answer in zip(texts, hows, together, strict=True):
        alone = made.answers(made.encoder.parts([text]), [how])[0]
        assert answer.scores == pytest.approx(alone.scores, abs=1e-5)  # float32, another batch
        assert (answer.depths, answer.flops, answer.escalated) == (alone.depths, alone.flops, alone.escalated)
        assert answer.logits == pytest.approx(alone.logits, abs=1e-4)


def test_texts_at_different_points_share_batches_and_are_answered_as_alone() -> None:
    check_mixed_points(tiny_classifier(eta=0.5))


def test_one_point_for_the_whole_batch_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    each = TorchPacked.each

    def planted(self: Any, batches: Any, *, scale: Any = None, reduced: bool = True, trace: bool = True) -> Any:
        if isinstance(scale, list):
            scale = [[row[0]] * len(row) for row in scale]
        return each(self, batches, scale=scale, reduced=reduced, trace=trace)

    monkeypatch.setattr(TorchPacked, "each", planted)
    with pytest.raises(AssertionError):
        check_mixed_points(tiny_classifier(eta=0.5))
