"""Texts that the model, or the tokenizer, cannot do: only they suffer, and clients are told which."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from adapler.classifier import Classifier
from adapler.data.text import TextEncoder
from adapler.errors import BadModel
from adapler.serve.limits import Limits
from tests.serving import serving
from tests.tiny import tiny_classifier

LONG = "good film " * 600
"""What is to blame in these tests: no other text is as long as the model reads."""
FAILED = {"error": "the model could not run (RuntimeError)", "error_type": "Backend"}
NO_NUMBER = {"error": "the model gave a score that is not a number", "error_type": "Backend"}
NAN = float("nan")


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return tiny_classifier(eta=0.5)


@contextmanager
def failing(classifier: Classifier) -> Iterator[list[int]]:
    """Batches with a long text fail; gives the number of texts of each batch that was begun."""
    answers, sizes = classifier.answers, []

    def fail(parts: Any, how: Any) -> Any:
        sizes.append(len(parts))
        if any(is_long(text) for text in parts):
            raise RuntimeError("a secret text")
        return answers(parts, how)

    with patched(classifier, fail):
        yield sizes


@contextmanager
def patched(classifier: Classifier, answers: Any) -> Iterator[None]:
    classifier.answers = answers  # type: ignore[method-assign]
    try:
        yield
    finally:
        del classifier.answers


def is_long(text: Any) -> bool:
    return any(len(part.ids) == 512 for part in text)


def at(index: int, error: dict[str, str]) -> dict[str, str]:
    return {**error, "error": f"item {index}: {error['error']}"}


def test_one_bad_batch_mate_does_not_fail_the_others(classifier: Classifier) -> None:
    with serving(classifier) as server:
        with failing(classifier), ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda text: server.predict({"inputs": text}), ["good", "bad", LONG] * 4))
        assert [reply.status for reply in replies] == [200, 200, 424] * 4
        assert replies[2].content == FAILED
        assert server.predict({"inputs": LONG}).status == 200


@pytest.mark.parametrize("path", ["/predict", "/explain"])
def test_nor_the_others_of_its_request_where_that_may_be_partial(classifier: Classifier, path: str) -> None:
    items: list[Any] = [["good"], [LONG], ["bad"], [""], ["a film"], [LONG]]
    with serving(classifier, Limits(max_client_batch_size=4)) as server:
        good = [server.predict({"inputs": items[index]}, path).content for index in (0, 2, 4)]
        with failing(classifier):
            reply = server.predict({"inputs": items, "partial": True}, path)
            alone = server.predict({"inputs": LONG, "partial": True}, path)
    assert reply.status == 200
    assert [same(reply.content[index]) for index in (0, 2, 4)] == [same(each) for each in good]
    assert [reply.content[index] for index in (1, 5)] == [at(1, FAILED), at(5, FAILED)]
    assert reply.content[3]["error_type"] == "Empty"
    assert (alone.status, alone.content) == (424, FAILED)  # there is nothing else to answer


def same(row: Any) -> Any:
    """What two runs of a text have in common."""
    return row["tokens"] if isinstance(row, dict) else [each["label"] for each in row]


def test_whole_answers_name_the_one_to_blame_and_run_nothing_after_it(classifier: Classifier) -> None:
    items = [["good"], ["bad"], [LONG], ["a film"], [LONG], ["a film"], ["a film"]]
    with serving(classifier) as server, failing(classifier) as sizes:
        reply = server.predict({"inputs": items})
    assert (reply.status, reply.content) == (424, at(2, FAILED))
    assert sizes == [7, 1, 1, 1]


def test_in_later_pieces_too(classifier: Classifier) -> None:
    items = [["good"]] * 9 + [[LONG]] + [["bad"]] * 5
    with serving(classifier, Limits(max_client_batch_size=4)) as server, failing(classifier):
        reply = server.predict({"inputs": items})
    assert (reply.status, reply.content) == (424, at(9, FAILED))


def test_a_batch_that_fails_only_as_a_whole_is_answered(classifier: Classifier) -> None:
    answers = classifier.answers

    def fail(parts: Any, how: Any) -> Any:
        if len(parts) > 1:
            raise MemoryError
        return answers(parts, how)

    with serving(classifier) as server, patched(classifier, fail):
        reply = server.predict({"inputs": [["good"], ["bad"]]})
    assert reply.status == 200 and len(reply.content) == 2


@pytest.mark.parametrize("path", ["/predict", "/explain"])
def test_a_score_that_is_no_number_is_an_error_and_large_ones_are_not(path: str) -> None:
    made = tiny_classifier(labels=2, eta=0.5)
    head = made.backbone.model.classifier
    head.weight.data.zero_()
    head.bias.data[:] = head.bias.data.new_tensor([-50.0, 45.0])
    with serving(made) as server:
        assert server.predict({"inputs": "a film"}, path).status == 200
        row = server.predict({"inputs": "a film"}).content
        assert [each["score"] for each in row] == pytest.approx([1.0, 0.0])
        head.bias.data[:] = NAN
        for raw in (False, True):
            reply = server.predict({"inputs": "a film", "raw_scores": raw}, path)
            assert (reply.status, reply.content) == (424, NO_NUMBER)
        reply = server.predict({"inputs": [["a film"], ["good"]]}, path)
        assert (reply.status, reply.content) == (424, at(0, NO_NUMBER))


@pytest.mark.parametrize("path", ["/predict", "/explain"])
def test_only_the_text_whose_score_is_no_number_suffers(classifier: Classifier, path: str) -> None:
    answers = classifier.answers

    def spoilt(parts: Any, how: Any) -> Any:
        return [
            replace(given, scores=dict.fromkeys(given.scores, NAN)) if is_long(text) else given
            for text, given in zip(parts, answers(parts, how), strict=True)
        ]

    with serving(classifier) as server, patched(classifier, spoilt):
        reply = server.predict({"inputs": [["good"], [LONG], ["bad"]], "partial": True}, path)
        whole = server.predict({"inputs": [["good"], [LONG], ["bad"]]}, path)
    assert reply.status == 200
    assert [isinstance(row, dict) and "error" in row for row in reply.content] == [False, True, False]
    assert reply.content[1] == at(1, NO_NUMBER)
    assert (whole.status, whole.content) == (424, at(1, NO_NUMBER))


def test_an_account_holds_numbers_alone(classifier: Classifier) -> None:
    answers = classifier.answers

    def spoilt(parts: Any, how: Any) -> Any:
        found = answers(parts, how)
        for prediction in found:
            prediction.judged[0].scores[0][0] = NAN
        return found

    with serving(classifier) as server, patched(classifier, spoilt):
        reply = server.predict({"inputs": "a film"}, "/explain")
    assert (reply.status, reply.content) == (424, NO_NUMBER)


def test_a_text_that_the_tokenizer_cannot_read_is_named(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = TextEncoder.parts

    def fail(self: TextEncoder, texts: Any, *, places: bool = False) -> Any:
        if "unreadable" in texts:
            raise BadModel("the tokenizer cannot read a text")
        return parts(self, texts, places=places)

    monkeypatch.setattr(TextEncoder, "parts", fail)
    with serving(classifier) as server:
        whole = server.predict({"inputs": [["good"], ["unreadable"]]})
        some = server.predict({"inputs": [["good"], ["unreadable"]], "partial": True})
    expected = {"error": "item 1: the tokenizer cannot read the text", "error_type": "Tokenizer"}
    assert (whole.status, whole.content) == (422, expected)
    assert some.status == 200 and some.content[1] == expected
