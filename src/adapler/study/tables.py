"""A study's records as tables: this machine's beside the paper's, and the datasets. Markdown, LaTeX or HTML. No torch."""

from __future__ import annotations

import html
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adapler.registry import Registry
from adapler.study.paper import NAMES, PAPER, paper_loss, paper_speedup

Row = dict[str, Any]
"""A record as JSON holds it."""
FORMATS = Registry(
    "format",
    {
        "markdown": "adapler.study.tables:markdown",
        "latex": "adapler.study.tables:latex",
        "html": "adapler.study.tables:as_html",
    },
)

_MISSED = "†"
"""Marks a score whose operating point lost more on dev than it may."""

_TEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "_%&#${}"},
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "±": r"$\pm$",
        "†": r"$\dagger$",
        "‡": r"$\ddagger$",
    }
)


@dataclass(frozen=True)
class Table:
    """Cells as text; the first `words` columns hold words, the others numbers."""

    caption: str
    head: list[str]
    rows: list[list[str]]
    words: int = 1


def results_table(records: Sequence[Row]) -> Table:
    """A row a task and method: score, loss and speedup, mean over seeds, and what the paper reports for its own backbone."""
    rows = []
    for task in _tasks(records):
        for method in NAMES:
            found = [row for row in records if (row["task"], row["method"]) == (task, method)]
            if found:
                rows.append(_result(task, method, found))
    missed = ""
    if any(row[3].endswith(_MISSED) for row in rows):
        missed = f" {_MISSED} With some seed no point came within the margin on dev; its best-scoring one was taken."
    seeds = max((len(_of(records, task, "full")) for task in _tasks(records)), default=0)
    mean = f"mean of up to {seeds} seeds" if seeds > 1 else "one seed"
    return Table(
        f"Test score (points) and FLOPs speedup against the same backbone at full length, {mean}; the "
        f"operating point was chosen on dev. Beside it the paper's loss and speedup, on its own backbone.{missed}",
        ["task", "method", "seeds", "score", "loss", "speedup", "executed", "paper's loss", "paper's speedup"],
        rows,
        words=2,
    )


def dataset_table(records: Sequence[Row]) -> Table:
    """What the tasks are, from the records of their full-length models."""
    rows = []
    for task in _tasks(records):
        first = _of(records, task, "full")[0]
        about = first["config"].get("dataset", {})
        rows.append(
            [
                task,
                str(first["n_train"]),
                str(about.get("n_dev", "")),
                str(first["n"]),
                first["metric"],
                _number(about.get("tokens_mean"), 1),
                _number(about.get("tokens_median"), 0),
                str(about.get("max_length", "")),
            ]
        )
    head = ["task", "train", "dev", "test", "metric", "mean tokens", "median tokens", "cut at"]
    return Table("Examples used, and tokens of a test text, special ones included.", head, rows)


def markdown(table: Table) -> str:
    """As README and docs hold it."""
    lines = [f"| {' | '.join(table.head)} |", "|" + "---|" * table.words + "---:|" * (len(table.head) - table.words)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in table.rows), "", table.caption])


def latex(table: Table) -> str:
    """With booktabs."""
    body = [" & ".join(map(_tex, row)) + r" \\" for row in table.rows]
    head = " & ".join(map(_tex, table.head)) + r" \\"
    columns = "l" * table.words + "r" * (len(table.head) - table.words)
    lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", rf"\caption{{{_tex(table.caption)}}}", r"\end{table}"])


def as_html(table: Table) -> str:
    """A table element."""
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in table.head)
    rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in table.rows)
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    caption = f"<caption>{html.escape(table.caption)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _result(task: str, method: str, found: Sequence[Row]) -> list[str]:
    def mean(key: str, digits: int, factor: float = 1.0, sign: str = "") -> str:
        values = [factor * row[key] for row in found if key in row]
        if not values:
            return ""
        shown = f"{statistics.mean(values):{sign}.{digits}f}"
        return shown if len(values) == 1 else f"{shown} ± {statistics.stdev(values):.{digits}f}"

    loss, speedup = paper_loss(task, method), paper_speedup(task, method)
    return [
        task,
        NAMES[method],
        str(len(found)),
        mean("score", 1, 100.0) + ("" if all(map(_within, found)) else f" {_MISSED}"),
        "" if method == "full" else mean("loss_points", 1, sign="+"),
        _times(mean("flops_speedup", 2)),
        _times(mean("flops_speedup_executed", 2)),
        "" if loss is None or method == "full" else f"{loss:+.1f}",
        "" if speedup is None else f"{speedup:.2f}x",
    ]


def _tasks(records: Sequence[Row]) -> list[str]:
    """In the paper's order, others behind."""
    there = {row["task"] for row in records if row["method"] == "full"}
    return [task for task in PAPER if task in there] + sorted(there - set(PAPER))


def _of(records: Sequence[Row], task: str, method: str) -> list[Row]:
    return [row for row in records if (row["task"], row["method"]) == (task, method)]


def _times(value: str) -> str:
    return value and f"{value}x"


def _within(row: Row) -> bool:
    """Whether its point was within the margin on dev; a bag of words has no point."""
    return bool(row.get("config", {}).get("within_margin", True))


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _tex(text: str) -> str:
    return text.translate(_TEX)
