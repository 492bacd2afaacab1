"""Bodies of requests, read by themselves: what is asked about, and how little a hostile one may cost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapler.serve import reading
from adapler.serve.limits import Limits
from adapler.serve.reading import Inputs, read_request
from adapler.serve.schema import ErrorType, PredictRequest, Refusal

LIMITS = Limits(max_request_items=100)


def read(content: object, limits: Limits = LIMITS) -> Inputs:
    return read_request(json.dumps(content).encode(), limits)[1]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every refusal that is made."""
    errors: list[str] = []

    class Counted(Refusal):
        def __init__(self, status: int, kind: ErrorType, error: str, headers: Any = None) -> None:
            errors.append(error)
            super().__init__(status, kind, error, headers)

    monkeypatch.setattr(reading, "Refusal", Counted)
    return errors


def test_the_first_bad_item_ends_the_reading(made: list[str]) -> None:
    with pytest.raises(Refusal, match=r"^item 1: expected a list of one or two strings, got a number$") as caught:
        read({"inputs": [["good"], *[0] * 98, []]})
    assert caught.value.status == 422
    assert len(made) == 1


def test_of_a_batch_that_may_be_answered_in_part_all_are_read(made: list[str]) -> None:
    found = read({"inputs": [["good"], *[0] * 98, [""]], "partial": True})
    assert len(found.items) == 100 and len(made) == 99
    assert found.items[0] == "good" and isinstance(found.items[99], Refusal)


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("item", [["a"], 0, []])
def test_more_items_than_a_server_allows_are_refused_unread(made: list[str], item: object, partial: bool) -> None:
    with pytest.raises(Refusal, match=r"^batch size 101 > maximum allowed batch size 100$") as caught:
        read({"inputs": [["a"], *[item] * 100], "partial": partial})
    assert (caught.value.status, caught.value.kind) == (422, ErrorType.validation)
    assert len(made) == 1
    assert len(read({"inputs": [["a"]] * 100, "partial": partial}).items) == 100


def test_where_nothing_is_split_a_client_batch_is_the_most() -> None:
    limits = Limits(max_client_batch_size=1, split=False)
    assert read({"inputs": ["one", "pair"]}, limits).items == [("one", "pair")]
    with pytest.raises(Refusal, match=r"^batch size 2 > maximum allowed batch size 1$"):
        read({"inputs": [["a"], ["b"]]}, limits)


@pytest.mark.parametrize("lists", ["[]", "{}", "[[0]]", '{"a": [1]}'])
@pytest.mark.parametrize("field", ["inputs", "unknown"])
def test_a_million_objects_are_never_made(lists: str, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PredictRequest, "model_validate_json", lambda body: pytest.fail("they were made"))
    body = f'{{"inputs": "a", "{field}": [{lists}{f", {lists}" * 300_000}]}}'.encode()
    with pytest.raises(Refusal, match=r"^the body holds more than 10100 lists and objects; maximum") as caught:
        read_request(body, LIMITS)
    assert caught.value.status == 422


def test_texts_may_hold_any_number_of_brackets() -> None:
    for text in ("[" * 50_000, '["{' * 20_000, "\\[" * 20_000, '\\"[' * 20_000 + "\\"):
        found = read({"inputs": [[text], [text, text]]})
        assert found.items == [text, (text, text)]
    with pytest.raises(Refusal, match="not JSON"):
        read_request(b'{"inputs": "' + b'\\"[' * 20_000, LIMITS)  # without end


def test_what_was_sent_is_not_kept() -> None:
    request, inputs = read_request(b'{"inputs": [["a"], [[[]]]], "partial": true}', LIMITS)
    assert request.inputs is None and len(inputs.items) == 2
