"""The tables of README.md and docs, written from benchmarks/results so that no published number is typed by hand.

A page marks a place with `<!-- table:NAME -->` and `<!-- end -->`; between them goes what NAME's function below makes of
its files in results/ (or of the code itself, for the settings). `--check` writes nothing and fails where a page differs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from adapler.config import Settings, TrainConfig
from benchmarks import rationale_tables, scale_tables, speed_tables, study_tables
from benchmarks.measured import MISSING, Records, conditions, read, study_curves, where

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"(?P<open><!-- table:(?P<name>[\w-]+) -->\n).*?(?P<close><!-- end -->)", re.DOTALL)


def packed() -> str:
    """Speed of the packed engine beside transformers, all at full length."""
    records = read("packed.json")
    if not records:
        return MISSING
    by_sorted = next((record["value"] for record in records if "sorted" in record["variant"]), None)
    lines = [
        "| full length, nothing removed | batch | texts/s | spread | vs padded | vs sorted |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for record in records:
        against = "" if by_sorted is None else f"{record['value'] / by_sorted:.2f}x"
        cells = (
            record["variant"],
            record["batch"],
            f"{record['value']:.0f}",
            f"{record['spread']:.0f}",
            f"{record['wall_speedup']:.2f}x",
            against,
        )
        lines.append(f"| {' | '.join(cells)} |")
    first = records[0]
    sample = f"{first['n']} texts of {first['config']['tokens_mean']} tokens on average ({first['task']})"
    return "\n".join([*lines, "", f"{first['backbone']}, {sample}; {conditions(first)}"])


def proofs() -> str:
    """What `make prove` ran, at the stated counts."""
    records = read("prove-*.json")
    if not records:
        return MISSING
    lines = ["| proof | cases | result |", "|---|---:|---|"]
    for record in records:
        told = {key.replace("_", " "): value for key, value in (record.get("config") or {}).items()}
        figures = {key: value for key, value in told.items() if isinstance(value, int | float)}
        detail = ", ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in figures.items()
        )
        shown = f"{record['value']:g} {record['unit']}" + (f" ({detail})" if detail else "")
        lines.append(f"| {record['variant']} | {record.get('n', '')} | {shown} |")
    return "\n".join([*lines, "", f"{where(records)}."])


def training() -> str:
    """Real runs: reduced against full length, on test."""
    found = [*read("train-*.json"), *read("study-*.json")]
    records = [record for record in found if record["method"] == "adapler" and record["backbone"] == "minilm"]
    records.sort(key=lambda record: (record["task"], record["seed"]))
    if not records:
        return MISSING
    lines = [
        "| task | train | seed | metric | full | reduced | loss | FLOPs speedup | settings |",
        "|---|---:|---:|---|---:|---:|---:|---:|---|",
    ]
    for record in records:
        cells = (
            record["task"],
            str(record["n_train"]),
            str(record["seed"]),
            record["metric"],
            f"{100 * record['score_full']:.1f}",
            f"{100 * record['score']:.1f}",
            f"{record['loss_points']:+.1f}",
            f"{record['flops_speedup']:.2f}x",
            record["variant"] if record["kind"] == "train" else "of the study",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{records[0]['backbone']}; test split; {where(records)}."])


SPEEDS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0)


def variants(what: str = "variants") -> str:
    """Phase 3 in several ways from one fine-tuned model: score on test at equal speed, read off between measured points."""
    tasks: dict[str, Records] = {}
    for record in read(f"curve-{what}-*.json"):
        tasks.setdefault(record["task"], []).append(record)
    return "\n\n".join(_variants_of(records) for records in tasks.values()) or MISSING


def _variants_of(records: Records) -> str:
    curves: dict[str, list[tuple[float, float]]] = {}
    whole: dict[str, float] = {}
    for record in records:
        if record["point"] == "scale 0":
            whole[record["variant"]] = 100 * record["score"]
        else:
            curves.setdefault(record["variant"], []).append((record["flops_speedup"], 100 * record["score"]))
    most = max(speed for curve in curves.values() for speed, _ in curve)
    speeds = [speed for speed in SPEEDS if speed <= most]
    head = " | ".join(f"{speed:g}x" for speed in speeds)
    lines = [f"| {records[0]['task']} | nothing removed | {head} |", "|---|---:|" + "---:|" * len(speeds)]
    for name, curve in curves.items():
        cells = [_between(sorted(curve), speed) for speed in speeds]
        lines.append(f"| {name} | {whole[name]:.1f} | {' | '.join(cells)} |")
    first = records[0]
    about = f"{first['n_train']} examples, seed {first['seed']}, {first['metric']} on {first['n']} test texts"
    return "\n".join([*lines, "", f"{first['backbone']}; {about}; one run each; {conditions(first)}"])


def leaving() -> str:
    """AdapLeR trained alike but for where tokens leave: score on test at equal speed."""
    late = read("curve-late-*.json")
    tasks = {(record["task"], record["seed"]) for record in late}
    early = [r for r in study_curves() if r["method"] == "adapler" and (r["task"], r["seed"]) in tasks]
    if not late or not early:
        return MISSING
    speeds = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
    lines = [f"| {late[0]['task']} | {' | '.join(f'{speed:g}x' for speed in speeds)} |", "|---|" + "---:|" * len(speeds)]
    for name, records in (("in front of every layer", late), ("before the feed-forward part", early)):
        curve = sorted((record["flops_speedup"], 100 * record["score"]) for record in records)
        lines.append(f"| {name} | {' | '.join(_between(curve, speed) for speed in speeds)} |")
    about = f"accuracy on {early[0]['n']} test texts; one run each; {where([*late, *early])}"
    return "\n".join([*lines, "", f"{early[0]['backbone']}; {about}."])


def _between(curve: list[tuple[float, float]], speed: float) -> str:
    """Score at a speed, straight between its neighbours; nothing beyond what was measured."""
    slower = max((row for row in curve if row[0] <= speed), default=None)
    faster = min((row for row in curve if row[0] >= speed), default=None)
    if slower is None or faster is None:
        return ""
    share = 0.0 if faster[0] == slower[0] else (speed - slower[0]) / (faster[0] - slower[0])
    return f"{slower[1] + share * (faster[1] - slower[1]):.1f}"


def training_speed() -> str:
    """What a step of training costs, each beside what it is held against."""
    records = read("training-speed.json")
    if not records:
        return MISSING
    lines = ["| | texts/s | spread | speed |", "|---|---:|---:|---|"]
    for record in records:
        speed = f"{record['wall_speedup']:.2f}x of {record['wall_vs']}" if "wall_vs" in record else ""
        name = record["variant"].removeprefix("training, ")
        lines.append(f"| {name} | {record['value']:.1f} | {record['spread']:.1f} | {speed} |")
    shared = records[0]
    about = f"{shared['backbone']}, {shared['n']} texts of {shared['task']}"
    return "\n".join([*lines, "", f"{about}; {conditions(shared)}"])


def explain_cost() -> str:
    """What explanations cost beside predictions, and how long a page of them takes."""
    records = read("explain-cost-*.json")
    if not records:
        return MISSING
    lines = ["| | runtime | texts/s | time of predicting |", "|---|---|---:|---:|"]
    for record in (record for record in records if record["unit"] == "texts/s"):
        ratio = record["config"]["time_of_predicting"]
        lines.append(f"| {record['variant']} | {record['runtime']} | {record['value']:.0f} | {ratio:.3f}x |")
    drawn = [f"{r['variant']}: {r['value']:.1f} s ({r['config']['megabytes']} MB)." for r in records if r["unit"] == "s"]
    first = records[0]
    return "\n".join([*lines, "", *drawn, f"{first['n']} texts of {first['task']}; {conditions(first)}"])


def settings() -> str:
    """Every setting of a training run with its default and its one description."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for name, info in TrainConfig.model_fields.items():
        group = info.default
        fields = {name: info} if not isinstance(group, Settings) else type(group).model_fields
        for field, inner in fields.items():
            full = field if field == name else f"{name}.{field}"
            default = "" if inner.default in (None, "") else f"`{inner.default}`"
            lines.append(f"| `{full}` | {default} | {inner.description} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    "speed": lambda: speed_tables.headline(read("bench-*.json")),
    "bench": lambda: speed_tables.bench(read("bench-*.json")),
    "dial-scores": lambda: speed_tables.dial_scores(read("curve-dial-ag_news.json")),
    "cost-curves": lambda: speed_tables.cost_curves(read("cost-curves-*.json")),
    "explain-cost": explain_cost,
    "scale-speed": lambda: scale_tables.speed(read("scale-speed.json")),
    "sizing": lambda: scale_tables.sizing(read("scale-speed.json")),
    "packed": packed,
    "proofs": proofs,
    "training": training,
    "training-speed": training_speed,
    "variants": variants,
    "ablations": lambda: variants("ablations"),
    "leaving": leaving,
    "settings": settings,
    "study": lambda: study_tables.study(read("study-*.json"), "minilm"),
    "study-gte": lambda: study_tables.study(read("study-*.json"), "gte-small"),
    "study-curves": lambda: study_tables.contests(study_curves()),
    "study-clock": lambda: study_tables.clock(read("clock-*.json")),
    "leaving-clock": lambda: study_tables.leaving_clock(read("early-clock-*.json"), read("clock-*.json")),
    "datasets": lambda: study_tables.datasets(read("study-*.json")),
    "backbone-runs": lambda: study_tables.backbone_runs(read("backbone-*.json"), read("bench-*.json")),
    "families": lambda: study_tables.families(read("families.json")),
    "energy": lambda: study_tables.energy(read("bench-ag_news.json")),
    "pilot": lambda: rationale_tables.pilot(read("rationale-*.json")),
    "serve": lambda: speed_tables.serve(read("serve-*.json")),
    "serve-sizing": lambda: speed_tables.sizing(read("serve-*.json")),
    "agreement": lambda: rationale_tables.agreement(read("agreement-*.json")),
}


def pages() -> Iterator[Path]:
    """Every page that may hold a table."""
    yield ROOT / "README.md"
    yield ROOT / "CHANGELOG.md"
    yield from sorted((ROOT / "docs").glob("*.md"))


def rendered(name: str) -> str:
    """The table of that name as it has to stand on a page."""
    if name not in TABLES:
        sys.exit(f"no table {name!r}; known: {', '.join(TABLES)}. Add its function to benchmarks/tables.py")
    return TABLES[name]()


def filled(page: str) -> str:
    """A page with all of its tables made anew."""
    return _BLOCK.sub(lambda block: f"{block['open']}{rendered(block['name'])}\n{block['close']}", page)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page is out of date")
    check = parser.parse_args().check
    stale = []
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = filled(before)
        if before != after:
            stale.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(after, encoding="utf-8")
    if check and stale:
        sys.exit(f"tables out of date in {', '.join(stale)}; run: make tables")
    if stale:
        sys.stdout.write(f"written: {', '.join(stale)}\n")


if __name__ == "__main__":
    main()
