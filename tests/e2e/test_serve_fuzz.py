"""Hostile and odd requests: no error of the server's own, every answer as its description says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import torch

from adapler.serve.limits import Limits
from adapler.serve.reading import read_request
from adapler.serve.service import Service
from tests.serving import Served, serving
from tests.tiny import tiny_classifier

pytest.importorskip("schemathesis")  # not with the oldest versions

from benchmarks.serve_fuzz import HEAVY, MODEL_ROUTES, described_cases, heavy_bodies, mutated_bodies


@pytest.fixture(autouse=True)
def _small_numbers() -> None:
    """Cases are drawn from all floats; a training before, in the same process, has switched the smallest off."""
    torch.set_flush_denormal(False)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(tiny_classifier(eta=0.5, layers=2), Limits(max_client_batch_size=4)) as server:
        yield server


def test_cases_made_from_the_description_are_answered_as_it_says(served: Served, count: Callable[[int, int], int]) -> None:
    wanted = count(200, 2000)
    seen = described_cases(served.url, wanted)
    assert seen["well-formed"] >= wanted / 2
    assert seen["status 200"] > wanted / 4
    assert not [status for status in seen if status.startswith("status 5")]


def test_changed_bytes_are_refused_or_answered(served: Served, count: Callable[[int, int], int]) -> None:
    wanted = count(200, 5000)
    seen = mutated_bodies(served.url, wanted)
    assert sum(seen.values()) == wanted
    assert set(seen) <= {"200", "400", "413", "422"} and {"200", "400", "422"} <= set(seen)


def test_large_bodies_of_very_many_small_things_stop_nobody(served: Served) -> None:
    seen, _ = heavy_bodies(served.url)
    assert set(seen) == {"400", "422"}
    assert sum(seen.values()) == len(MODEL_ROUTES) * len(HEAVY)


def test_a_server_that_stops_for_one_would_be_noticed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(body: bytes, limits: Limits) -> object:
        time.sleep(1.2)
        return read_request(body, limits)

    monkeypatch.setattr("adapler.serve.service.read_request", slow)
    monkeypatch.setattr("adapler.serve.service._SHORT_BODY", 10_000_000)
    monkeypatch.setattr("benchmarks.serve_fuzz.HEAVY", HEAVY[:1])
    with pytest.raises(AssertionError, match="/health took"):
        heavy_bodies(served.url)


def test_a_server_error_would_be_noticed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(self: Service, body: bytes, kind: str) -> None:
        raise KeyError(kind)

    monkeypatch.setattr(Service, "__call__", failing)
    with pytest.raises(AssertionError):
        mutated_bodies(served.url, 10)
    with pytest.raises(BaseException, match=r"(?i)server error|500"):
        described_cases(served.url, 10)
