"""Agreement with human rationales as a figure and a page: mean average precision, false positive rate and recall by layer."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from adapler.report.page import template, write_page
from adapler.report.plot import new_figure, save_figure

_TEMPLATE = "agreement.html.j2"
Row = dict[str, Any]
"""A record as JSON holds it."""
PANELS = (
    ("map", "mean average precision"),
    ("fpr", "false positive rate at 1/n"),
    ("recall", "recall at 1/n"),
    ("fpr_at_annotated", "false positive rate, as many as marked"),
)
BESIDE = {
    "fpr": "recall",
    "fpr_of_tokens": "recall_of_tokens",
    "fpr_of_left": "recall_of_left",
    "fpr_at_annotated": "recall_at_annotated",
    "fpr_at_cp": "recall_at_cp",
}
"""The recall that stands beside a false positive rate: who selects nothing has neither."""
HELD_AT = {
    "fpr_above_cp": "at 1/n",
    "fpr_at_annotated_above_cp": "of as many words as people marked",
    "fpr_at_cp_above_cp": "of as many words as CP selects at 1/n",
}
"""Where CP is held against the others: by measure, in words."""
_LINES = {
    "cp": ("#D55E00", "o", "-"),
    "kept": ("#D55E00", "s", ":"),
    "saliency": ("#000000", "D", "-"),
    "attention": ("#0072B2", "^", "-"),
    "attention_cls": ("#0072B2", "v", ":"),
    "rollout": ("#009E73", "^", "-"),
    "rollout_cls": ("#009E73", "v", ":"),
    "random": ("#999999", "x", "--"),
    "integrated_gradients": ("#CC79A7", "P", "-"),
}
"""Okabe and Ito's colours, which the colour-blind tell apart; every line has a mark of its own as well."""


def draw(rows: Sequence[Row], path: Path) -> None:
    """The paper's Figure 5, with recall and equal numbers beside it; PNG, SVG or PDF by the file's ending."""
    figure = new_figure(4.0 * len(PANELS), 3.4, layout="constrained")
    for number, (metric, title) in enumerate(PANELS):
        axes = figure.add_subplot(1, len(PANELS), number + 1)
        for name, (colour, mark, line) in _LINES.items():
            own = sorted((row for row in rows if (row["method"], row["metric"]) == (name, metric)), key=lambda r: r["layer"])
            if own:
                layers = [row["layer"] for row in own]
                axes.plot(
                    layers, [r["value"] for r in own], color=colour, marker=mark, linestyle=line, markersize=4, label=name
                )
                low, high = zip(*(row["config"]["interval_95"] for row in own), strict=True)
                axes.fill_between(layers, low, high, color=colour, alpha=0.08, linewidth=0)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("layer")
        axes.set_ylim(bottom=0)
        axes.set_xticks(sorted({row["layer"] for row in rows}))
    figure.axes[0].legend(fontsize=7)
    save_figure(figure, path)


def write_agreement(rows: Sequence[Row], meanings: dict[str, str], path: Path) -> None:
    """The page: the figure, CP against each other explainer, and every measure by layer. Nothing fetched, no script."""
    first = rows[0]
    names = list(dict.fromkeys(row["method"] for row in rows))
    tables = [(metric, words, _table(rows, names, metric)) for metric, words in meanings.items()]
    page = template("report", _TEMPLATE).render(
        task=first.get("task", ""),
        figure=Markup(_svg(rows)),
        layers=sorted({row["layer"] for row in rows}),
        contests=_contests(rows),
        verdicts=verdicts(rows),
        tables=[table for table in tables if table[2]],
        about={key: value for key, value in first["config"].items() if key != "interval_95"},
        machine=first["machine"],
        versions=", ".join(f"{name} {version}" for name, version in first["versions"].items()),
        commit=str(first.get("commit", "unknown"))[:12],
        date=first["date"],
    )
    write_page(page, path)


def _table(rows: Sequence[Row], names: Sequence[str], metric: str) -> list[tuple[str, list[str]]]:
    """An explainer a line: its name and a cell a layer, with the interval, and a false positive rate's recall behind it."""
    layers = sorted({row["layer"] for row in rows})
    found = {(row["method"], row["metric"], row["layer"]): row for row in rows}
    lines = []
    for name in names:
        cells = [shown(found.get((name, metric, layer))) for layer in layers]
        if metric in BESIDE:
            recalls = [found.get((name, BESIDE[metric], layer)) for layer in layers]
            cells = [
                cell if row is None else f"{cell}, recall {row['value']:.3f}" for cell, row in zip(cells, recalls, strict=True)
            ]
        if any(cells):
            lines.append((name, cells))
    return lines


def shown(row: Row | None) -> str:
    """A value with its interval."""
    if row is None:
        return ""
    low, high = row["config"]["interval_95"]
    return f"{row['value']:.3f} ({low:.3f} to {high:.3f})"


def _contests(rows: Sequence[Row]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """At each level, by how much each explainer's false positive rate lies above CP's; in brackets where it does not count."""
    layers = sorted({row["layer"] for row in rows})
    parts = []
    for metric, words in HELD_AT.items():
        found = {(row["method"], row["layer"]): row for row in rows if row["metric"] == metric}
        lines = []
        for name in dict.fromkeys(name for name, _ in found):
            cells = []
            for layer in layers:
                row = found.get((name, layer))
                cells.append(shown(row) if row is None or row["config"].get("counted") else f"[{shown(row)}]")
            lines.append((name, cells))
        if lines:
            parts.append((words, lines))
    return parts


@dataclass(frozen=True)
class Tally:
    """In how many layers CP selects fewer wrong words than another explainer."""

    level: str
    """How many words are selected: a key of `HELD_AT`."""
    name: str
    layers: int
    counted: int
    """Of them, those that count."""
    below: int
    """Of those, how many have CP's rate below the other's."""
    sure: int
    """And with the whole interval."""


def tallies(rows: Sequence[Row]) -> list[Tally]:
    """Figure 5's claim, counted, by level and explainer."""
    made = []
    for level in HELD_AT:
        found = [row for row in rows if row["metric"] == level]
        for name in dict.fromkeys(row["method"] for row in found):
            own = [row for row in found if row["method"] == name]
            counted = [row for row in own if row["config"].get("counted")]
            below = [row for row in counted if row["value"] > 0]
            sure = [row for row in below if row["config"]["interval_95"][0] > 0]
            made.append(Tally(level, name, len(own), len(counted), len(below), len(sure)))
    return made


def verdicts(rows: Sequence[Row]) -> list[str]:
    """The same in words."""
    lines = []
    for found in tallies(rows):
        left_out = f"; {found.layers - found.counted} do not count" if found.counted < found.layers else ""
        lines.append(
            f"CP's false positive rate {HELD_AT[found.level]} lies below that of {found.name} in {found.below} of "
            f"{found.counted} layers that count (the whole interval in {found.sure}){left_out}"
        )
    if not any(row["method"] == "saliency" for row in rows) and lines:
        lines.append("at 1/n no layer counts: whether CP selects enough is judged by saliency, which was not measured")
    return lines


def _svg(rows: Sequence[Row]) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "figure.svg"
        draw(rows, file)
        text = file.read_text(encoding="utf-8")
    return text[text.index("<svg") :]
