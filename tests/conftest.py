"""Shared fixtures: tiny real models from configs, nothing downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "data" / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", default=str(GOLDEN), help="folder with golden.json and golden.npz of the authors' code")
