"""The tables of speed: contenders beside each other, the few that a reader wants first, and the cost curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.measured import MISSING, Records, commit, conditions

SOFTWARE = ("torch", "transformers", "onnxruntime")
BUDGET = "token budget"
OWN = ("torch", "onnx", "onnx-int8", "onnx-int8 calibrated")
SORTED = "transformers, sorted 32"


def bench(records: Records) -> str:
    """Every contender of `adapler bench`, task by task."""
    return "\n\n".join(_bench_of(rows) for rows in _by_task(records)) or MISSING


def dial_scores(records: Records) -> str:
    """What the points of a dial score on test, and what they save there."""
    if not records:
        return MISSING
    lines = ["| point | score | loss | FLOPs speedup | as executed |", "|---|---:|---:|---:|---:|"]
    for row in records:
        saved = f"{_times(row['flops_speedup'])} | {_times(row['flops_speedup_executed'])}"
        lines.append(f"| {row['point']} | {100 * row['score']:.1f} | {row['loss_points']:+.1f} | {saved} |")
    first = records[0]
    return "\n".join([*lines, "", f"{first['metric']} on {first['n']} texts of {first['task']} (test); {conditions(first)}"])


def _bench_of(rows: Records) -> str:
    timed = [row for row in rows if row.get("unit") == "texts/s"]
    lines = [
        f"*{timed[0]['task']}, {timed[0]['backbone']}*",
        "",
        "| contender | texts/s | spread | wall speedup | FLOPs speedup | wall/FLOPs |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in timed:
        wall, flops = row.get("wall_speedup"), row.get("flops_speedup_executed")
        part = "" if wall is None or flops is None or row.get("point") == "full" else f"{wall / flops:.2f}"
        cells = (row["variant"], f"{row['value']:.0f}", f"{row['spread']:.0f}", _times(wall), _times(flops), part)
        lines.append(f"| {' | '.join(cells)} |")
    alone = [row for row in rows if row.get("unit") == "ms/text"]
    if alone:
        lines += ["", "Text by text, as trained against full length, by length:", "", _alone(alone)]
    for row in rows:
        if row.get("unit") == "share":
            ceiling = f"the machine's matrix products at the model's shapes ({row['config']['ceiling_gflops']:.0f} GFLOP/s)"
            lines += ["", f"Full length in torch reaches {100 * row['value']:.0f}% of {ceiling}."]
    about = f"{timed[0]['backbone']}, {timed[0]['n']} texts of {timed[0]['task']} ({timed[0]['split']})"
    return "\n".join([*lines, "", f"{about}; {conditions(timed[0], SOFTWARE)}"])


def _alone(rows: Records) -> str:
    """A row a group of lengths, a column a runtime: milliseconds a text, and how many times faster than full length."""
    families = list(dict.fromkeys(row["variant"].partition(", ")[0] for row in rows))
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        family, _, group = row["variant"].partition(", batch 1, ")
        groups.setdefault(group, {})[family] = row
    lines = [f"| | tokens | {' | '.join(families)} |", "|---|---|" + "---:|" * len(families)]
    for group, found in groups.items():
        shown = next(iter(found.values()))["config"]
        cells = [f"{row['value']:.1f} ms, {_times(row['wall_speedup'])}" for row in found.values()]
        lines.append(f"| {group} | {shown['shortest']} to {shown['longest']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def headline(records: Records) -> str:
    """The rows a reader wants first, a column a task; each against transformers sorted by length."""
    tasks = [rows for rows in _by_task(records) if _named(rows, SORTED)]
    if not tasks:
        return MISSING
    columns = [_headline_of(rows) for rows in tasks]
    names = dict.fromkeys(name for column in columns for name in column)
    heads = [f"{rows[0]['task']}, {rows[0]['backbone']}" for rows in tasks]
    lines = [f"| texts/s | {' | '.join(heads)} |", "|---|" + "---:|" * len(tasks)]
    lines += [f"| {name} | {' | '.join(column.get(name, '') for column in columns)} |" for name in names]
    about = [f"{head}: {conditions(rows[0], SOFTWARE)}" for head, rows in zip(heads, tasks, strict=True)]
    return "\n".join([*lines, "", " ".join(["In brackets: against transformers, sorted by length.", *about])])


def _headline_of(rows: Records) -> dict[str, str]:
    """Cells by the name of their row."""
    trained = trained_point(rows)
    chosen: dict[str, dict[str, Any] | None] = {
        "transformers, padded batches of 32": _named(rows, "transformers, padded 32"),
        "transformers, sorted by length, batches of 32": _named(rows, SORTED),
        "ONNX Runtime int8, the best of its batchings": max(
            (row for row in rows if row["variant"].startswith("onnxruntime int8")), key=lambda row: row["value"], default=None
        ),
        "adapler, full length, torch": _named(rows, "torch, full"),
        **{f"adapler, as trained, {name}": _named(rows, f"{name}, {trained}") for name in OWN},
    }
    against = chosen["transformers, sorted by length, batches of 32"]
    assert against is not None  # tasks without it have no column
    cells = {name: f"{row['value']:.0f} ({row['value'] / against['value']:.2f}x)" for name, row in chosen.items() if row}
    reduced = _named(rows, f"torch, {trained}")
    if reduced is not None:
        cells["FLOPs saved as trained, as executed"] = _times(reduced.get("flops_speedup_executed"))
    return cells


def trained_point(rows: Records) -> str | None:
    """Of the points that remove something, it alone is also timed in small batches."""
    small = (row["point"] for row in rows if row.get("method") == "adapler" and row["batch"] != BUDGET and "point" in row)
    return next(small, None)


def cost_curves(records: Records) -> str:
    """Time a token by length; time and memory along a stream."""
    return "\n\n".join(_curves_of(rows) for rows in _by_task(records)) or MISSING


def _curves_of(rows: Records) -> str:
    """Both parts, each with its own conditions: they may be of different days and commits."""
    parts = [f"*{rows[0]['task']}*"]
    lengths, stream = ([row for row in rows if row.get("unit") == unit] for unit in ("us/token", "s"))
    if lengths:
        parts.append(_lengths(lengths, lambda row: _microseconds(row["value"])))
        parts += [
            f"At full length in {row['runtime']} a token of a 512-token text takes {row['value']:.2f}x the time of one of a "
            f"128-token text (spread {row['spread']:.2f})."
            for row in rows
            if row.get("unit") == "ratio"
        ]
        parts.append(f"Time a token; {conditions(lengths[0], SOFTWARE)}")
        if all("peak_mib" in row["config"] for row in lengths):
            parts += [_lengths(lengths, lambda row: f"{row['config']['peak_mib']:.0f}"), _PEAK]
    if stream:
        parts.append(_stream(stream))
        growth = next((g for row in stream if (g := row["config"].get("memory_growth_percent")) is not None), None)
        said = "" if growth is None else f"After the first 50,000 texts memory grew by {round(growth, 1) + 0.0:.1f}%. "
        parts.append(f"{said}One stream in {stream[0]['runtime']}; {conditions(stream[0], SOFTWARE)}")
    return "\n\n".join(parts)


_PEAK = "Memory in MiB that the same texts took at their peak beyond the models'."


def _lengths(rows: Records, cell: Callable[[dict[str, Any]], str]) -> str:
    """A column a runtime and point, a row a length."""
    columns = list(dict.fromkeys((row["runtime"], row["point"]) for row in rows))
    values = {(row["config"]["tokens"], row["runtime"], row["point"]): cell(row) for row in rows}
    lines = [
        f"| tokens of a text | {' | '.join(f'{runtime}, {point}' for runtime, point in columns)} |",
        "|---:|" + "---:|" * len(columns),
    ]
    for tokens in sorted({row["config"]["tokens"] for row in rows}):
        cells = [values.get((tokens, *column), "") for column in columns]
        lines.append(f"| {tokens} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _stream(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| texts of the stream | seconds | texts/s | memory, MiB |", "|---:|---:|---:|---:|"]
    for row in sorted(rows, key=lambda row: int(row["n"])):
        rate = row["n"] / row["value"]
        lines.append(f"| {row['n']:,} | {row['value']:.1f} | {rate:.0f} | {row['config']['peak_rss_mib']:.0f} |")
    return "\n".join(lines)


def serve(records: Records) -> str:
    """The server beside others, and what it adds to a call."""
    rows = [row for row in records if "tokens" not in row.get("config", {})]
    if not rows:
        return MISSING
    lines = ["| | value | unit | reduced against it |", "|---|---:|---|---:|"]
    for row in rows:
        name = ", ".join(part for part in (row["variant"], row.get("batch")) if part)
        lines.append(f"| {name} | {_figure(row['value'])} | {row['unit']} | {_times(row.get('wall_speedup'))} |")
    return "\n".join([*lines, "", f"{rows[0].get('task', 'made-up texts')}; {_where(rows[0])}"])


def sizing(records: Records) -> str:
    """Requests a second of one core, by length of text."""
    rows = [row for row in records if "tokens" in row.get("config", {})]
    if not rows:
        return MISSING
    lines = ["| tokens of a text | requests/s and core |", "|---:|---:|"]
    lines += [f"| {row['config']['tokens']} | {row['value']:.0f} |" for row in rows]
    return "\n".join([*lines, "", f"{rows[0].get('task', 'made-up texts')}; {_where(rows[0])}"])


def _where(row: dict[str, Any]) -> str:
    return f"{row['machine']}; {row['date']}, {commit(row)}."


def _by_task(records: Records) -> list[Records]:
    tasks: dict[tuple[str, str], Records] = {}
    for record in records:
        tasks.setdefault((record["task"], record.get("backbone", "")), []).append(record)
    return list(tasks.values())


def _named(rows: Records, variant: str) -> dict[str, Any] | None:
    return next((row for row in rows if row["variant"] == variant), None)


def _figure(value: float) -> str:
    """Three digits that count, none of them in a power of ten."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _microseconds(value: float) -> str:
    return f"{value:.1f} µs"
