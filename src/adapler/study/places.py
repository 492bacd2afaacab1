"""Where a study's files lie, and what of it is done. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adapler.errors import BadInput
from adapler.study.plan import Cell

PLAN_FILE = "plan.json"
CELL_FILE = "cell.json"


def cell_folder(out: Path, cell: Cell) -> Path:
    """Where a cell's run lies."""
    return out / "cells" / cell.name


def cell_done(out: Path, cell: Cell) -> bool:
    """Whether a cell is trained."""
    if cell.method == "words":  # learnt anew in a moment, so nothing is kept of it but the record
        return record_file(out, cell.task, cell.method, cell.seed).exists()
    return (cell_folder(out, cell) / CELL_FILE).exists()


def record_file(out: Path, task: str, method: str, seed: int) -> Path:
    """Where the record of a task's method lies."""
    return out / "results" / f"study-{task}-{method}-{seed}.json"


def read_record(out: Path, task: str, method: str, seed: int) -> dict[str, Any]:
    """The record of a task's method."""
    (record,) = json.loads(record_file(out, task, method, seed).read_text(encoding="utf-8"))
    return dict(record)


def read_results(out: Path, kind: str = "study") -> list[dict[str, Any]]:
    """The records of a study that are there, in the order of their files' names."""
    files = sorted((out / "results").glob(f"{kind}-*.json"))
    if not files:
        raise BadInput(f"{out} holds no results of a study; make them: adapler study run PLAN --out {out}")
    return [record for file in files for record in json.loads(file.read_text(encoding="utf-8"))]
