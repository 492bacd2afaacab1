"""A benchmark as a page to look at: every contender's speed, and time saved against FLOPs saved. No script, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from adapler.bench.contenders import BUDGET
from adapler.records import Record
from adapler.report.page import Chart, template, write_page
from adapler.report.svg import LETTER, Axis, drawing, round_ticks, words

_TEMPLATE = "chart.html.j2"
_PEERS = {"transformers": "transformers", "onnxruntime": "ONNX Runtime"}
_WIDTH, _ROW, _HEADING = 760, 20, 30
_NAMES, _VALUES = 212, 56  # room for the names on the left, for the numbers on the right
_LONGEST_NAME = int(_NAMES / LETTER)
_SIDE, _EDGE, _FOOT, _HEAD = 460, 52, 44, 34  # of the square chart: its size, and what its axes and names take
_STEPS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000)
_SHAPES = ("M0-5A5 5 0 1 1 0 5A5 5 0 1 1 0-5Z", "M-4.5-4.5H4.5V4.5H-4.5Z", "M0-6.5 6.5 0 0 6.5-6.5 0Z", "M0-6 6 5H-6Z")
_HUES = 6
_WHISKERS = "longer is faster; whiskers around the median are as wide as from the slowest to the fastest repeat"


@dataclass(frozen=True)
class Group:
    """Contenders of one runtime."""

    name: str
    hue: int
    """Which of the page's colours; a name stands beside each, so that none needs them."""
    records: Sequence[Record]


def write_chart(records: Sequence[Record], path: Path) -> None:
    """Write the page, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_page(_render(records), path)


def _render(records: Sequence[Record]) -> str:
    timed = [record for record in records if record.unit == "texts/s" and record.value is not None]
    grouped = groups(timed)
    first = timed[0] if timed else records[0]
    return template("bench", _TEMPLATE).render(
        task=first.task or "",
        speeds=Chart("Texts a second", bars(grouped), _WHISKERS),
        savings=Chart("Time saved against FLOPs saved", scatter(grouped), "both against full length in the same runtime"),
        groups=grouped,
        share=next((record for record in records if record.unit == "share"), None),
        record=first,
    )


def groups(records: Sequence[Record]) -> list[Group]:
    """By runtime, in the order of the records; ours are those that have an operating point."""
    found: dict[str, list[Record]] = {}
    for record in records:
        runtime = record.runtime or ""
        name = f"adapler, {runtime}" if record.point is not None else _PEERS.get(runtime, runtime)
        found.setdefault(name, []).append(record)
    return [Group(name, hue % _HUES, rows) for hue, (name, rows) in enumerate(found.items())]


def bars(grouped: Sequence[Group]) -> Markup:
    """A horizontal bar a contender, under its group's name."""
    rows = [record for group in grouped for record in group.records]
    if not rows:
        return Markup('<p class="quiet">Nothing was timed.</p>')
    longest = max((record.value or 0.0) + (record.spread or 0.0) / 2 for record in rows)
    ticks = [tick for tick in round_ticks([0.0, longest]) if tick <= longest]
    across = Axis(0.0, longest, _NAMES, _WIDTH - _VALUES)
    bottom = 10 + len(grouped) * _HEADING + len(rows) * _ROW
    parts = []
    for tick in ticks:
        line = Markup('<line class="grid" x1="{0}" x2="{0}" y1="10" y2="{1}"/>').format(across(tick), bottom)
        parts += [line, words(across(tick), bottom + 16, f"{tick:g}", "middle")]
    y = 10
    for group in grouped:
        parts.append(words(2, y + _HEADING - 10, group.name, "start", "strong"))
        y += _HEADING
        for record in group.records:
            parts += _bar(record, group.hue, across, y)
            y += _ROW
    told = "; ".join(f"{record.variant} {record.value:.0f}" for record in rows)
    return drawing(f"Texts a second: {told}.", parts, _WIDTH, bottom + 26)


def _bar(record: Record, hue: int, across: Axis, y: float) -> list[Markup]:
    value, half, name = record.value or 0.0, (record.spread or 0.0) / 2, record.variant or ""
    low, high = across(max(0.0, value - half)), across(value + half)
    middle = y + _ROW / 2 - 1
    title = f"{name}: {value:.1f} texts/s, spread {2 * half:.1f}"
    bar = Markup('<rect class="h{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>')
    whisker = Markup('<path class="{0}" d="M{1} {3}H{2}M{1} {4}v6M{2} {4}v6"/>')
    shown = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
    return [
        words(_NAMES - 8, middle + 4, shown, "end"),
        bar.format(hue, across(0), y + 3, round(across(value) - across(0), 1), _ROW - 8, title),
        *(whisker.format(style, low, high, middle, middle - 3) for style in ("halo", "whisker")),
        words(high + 6, middle + 4, f"{value:.0f}", "start", "strong"),
    ]


def scatter(grouped: Sequence[Group]) -> Markup:
    """Operating points at full batches, a line a runtime, on logarithmic axes; on the diagonal FLOPs saved are time saved."""
    lines = {group.name: (group.hue, _points(group.records)) for group in grouped}
    lines = {name: line for name, line in lines.items() if line[1]}
    if not lines:
        return Markup('<p class="quiet">No operating point was timed.</p>')
    spots = [(x, y) for _, points in lines.values() for x, y, _ in points]
    ticks = _enclosing([1.0, *(value for spot in spots for value in spot)])
    across = Axis(ticks[0], ticks[-1], _EDGE, _SIDE - 14, log=True)
    up = Axis(ticks[0], ticks[-1], _SIDE - _FOOT, _HEAD, log=True)
    named = {point: x for _, points in lines.values() for x, _, point in points}
    parts = [*_square(ticks, across, up), *_uprights(named, across)]
    for shape, (name, (hue, points)) in enumerate(lines.items()):
        path = " ".join(f"{across(x)},{up(y)}" for x, y, _ in [(1.0, 1.0, ""), *points])
        parts.append(Markup('<polyline class="line l{}" points="{}"/>').format(hue, path))
        for x, y, point in points:
            parts.append(_spot(shape, hue, across(x), up(y), f"{name}, {point}: {y:.2f}x of time at {x:.2f}x of FLOPs"))
        parts += [_spot(shape, hue, _EDGE + 16, _HEAD + 16 + 19 * shape, name)]
        parts += [words(_EDGE + 28, _HEAD + 20 + 19 * shape, name, "start", "strong")]
    told = "; ".join(f"{name} at {p}: {y:.2f}x for {x:.2f}x" for name, (_, points) in lines.items() for x, y, p in points)
    return drawing(f"Wall speedup against FLOPs speedup: {told}.", parts, _SIDE, _SIDE)


def _points(records: Sequence[Record]) -> list[tuple[float, float, str]]:
    """FLOPs speedup, wall speedup and name of every point that removes something, in batches as large as they come."""
    found = [
        (record.flops_speedup_executed, record.wall_speedup, record.point or "")
        for record in records
        if record.batch == BUDGET and record.method != "full" and record.flops_speedup_executed and record.wall_speedup
    ]
    return sorted(found)


def _square(ticks: Sequence[float], across: Axis, up: Axis) -> list[Markup]:
    """Grid, numbers, names of the axes and the diagonal."""
    line = Markup('<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>')
    parts = []
    for tick in ticks:
        parts += [
            line.format("grid", across.start, across.end, up(tick), up(tick)),
            line.format("grid", across(tick), across(tick), up.start, up.end),
            words(across.start - 6, up(tick) + 4, f"{tick:g}x", "end"),
            words(across(tick), up.start + 16, f"{tick:g}x", "middle"),
        ]
    parts.append(line.format("diagonal", across.start, across.end, up.start, up.end))
    parts.append(words((across.start + across.end) / 2, _SIDE - 6, "FLOPs speedup, as executed", "middle"))
    parts.append(words(4, 14, "wall speedup", "start"))
    return parts


def _uprights(points: Mapping[str, float], across: Axis) -> list[Markup]:
    """The points' names above their places; neighbours write on two lines."""
    line = Markup('<line class="mark" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>')
    parts = []
    for number, (name, x) in enumerate(sorted(points.items(), key=lambda item: item[1])):
        top = _HEAD - 6 - 12 * (number % 2)
        at = min(across(x), _SIDE - len(name) * LETTER / 2 - 4)
        parts += [line.format(across(x), top + 2, _SIDE - _FOOT), words(at, top, name, "middle", "strong")]
    return parts


def _spot(shape: int, hue: int, x: float, y: float, title: str) -> Markup:
    spot = Markup('<path class="spot h{}" d="{}" transform="translate({} {})"><title>{}</title></path>')
    return spot.format(hue, Markup(_SHAPES[shape % len(_SHAPES)]), x, y, title)


def _enclosing(values: Sequence[float]) -> list[float]:
    """The steps from the last one below all values to the first above."""
    low = max((step for step in _STEPS if step <= min(values)), default=_STEPS[0])
    high = min((step for step in _STEPS if step > max(values)), default=_STEPS[-1])
    return [step for step in _STEPS if low <= step <= high]
