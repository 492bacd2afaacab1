"""Charts as SVG: lines over epochs, bars over layers, a labelled curve. Colours are CSS classes of the page; knows no report.

Every text goes through `Markup.format`, which escapes it. Values that are not finite numbers are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

WIDTH, HEIGHT = 400, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 28, 36
LETTER = 6.3  # mean width of a letter at the charts' font size
_LINE = 12  # height of a line of text
_NOTHING = Markup('<p class="quiet">No values.</p>')

Point = tuple[float, float]
Tick = tuple[float, str]


@dataclass(frozen=True)
class Series:
    """One line."""

    points: Sequence[Point]
    name: str = ""
    """Written at the line's right end."""
    strength: float = 1.0
    """Opacity of the line, 0 to 1: many lines of one hue go from pale to full."""


@dataclass(frozen=True)
class Mark:
    """A dashed upright line with a word at its top."""

    x: float
    text: str


@dataclass(frozen=True)
class Spot:
    """One labelled point of a curve."""

    x: float
    y: float
    label: str
    kind: str = "point"
    """`point` (a dot) or `own` (a diamond), which the line joins; `full` (a square) stands alone."""


def line_chart(
    label: str,
    series: Sequence[Series],
    x_ticks: Sequence[Tick],
    x_name: str,
    *,
    log: bool = False,
    ceiling: float = math.inf,
    marks: Sequence[Mark] = (),
) -> Markup:
    """`x_ticks` also say how far the horizontal axis reaches; the upright one does not go beyond `ceiling`, which no value
    exceeds. A logarithmic axis leaves out what is not above 0."""
    drawn = [Series([point for point in line.points if _drawable(point, log)], line.name, line.strength) for line in series]
    drawn = [line for line in drawn if line.points]
    if not drawn:
        return _NOTHING
    right = _RIGHT + max(len(line.name) for line in drawn) * LETTER
    across = _across([x for x, _ in x_ticks], right)
    heights = [y for line in drawn for _, y in line.points]
    up_ticks = _log_ticks(heights) if log else round_ticks(heights, ceiling)
    up = Axis(up_ticks[0], up_ticks[-1], HEIGHT - _BOTTOM, _TOP, log)
    parts = [_frame(across, up, _thinned(x_ticks), up_ticks, x_name)]
    for number, mark in enumerate(marks):
        at, top = across(mark.x), _TOP - 5 - 12 * (number % 2)  # neighbours write on two lines
        anchor, away = ("end", -4) if at > WIDTH / 2 else ("start", 4)
        upright = Markup('<line class="mark" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>').format(at, top - 8, HEIGHT - _BOTTOM)
        parts += [upright, words(at + away, top, mark.text, anchor, "small")]
    for line in drawn:
        spots = [(across(x), up(y)) for x, y in line.points]
        parts.append(_polyline(spots, line.strength))
        parts += [
            Markup('<circle class="dot" cx="{}" cy="{}" r="2.5" opacity="{}"><title>{}</title></circle>').format(
                x, y, line.strength, f"{line.name} {value:.4g}".strip()
            )
            for (x, y), (_, value) in zip(spots, line.points, strict=True)
        ]
    parts += _end_labels([(across(line.points[-1][0]), up(line.points[-1][1]), line.name) for line in drawn])
    return drawing(label, parts)


def bar_chart(label: str, values: Sequence[float], full: float | None, x_name: str) -> Markup:
    """A bar for each of `values`, numbered from 1, each in front of a pale one of height `full`."""
    if not values:
        return _NOTHING
    ticks = round_ticks([0.0, *values, *([] if full is None else [full])])
    up = Axis(ticks[0], ticks[-1], HEIGHT - _BOTTOM, _TOP)
    pitch = (WIDTH - _LEFT - _RIGHT) / len(values)
    across = Axis(0.5, len(values) + 0.5, _LEFT, WIDTH - _RIGHT)
    numbers = [(float(layer), str(layer)) for layer in range(1, len(values) + 1)]
    parts = [_frame(across, up, _thinned(numbers), ticks, x_name)]
    bar = Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>')
    for layer, value in enumerate(values, start=1):
        left, width = round(across(layer) - 0.38 * pitch, 1), round(0.76 * pitch, 1)
        if full is not None:
            parts.append(bar.format("ghost", left, up(full), width, round(up(0) - up(full), 1), f"full length: {full:.1f}"))
        parts.append(bar.format("bar", left, up(value), width, round(up(0) - up(value), 1), f"layer {layer}: {value:.1f}"))
        if pitch >= len(f"{value:.1f}") * LETTER - 2:
            parts.append(words(across(layer), up(value) - 4, f"{value:.1f}", "middle", "small"))
    return drawing(label, parts)


def curve_chart(label: str, spots: Sequence[Spot], x_name: str, *, ceiling: float = math.inf) -> Markup:
    """Spots in the order the line joins them. A label that finds no room is left out; its spot still tells it on hovering."""
    shown = [spot for spot in spots if _drawable((spot.x, spot.y), log=False)]
    if not shown:
        return _NOTHING
    x_ticks, y_ticks = round_ticks([spot.x for spot in shown]), round_ticks([spot.y for spot in shown], ceiling)
    across = Axis(x_ticks[0], x_ticks[-1], _LEFT, WIDTH - _RIGHT)
    up = Axis(y_ticks[0], y_ticks[-1], HEIGHT - _BOTTOM, _TOP)
    parts = [_frame(across, up, [(tick, f"{tick:g}x") for tick in x_ticks], y_ticks, x_name)]
    joined = [(across(spot.x), up(spot.y)) for spot in shown if spot.kind != "full"]
    parts.append(_polyline(joined, 1.0))
    shape = {
        "point": Markup('<circle class="dot" r="3" transform="translate({} {})"><title>{}</title></circle>'),
        "own": Markup('<path class="own" d="M0-7 7 0 0 7-7 0Z" transform="translate({} {})"><title>{}</title></path>'),
        "full": Markup('<path class="full" d="M-5-5H5V5H-5Z" transform="translate({} {})"><title>{}</title></path>'),
    }
    taken = [_box_around(across(spot.x), up(spot.y), 5) for spot in shown] + _along(joined)
    for spot in sorted(shown, key=lambda spot: spot.kind == "point"):
        x, y = across(spot.x), up(spot.y)
        parts.append(shape[spot.kind].format(x, y, f"{spot.label}: {spot.y:.1f} at {spot.x:.2f}x"))
        box = _room(x, y, spot.label, taken)
        if box is not None:
            taken.append(box)
            style = "small" if spot.kind == "point" else "strong"
            parts.append(words(round(box.left, 1), round(box.bottom - 3, 1), spot.label, "start", style))
    return drawing(label, parts)


@dataclass(frozen=True)
class Axis:
    """From values to places on the drawing."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return round(self.start + (at - low) / (high - low) * (self.end - self.start), 1)


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom


def drawing(label: str, parts: Sequence[Markup], width: int = WIDTH, height: int = HEIGHT) -> Markup:
    """Parts as one picture that says what it shows."""
    opening = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(width, height, label)
    return opening + Markup("").join(parts) + Markup("</svg>")


def _frame(across: Axis, up: Axis, x_ticks: Sequence[Tick], y_ticks: Sequence[float], x_name: str) -> Markup:
    """Grid lines and the numbers at both axes."""
    line = Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>')
    parts = []
    for tick in y_ticks:
        parts += [line.format(_LEFT, across.end, up(tick), up(tick)), words(_LEFT - 6, up(tick) + 4, _number(tick), "end")]
    parts += [words(across(at), HEIGHT - _BOTTOM + 15, name, "middle") for at, name in x_ticks]
    parts.append(words(round((_LEFT + across.end) / 2, 1), HEIGHT - 4, x_name, "middle", "small"))
    return Markup("").join(parts)


def words(x: float, y: float, content: str, anchor: str, style: str = "") -> Markup:
    """A line of text; `anchor` says which part of it stands at x."""
    text = Markup('<text x="{}" y="{}" text-anchor="{}" class="{}">{}</text>')
    return text.format(round(x, 1), round(y, 1), anchor, style, content)


def _polyline(spots: Sequence[Point], strength: float) -> Markup:
    path = " ".join(f"{x},{y}" for x, y in spots)
    return Markup('<polyline class="line" points="{}" opacity="{}"/>').format(path, strength)


def _across(places: Sequence[float], right: float) -> Axis:
    """The horizontal axis over `places`; a single one stands in the middle."""
    low, high = min(places), max(places)
    widened = 0.5 if low == high else 0.0
    return Axis(low - widened, high + widened, _LEFT + 6, round(WIDTH - right - 6, 1))


def _end_labels(ends: Sequence[tuple[float, float, str]]) -> list[Markup]:
    """Names at the right ends of lines, moved apart; of too many every second or third."""
    named = sorted(((y, x, name) for x, y, name in ends if name), reverse=True)
    step = max(1, math.ceil(len(named) * _LINE / (HEIGHT - _TOP - _BOTTOM)))
    labels, floor = [], float(HEIGHT - _BOTTOM + 4)
    for y, x, name in named[::step]:
        floor = min(y + 4, floor)
        labels.append(words(x + 8, floor, name, "start", "small"))
        floor -= _LINE
    return labels


def _along(spots: Sequence[Point]) -> list[_Box]:
    """Small boxes that cover the lines between spots."""
    boxes = []
    for (x, y), (next_x, next_y) in pairwise(spots):
        steps = max(1, math.ceil(math.hypot(next_x - x, next_y - y) / 4))
        boxes += [_box_around(x + (next_x - x) * step / steps, y + (next_y - y) * step / steps, 2) for step in range(1, steps)]
    return boxes


def _box_around(x: float, y: float, half: float) -> _Box:
    return _Box(x - half, y - half, x + half, y + half)


def _room(x: float, y: float, label: str, taken: Sequence[_Box]) -> _Box | None:
    """A place for a label near (x, y) that meets nothing, or None."""
    width = len(label) * LETTER
    for left, top in (
        (x - width / 2, y - 9 - _LINE),
        (x - width / 2, y + 8),
        (x + 9, y - _LINE / 2),
        (x - 9 - width, y - _LINE / 2),
        (x + 4, y - 7 - _LINE),
        (x - 4 - width, y + 6),
        (x - 4 - width, y - 7 - _LINE),
        (x + 4, y + 6),
        (x - width / 2, y - 22 - _LINE),
        (x - width / 2, y + 21),
    ):
        left = min(max(left, _LEFT + 2), WIDTH - width - 2)
        box = _Box(left, top, left + width, top + _LINE)
        if top >= 2 and box.bottom <= HEIGHT - _BOTTOM - 1 and not any(box.meets(other) for other in taken):
            return box
    return None


def round_ticks(values: Sequence[float], ceiling: float = math.inf) -> list[float]:
    """Round numbers, about five, that enclose the values; none above `ceiling`, itself round."""
    low, high = min(values), max(values)
    least = 0.005 * max(abs(low), abs(high)) or 1.0  # finer steps would need more digits than there is room for
    if high - low < least:
        low, high = (low + high - least) / 2, (low + high + least) / 2
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1) if number * step <= ceiling + 1e-9]


def _log_ticks(values: Sequence[float]) -> list[float]:
    """Powers of ten that enclose the values; over few of them also 2 and 5."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    if high - low <= 2:
        return [factor * 10.0**power for power in range(low, high) for factor in (1, 2, 5)] + [10.0**high]
    step = math.ceil((high - low) / 6)
    return [10.0**power for power in range(low, high + step, step)]


def _thinned(ticks: Sequence[Tick], most: int = 12) -> Sequence[Tick]:
    return ticks[:: max(1, math.ceil(len(ticks) / most))]


def _number(value: float) -> str:
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{round(value, 6):g}"


def _drawable(point: Point, log: bool) -> bool:
    return all(map(math.isfinite, point)) and (point[1] > 0 or not log)
