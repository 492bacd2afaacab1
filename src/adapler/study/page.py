"""A study on one HTML page: tables, curves, where each method's curve lies above another's, conditions. Nothing fetched."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from adapler.report.page import template
from adapler.study.curves import draw, mean_above, read_curves
from adapler.study.paper import NAMES
from adapler.study.places import read_results
from adapler.study.plan import PAPER_SETTINGS, STATIC
from adapler.study.tables import Row, Table, as_html, dataset_table, results_table

_TEMPLATE = "page.html.j2"


def write_page(study: Path, out: Path) -> None:
    """Write the page of a study folder whose curves are measured."""
    records, curves = read_results(study), read_curves(study)
    first = records[0]
    page = template("study", _TEMPLATE).render(
        results=Markup(as_html(results_table(records))),
        datasets=Markup(as_html(dataset_table(records))),
        contests=Markup(as_html(contest_table(curves))),
        figure=Markup(_figure(curves, records)),
        machine=" or ".join(dict.fromkeys(row["machine"] for row in records)),
        versions=", ".join(f"{name} {version}" for name, version in first["versions"].items()),
        commits=", ".join(sorted({str(row.get("commit", "unknown"))[:12] for row in records})),
        backbones=", ".join(sorted({row["backbone"] for row in records})),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = out.with_name(out.name + ".tmp")
    staging.write_text(page, encoding="utf-8")
    staging.replace(out)


def contest_table(curves: Sequence[Row]) -> Table:
    """AdapLeR's curve against each other method's: the share of the shared range in which it lies above."""
    others = [method for method in NAMES if method not in (*STATIC, "adapler", PAPER_SETTINGS)]
    rows = []
    for task in dict.fromkeys(row["task"] for row in curves):
        cells = [task]
        for other in others:
            pair = [[row for row in curves if (row["task"], row["method"]) == (task, method)] for method in ("adapler", other)]
            share = mean_above(*pair)
            cells.append("" if share is None else f"{100 * share:.0f}%")
        rows.append(cells)
    head = ["task", *(f"above {NAMES[other]}" for other in others)]
    return Table(
        "Share of the shared range of speedups (logarithmic) in which AdapLeR scores higher at equal speed; mean over seeds.",
        head,
        rows,
    )


def _figure(curves: Sequence[Row], records: Sequence[Row]) -> str:
    """The curves as an SVG element."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "curves.svg"
        draw(curves, records, file)
        text = file.read_text(encoding="utf-8")
    return text[text.index("<svg") :]
