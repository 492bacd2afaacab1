"""Figure 3 of the paper: score against speed, a panel a task, a line a method. Every trained model at every scale, on test.

These points were not chosen on dev: their records are of kind `curve` and count for no comparison of single points.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from adapler.errors import BadInput
from adapler.evaluation.metrics import score
from adapler.evaluation.outcome import run
from adapler.records import Record, model_name, write_records
from adapler.report.plot import check_figure, new_figure, save_figure
from adapler.study.paper import NAMES
from adapler.study.places import CELL_FILE, PLAN_FILE, cell_done, cell_folder, read_results
from adapler.study.plan import PAPER_SETTINGS, STATIC, Cell, Plan, cells
from adapler.study.point import opened, test_texts
from adapler.study.tables import Row
from adapler.training.snapshot import read_json

COLOURS = {
    "words": "#999999",
    "full": "#000000",
    "distilled": "#56B4E9",
    "power": "#E69F00",
    "trbert": "#009E73",
    "adapler": "#D55E00",
    "adapler_paper": "#CC79A7",
}
"""Okabe and Ito's, which the colour-blind tell apart; every line has a mark of its own as well."""
MARKS = {"words": "x", "full": "s", "distilled": "D", "power": "^", "trbert": "v", "adapler": "o", "adapler_paper": "P"}


def measure_curves(out: Path, say: Callable[[str], None], limit: int | None = None) -> None:
    """Records of the points of every finished cell that removes tokens, on test (the plan's, or its first `limit` texts), a
    file each; what is there on as many texts is not measured again."""
    if not (out / PLAN_FILE).exists():
        raise BadInput(f"{out} holds no study; make one: adapler study run PLAN --out {out}")
    plan = Plan.model_validate(read_json(out / PLAN_FILE))
    if limit is not None:
        plan = plan.model_copy(update={"test_limit": min(limit, plan.test_limit or limit)})
    done = [cell for cell in cells(plan) if cell.method not in (*STATIC, PAPER_SETTINGS) and cell_done(out, cell)]
    if not done:
        raise BadInput(f"no method of {out} that removes tokens is done; go on with: adapler study run PLAN --out {out}")
    for cell in done:
        file = out / "results" / f"curve-{cell.name}.json"
        if not _measured(file, plan.test_limit):
            say(f"{cell.name} on test ...")
            write_records(file, _curve(plan, cell, out))


def _measured(file: Path, limit: int | None) -> bool:
    """Whether a file holds a curve on as many texts: curves on others would not be comparable."""
    if not file.exists():
        return False
    first = json.loads(file.read_text(encoding="utf-8"))[0]
    return bool(first.get("config", {}).get("test_limit") == limit)


def _curve(plan: Plan, cell: Cell, out: Path) -> list[Record]:
    model = opened(out, cell)
    texts, labels = test_texts(plan, cell, model, model.max_length)
    metric = read_json(cell_folder(out, cell) / CELL_FILE)["metric"]
    records = []
    assert model.reducer is not None
    for scale in filter(None, model.reducer.scales):
        outcome = run(model.backbone, model.reducer, texts, scale=scale)
        records.append(
            Record(
                kind="curve",
                task=cell.task,
                method=cell.method,
                variant=cell.variant,
                backbone=model_name(cell.config.model),
                point=f"scale {scale:g}",
                seed=cell.seed,
                split="test",
                n=len(texts),
                metric=metric,
                score=score(metric, labels, outcome.predictions),
                flops_speedup=outcome.speedups.flops_speedup,
                flops_speedup_executed=outcome.speedups.flops_speedup_executed,
                threads=torch.get_num_threads(),
                config={"test_limit": plan.test_limit},
            )
        )
    return records


def upper_front(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """(speedup, points) of those that no other beats in both, slowest first."""
    found = sorted(((row["flops_speedup"], 100 * row["score"]) for row in rows), reverse=True)
    front: list[tuple[float, float]] = []
    for speedup, points in found:
        if not front or points > front[-1][1]:
            front.append((speedup, points))
    return front[::-1]


def draw(records: Sequence[Row], statics: Sequence[Row], path: Path) -> None:
    """The figure as PNG, SVG or PDF, by the file's ending. `statics`: study records of the methods without a knob."""
    check_figure(path)
    tasks = list(dict.fromkeys(row["task"] for row in records))
    columns = min(4, len(tasks))
    lines = -(-len(tasks) // columns)
    figure = new_figure(3.6 * columns, 3.0 * lines, layout="constrained")
    for number, task in enumerate(tasks):
        axes = figure.add_subplot(lines, columns, number + 1)
        _panel(axes, [row for row in records if row["task"] == task], [row for row in statics if row["task"] == task])
        axes.set_title(task)
    save_figure(figure, path)


def _panel(axes: Any, rows: Sequence[Row], statics: Sequence[Row]) -> None:
    for method in NAMES:
        own = [row for row in rows if row["method"] == method] if method not in STATIC else []
        still = [row for row in statics if row["method"] == method and "flops_speedup" in row]
        style = {"color": COLOURS[method], "marker": MARKS[method], "label": NAMES[method], "markersize": 4}
        if own:
            front = upper_front(own)
            axes.plot([x for x, _ in front], [y for _, y in front], linewidth=1.2, **style)
        elif still:
            axes.plot([r["flops_speedup"] for r in still], [100 * r["score"] for r in still], linestyle="none", **style)
    full = [100 * row["score"] for row in statics if row["method"] == "full"]
    if full:
        level = sum(full) / len(full)
        axes.axhline(level - 1, color="#999999", linewidth=0.8, linestyle=":")
        axes.set_ylim(level - 12, level + 2)
    axes.set_xscale("log")
    axes.set_xticks(ticks := [1, 2, 4, 8, 16, 32], [f"{tick}x" for tick in ticks], minor=False)
    axes.set_xlim(0.9, 40)
    axes.minorticks_off()
    axes.set_xlabel("FLOPs speedup")
    axes.set_ylabel("test score, points")
    axes.legend(fontsize=6)


def mean_above(first: Sequence[Row], second: Sequence[Row]) -> float | None:
    """`above` of every seed that both have on the same number of texts, and of those the mean: a front over several seeds would
    be one of the luckiest."""
    shared = {(row["seed"], row.get("n")) for row in first} & {(row["seed"], row.get("n")) for row in second}
    pairs = ([[row for row in rows if (row["seed"], row.get("n")) == key] for rows in (first, second)] for key in shared)
    shares = [share for one, other in pairs if (share := above(one, other)) is not None]
    return sum(shares) / len(shares) if shares else None


def above(first: Sequence[Row], second: Sequence[Row]) -> float | None:
    """Share of the shared range of (logarithmic) speedups in which the first method's front lies above the second's. Slower
    than where its front begins, a method has the score it has there: what is faster and better serves there as well."""
    import numpy as np

    fronts = [upper_front(rows) for rows in (first, second)]
    low = max(min(row["flops_speedup"] for row in rows) for rows in (first, second))
    high = min(front[-1][0] for front in fronts)
    if high < low:
        return None
    places = np.geomspace(low, high, 101)
    ours, theirs = (np.interp(np.log(places), [np.log(x) for x, _ in front], [y for _, y in front]) for front in fronts)
    return float((ours > theirs).mean())


def read_curves(out: Path) -> list[Row]:
    """Curve records of a study."""
    return read_results(out, "curve")
