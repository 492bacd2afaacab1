"""Where a study's files lie, and what of it is done. No torch."""

from __future__ import annotations

from pathlib import Path

from adapler.study.plan import Cell

PLAN_FILE = "plan.json"
CELL_FILE = "cell.json"


def cell_folder(out: Path, cell: Cell) -> Path:
    """Where a cell's run lies."""
    return out / "cells" / cell.name


def cell_done(out: Path, cell: Cell) -> bool:
    """Whether a cell is trained."""
    return (cell_folder(out, cell) / CELL_FILE).exists()


def record_file(out: Path, task: str, method: str, seed: int) -> Path:
    """Where the record of a task's method lies."""
    return out / "results" / f"study-{task}-{method}-{seed}.json"
