"""A pilot's records as the paper's Table 2, beside the paper's own numbers. No torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from adapler.study.paper import PAPER_PILOT
from adapler.study.rationale_plan import ROWS
from adapler.study.tables import Row, Table

NAMES = {
    "full": "full input",
    "human": "human rationale",
    "saliency": "saliency",
    "attention_all": "attention ALL",
    "attention_cls": "attention [CLS]",
    "random": "random words",
}
"""Rows as tables show them, in their order."""


def pilot_table(records: Sequence[Row]) -> Table:
    """A line a task and row: accuracy, difference from full input, speedup; and what the paper reports for its backbone."""
    lines = []
    for task in dict.fromkeys(row["task"] for row in records):
        for name in ROWS:
            own = [row for row in records if (row["task"], row.get("variant")) == (task, name) and "score" in row]
            if own:
                paper = PAPER_PILOT.get(task, {}).get(name)
                lines.append(
                    [
                        task,
                        NAMES[name],
                        str(len(own)),
                        _mean([100 * row["score"] for row in own]),
                        "" if name == "full" else _mean([-row["loss_points"] for row in own], sign="+"),
                        f"{statistics.mean(row['flops_speedup'] for row in own):.1f}x",
                        "" if paper is None else f"{paper[0]:.1f}",
                        "" if paper is None else f"{paper[1]:.1f}x",
                    ]
                )
        whole = [row for row in records if (row["task"], row.get("variant")) == (task, "full") and "majority" in row["config"]]
        if whole:
            level = f"{100 * statistics.mean(row['config']['majority'] for row in whole):.1f}"
            lines.append([task, "the commonest label", "", level, "", "", "", ""])
    head = ["task", "words", "seeds", "accuracy", "against full", "speedup", "paper's", "paper's speedup"]
    return Table("Test accuracy (points) of models fine-tuned and tested on the chosen words alone, as many as people marked; "
                 "mean over seeds. Beside it the paper's, on its own backbone.", head, lines)  # fmt: skip


def pairs_table(records: Sequence[Row]) -> Table:
    """Rows held against each other on the same test documents."""
    lines = []
    for row in records:
        if row.get("unit") == "points":
            low, high = row["config"]["interval_95"]
            sure = "yes" if low > 0 or high < 0 else "no"
            seeds = str(len(row["config"]["seeds"]))
            lines.append([row["task"], row["variant"], seeds, f"{row['value']:+.1f}", f"{low:+.1f} to {high:+.1f}", sure])
    return Table(
        "Differences in points with the 95% interval of a paired bootstrap over test texts; documents that share one are drawn "
        "together.",
        ["task", "rows", "seeds", "difference", "95%", "differs from 0"],
        lines,
    )


def _mean(values: Sequence[float], sign: str = "") -> str:
    shown = f"{statistics.mean(values):{sign}.1f}"
    return shown if len(values) == 1 else f"{shown} ± {statistics.stdev(values):.1f}"
