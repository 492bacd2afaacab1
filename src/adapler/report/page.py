"""The report page: one self-contained HTML file out of what `report.json` holds. No script, no network, no torch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from adapler.config import Settings, TrainConfig
from adapler.report.heatmap import DARK_SHADES, SHADES, equal_shares, level_names, picture
from adapler.report.markup import drawn
from adapler.report.svg import Mark, Series, Spot, Tick, bar_chart, curve_chart, line_chart

PICTURE_STYLE = {"shades": SHADES, "dark_shades": DARK_SHADES, "levels": level_names()}
"""What `picture.css.j2` and `legend.html.j2` read."""
_TEMPLATE = "report.html.j2"
_MEASURES = {
    "n": "Texts measured.",
    "score_full": "The full-length model it was made from, in points.",
    "score": "The reduced model, in points.",
    "loss_points": "Points lost by reduction; below 0, won.",
    "flops_speedup": "FLOPs of the full model over those of the reduced one, its predictors included. No padding.",
    "flops_speedup_executed": "As really computed: on both sides the last layer runs on the pooled token alone.",
    "flops_speedup_padded": "The full model is also charged with padding to the longest text of a batch.",
    "flops_speedup_authors": "By the counter published with the paper, slips included; to compare with the paper only.",
}


@dataclass(frozen=True)
class Chart:
    """A drawing with what it shows."""

    title: str
    drawing: Markup
    words: str = ""


@dataclass(frozen=True)
class Told:
    """A text through the layers, with what it should have been and what was said of it."""

    label: str
    predicted: str
    predicted_full: str
    tokens: int
    drawing: Markup


def write_report(report: dict[str, Any], path: Path, *, examples: bool = True) -> None:
    """Write the page, whole or not at all. With `examples` false no text of the data is in it, and it says so.

    Parts that an older report lacks are said to be missing.
    """
    write_page(_render(report, examples), path)


def write_page(page: str, path: Path) -> None:
    """Put a page on disk, whole or not at all."""
    staging = path.with_name(path.name + ".tmp")
    try:
        with staging.open("w", encoding="utf-8", errors="replace") as stream:
            stream.write(page)
            stream.flush()
            os.fsync(stream.fileno())
        staging.replace(path)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise


def template(folder: str, name: str) -> Template:
    """A page's template, which lies beside the code of that folder. Every value is escaped, and a missing one is an error."""
    environment = Environment(
        loader=PackageLoader("adapler", folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


_LOSSES = (
    ("contribution loss", "contribution_loss", ""),
    ("length loss", "length_loss", "soft tokens, summed over layers"),
    ("kept share", "kept_share", "of the tokens, in drawn texts"),
)
"""What some methods tell besides: title, key, words."""


def _render(report: dict[str, Any], examples: bool) -> str:
    stories = report.get("examples") if examples else None
    reducing = [row for row in report["history"] if row["phase"] == report["history"][-1]["phase"]]
    return template("report", _TEMPLATE).render(
        report={key: value for key, value in report.items() if key != "examples"},
        measures=_measures(report["splits"]),
        tokens=[_tokens_chart(name, split) for name, split in report["splits"].items()],
        kept=_kept(report),
        training=_progress_charts(report, reducing) + _threshold_charts(report, reducing),
        history=_history(report["history"]),
        curve=_curve_chart(report),
        **PICTURE_STYLE,
        pictures=None if stories is None else [_told(story) for story in stories["sample"]],
        errors=None if stories is None else [_told(story) for story in stories["errors_by_removal"]],
        left_out=not examples,
        settings=_settings(report["config"]),
    )


def _measures(splits: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, list[str]]]:
    """Rows of the first table: name, explanation, a value for each split. Measures that no split has are left out."""
    rows = []
    for key, meaning in _MEASURES.items():
        values = [split.get(key) for split in splits.values()]
        if any(value is not None for value in values):
            rows.append((key, meaning, ["–" if value is None else _measure(key, value) for value in values]))
    return rows


def _measure(key: str, value: float) -> str:
    if key == "n":
        return str(value)
    if key.startswith("score"):
        return f"{100 * value:.2f}"
    if key.startswith("flops"):
        return f"{value:.2f}x"
    return f"{value:+.2f}".replace("-", "−") if round(value, 2) else "0.00"


def _tokens_chart(name: str, split: Mapping[str, Any]) -> Chart:
    lengths, full = split["lengths"], split.get("tokens")
    said = ", ".join(f"{length:.1f}" for length in lengths)
    before = "" if full is None else f", of {full:.1f} at full length"
    return Chart(
        f"{name}: tokens entering each layer",
        bar_chart(f"Mean tokens entering each layer on {name}: {said}{before}.", lengths, full, "layer"),
        f"mean of {split['n']} texts" + ("" if full is None else f"; pale: the {full:.1f} of the full model"),
    )


def _kept(report: dict[str, Any]) -> str:
    """Which epoch the model is, and whether it does what was asked."""
    if report["kept_epoch"] is None:
        return ""
    last = report["history"][-1]["phase"]
    epochs = sum(row["phase"] == last for row in report["history"])
    doing = "settling, after reduction" if last == "settle" else "reduction"
    scale = report.get("kept_scale", 1.0)
    scaled = "" if scale == 1 else f"; its thresholds (eta) were then multiplied by {scale:.3g}, chosen on dev"
    margin = "within" if report["within_margin"] else "not within"
    return (
        f"The model is that of epoch {report['kept_epoch'] + 1} of {epochs} of {doing}, marked in the charts{scaled}. "
        f"Its dev score is {margin} the allowed loss of {report['config']['steer']['max_loss']:g} points."
    )


def _progress_charts(report: dict[str, Any], reducing: Sequence[dict[str, Any]]) -> list[Chart]:
    """Score, speed and losses, as far as they go over both phases on one axis."""
    history = report["history"]
    tuned = len(history) - len(reducing)
    both = [(float(place), str(row["epoch"] + 1)) for place, row in enumerate(history)]
    marks = [Mark(tuned - 0.5, f"{history[-1]['phase']} ▸")] if tuned and reducing else []
    if report["kept_epoch"] is not None:
        marks.append(Mark(float(tuned + report["kept_epoch"]), "kept"))
    scores = [(float(place), 100 * row["score"]) for place, row in enumerate(history)]
    losses = [(float(place), row["label_loss"]) for place, row in enumerate(history)]
    score_lines, loss_lines = ([Series(points[:tuned]), Series(points[tuned:])] for points in (scores, losses))
    metric = f"dev {report['metric']}, points"
    return [
        Chart(metric, line_chart(_in_words(metric, scores), score_lines, both, "epoch", ceiling=100.0, marks=marks)),
        _reducing_chart(report, reducing, "dev flops_speedup", "flops_speedup"),
        Chart("label loss", line_chart(_in_words("label loss", losses), loss_lines, both, "epoch", marks=marks)),
        *(
            _reducing_chart(report, rows, title, key, words)
            for title, key, words in _LOSSES
            if (rows := _telling(report, reducing, key))
        ),
    ]


def _telling(report: dict[str, Any], reducing: Sequence[dict[str, Any]], key: str) -> Sequence[dict[str, Any]]:
    """The epochs that tell a value: of the last phase, or, where that holds it still, of the one before."""
    return reducing if any(key in row for row in reducing) else [row for row in report["history"] if key in row]


def _threshold_charts(report: dict[str, Any], reducing: Sequence[dict[str, Any]]) -> list[Chart]:
    rows = _telling(report, reducing, "eta")
    if not rows:  # of another method, or without an epoch
        return []
    return [
        _layers_chart(report, rows, "eta", 1, "threshold of each layer, in equal shares"),
        _layers_chart(report, rows, "theta", 2, "of each layer but the first"),
        _reducing_chart(report, rows, "lambda", "lambda", "steepness of soft removal; logarithmic", log=True),
        _reducing_chart(report, rows, "phi", "phi", "weight of the length loss; below 0 while steering back"),
    ]


def _reducing_chart(
    report: dict[str, Any], rows: Sequence[dict[str, Any]], title: str, key: str, words: str = "", *, log: bool = False
) -> Chart:
    """One value over the epochs of reduction."""
    points = [(float(row["epoch"]), row[key]) for row in rows if row.get(key) is not None]
    marks = _kept_mark(report, rows)
    drawing = line_chart(_in_words(title, points), [Series(points)], _epochs(rows), "epoch", log=log, marks=marks)
    return Chart(title, drawing, words)


def _layers_chart(report: dict[str, Any], rows: Sequence[dict[str, Any]], key: str, first: int, words: str) -> Chart:
    """One value of each layer over the epochs of reduction; later layers are drawn stronger."""
    depth = len(rows[0].get(key, ())) if rows else 0
    lines = [
        Series(
            [(float(row["epoch"]), row[key][place]) for row in rows],
            name=str(first + place),
            strength=round(0.35 + 0.65 * (place + 1) / depth, 2),
        )
        for place in range(depth)
    ]
    ends = ", ".join(f"layer {line.name} {line.points[-1][1]:.3g}" for line in lines)
    label = f"{key} over {len(rows)} epochs; at the end: {ends}." if ends else f"{key}: none."
    drawing = line_chart(label, lines, _epochs(rows), "epoch", marks=_kept_mark(report, rows))
    return Chart(key, drawing, f"{words}; numbers: layers")


def _epochs(rows: Sequence[dict[str, Any]]) -> list[Tick]:
    return [(float(row["epoch"]), str(row["epoch"] + 1)) for row in rows]


def _kept_mark(report: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[Mark]:
    """At the epoch that is the model, where it is one of these."""
    among = bool(rows) and rows[-1]["phase"] == report["history"][-1]["phase"]
    return [Mark(float(report["kept_epoch"]), "kept")] if among and report["kept_epoch"] is not None else []


def _in_words(title: str, points: Sequence[tuple[float, float]]) -> str:
    """A line in words, for those who do not see it."""
    values = ", ".join(f"{value:.4g}" for _, value in points if math.isfinite(value))
    return f"{title} by epoch: {values or 'none'}."


def _curve_chart(report: dict[str, Any]) -> Chart | None:
    """Score against speed on dev with all thresholds scaled; None for a report without."""
    rows = report.get("curve")
    if not rows:
        return None
    spots = [
        Spot(
            row["flops_speedup"],
            100 * row["score"],
            "this model" if row["scale"] == 1 else f"{row['scale']:.3g}",
            "own" if row["scale"] == 1 else "point",
        )
        for row in rows
    ]
    spots.append(Spot(1.0, 100 * report["splits"]["dev"]["score_full"], "full model", "full"))
    told = "; ".join(f"{spot.label} {spot.y:.1f} at {spot.x:.2f}x" for spot in spots)
    title = f"dev {report['metric']} (points) against flops_speedup"
    return Chart(title, curve_chart(f"{title}, by scale of the thresholds: {told}.", spots, "flops_speedup", ceiling=100.0))


def _history(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The history as a table: column names and rows; what a phase does not have is blank."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return columns, [[_cell(key, row.get(key)) for key in columns] for row in rows]


def _cell(key: str, value: Any) -> str:
    if value is None:
        return ""
    if key == "epoch":
        return str(value + 1)
    if isinstance(value, list):
        return " ".join(f"{number:.4g}" for number in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _told(story: Mapping[str, Any]) -> Told:
    """An example as `training/finish.py` keeps it; in older reports nothing says which tokens make a word."""
    tokens = story["tokens"]
    words = story.get("words", [[place] for place in range(len(tokens))])
    return Told(
        label=story["label"],
        predicted=story["predicted"],
        predicted_full=story["predicted_full"],
        tokens=len(tokens),
        drawing=drawn(picture(story.get("pieces", tokens), words, list(map(equal_shares, story["scores"])), story["kept"])),
    )


def _settings(config: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Every setting as `--set` takes it: name, value, meaning."""
    return _flat(config, TrainConfig, "")


def _flat(values: Mapping[str, Any], kind: type[Settings] | None, prefix: str) -> list[tuple[str, str, str]]:
    rows = []
    for key, value in values.items():
        field = kind.model_fields.get(key) if kind else None
        if isinstance(value, Mapping):
            inner = field.annotation if field else None
            rows += _flat(value, inner if isinstance(inner, type) and issubclass(inner, Settings) else None, f"{prefix}{key}.")
        else:
            shown = value if isinstance(value, str) else json.dumps(value)
            rows.append((prefix + key, shown, (field.description or "") if field else ""))
    return rows
