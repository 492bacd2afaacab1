"""Results files read for the tables, and what a number was measured under in one line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
MISSING = "*not measured yet*"

Records = list[dict[str, Any]]


def read(pattern: str) -> Records:
    """The records of every results file of that name, in order of the files' names."""
    found: Records = []
    for file in sorted(RESULTS.glob(pattern)):
        found += json.loads(file.read_text(encoding="utf-8"))
    return found


def study_curves(backbone: str = "minilm") -> Records:
    """The study's models at every scale, on test."""
    found = [record for method in ("power", "trbert", "adapler") for record in read(f"curve-*-{method}-*.json")]
    return [record for record in found if record["backbone"] == backbone]


def conditions(record: dict[str, Any], software: Sequence[str] = ("torch", "transformers")) -> str:
    """What a number was measured under, in one line."""
    versions = record.get("versions", {})
    shown = ", ".join(f"{name} {versions[name]}" for name in software if name in versions)
    repeats = f"median of {record['repeats']} interleaved repeats, " if "repeats" in record else ""
    named = commit(record)
    return f"{repeats}{record['threads']} threads; {record['machine']}; {shown}; {record['date']}, {named}."


def where(records: Records) -> str:
    """The machines that records were made on, in one line, and from when to when."""
    machines = dict.fromkeys(str(record["machine"]) for record in records)
    dates = sorted({str(record["date"]) for record in records})
    return f"{' or '.join(machines)}; {' to '.join(dict.fromkeys((dates[0], dates[-1])))}"


def commit(record: dict[str, Any]) -> str:
    """The commit, short, marked where the tree was changed."""
    name = str(record.get("commit", "no commit"))
    return name[:10] + ("+changed" if name.endswith("+changed") else "")
