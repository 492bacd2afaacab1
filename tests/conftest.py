"""Shared fixtures: tiny real models from configs, nothing downloaded. `--prove` runs the stated counts and records them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapler.doctor import CACHE_VARIABLE
from adapler.records import Record, write_records

GOLDEN = Path(__file__).parent / "data" / "golden"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", default=str(GOLDEN), help="folder with golden.json and golden.npz of the authors' code")
    parser.addoption("--prove", action="store_true", help="run the stated counts and write benchmarks/results/prove-*.json")


@pytest.fixture(scope="session")
def count(pytestconfig: pytest.Config) -> Callable[[int, int], int]:
    """`count(small, stated)`: how many cases to run, few in `make test`, the stated number in `make prove`."""
    proving = bool(pytestconfig.getoption("--prove"))
    return lambda small, stated: stated if proving else small


@pytest.fixture(scope="session")
def prove(pytestconfig: pytest.Config) -> Callable[[str, list[Record]], None]:
    """`prove(name, records)`: keep what a proof measured; does nothing outside `make prove`."""
    proving = bool(pytestconfig.getoption("--prove"))

    def keep(name: str, records: list[Record]) -> None:
        if proving:
            write_records(RESULTS / f"prove-{name}.json", records)

    return keep


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is remembered of this machine while testing is nobody's else."""
    before = os.environ.get(CACHE_VARIABLE)
    os.environ[CACHE_VARIABLE] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ[CACHE_VARIABLE]
    else:
        os.environ[CACHE_VARIABLE] = before
