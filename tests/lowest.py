"""The oldest versions `pyproject.toml` admits, as pip requirements, for make test-lowest: `python tests/lowest.py`."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
APART = {"torch", "build", "hatchling", "mypy", "requests", "ruff", "schemathesis"}
"""torch has one build for a CPU here and is installed before; the others are no part of what runs, or want newer companions."""
OF_THEIR_DAY = ["click==8.2.1", "pyparsing==3.1.4", "scipy==1.13.1", "typer-slim==0.21.2"]
"""What an old requirement does not go with in its newest version: typer of then warns about click of now, matplotlib about
pyparsing, scikit-learn about scipy; and transformers of then brings typer-slim, whose files lie where typer's do."""


def lowest() -> list[str]:
    """Every requirement of the package and its tests at its lower bound."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    found = list(OF_THEIR_DAY)
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        name, _, version = re.match(r"([\w.-]+)(>=)?([\w.]*)", requirement).groups()  # type: ignore[union-attr]
        if name not in APART:
            found.append(f"{name}=={version}")
    return found


if __name__ == "__main__":
    sys.stdout.write("\n".join(lowest()) + "\n")
