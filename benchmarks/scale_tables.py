"""The tables of docs/scale.md: rates of the engines, and what a hundred million texts take at them."""

from __future__ import annotations

from typing import Any

from benchmarks.measured import MISSING, Records, conditions
from benchmarks.scale_speed import FULL, LOCAL, MILLION, RAY

TEXTS = 100_000_000
CORES = 64


def speed(records: Records) -> str:
    """Each engine beside what it is held against; then the long run."""
    if not records:
        return MISSING
    lines = ["| | texts | texts/s | spread | share | memory, MiB | growth |", "|---|---:|---:|---:|---|---:|---:|"]
    for record in records:
        config = record.get("config") or {}
        share = f"{record['wall_speedup']:.2f} of {record['wall_vs']}" if "wall_vs" in record else ""
        spread = f"{record['spread']:.0f}" if "spread" in record else ""
        memory = f"{config['peak_rss_mib']:.0f}" if "peak_rss_mib" in config else ""
        growth = config.get("memory_growth_percent")
        grown = "" if growth is None else f"{growth:.1f}%"
        cells = (record["variant"], f"{record['n']:,}", f"{record['value']:.0f}", spread, share, memory, grown)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{records[0]['backbone']}; {records[0]['task']}; {conditions(records[0])}"])


def sizing(records: Records) -> str:
    """The formula of the page, filled in."""
    found: dict[str, dict[str, Any]] = {record["variant"]: record for record in records}
    if LOCAL not in found:
        return MISSING
    kept = float(found[RAY]["wall_speedup"]) if RAY in found else 1.0
    lines = [
        f"| | texts | texts/s of a core | core hours | hours on {CORES} cores | cost against full length |",
        "|---|---|---:|---:|---:|---:|",
    ]
    full = _hours(found[FULL], kept) if FULL in found else None
    for name in (LOCAL, FULL, MILLION):
        if name not in found:
            continue
        record = found[name]
        hours = _hours(record, kept)
        said = {LOCAL: "as trained", FULL: "full length", MILLION: "as trained, short texts"}[name]
        against = f"{hours / full:.2f}" if full is not None and name != MILLION else ""
        rate = f"{record['value'] / record['threads']:.0f}"
        lines.append(f"| {said} | {record['task']} | {rate} | {hours:.0f} | {hours / CORES:.1f} | {against} |")
    about = f"e = {kept:.2f}, what Ray leaves of the local rate here; {records[0]['backbone']}"
    return "\n".join([*lines, "", f"{about}; {conditions(records[0])}"])


def _hours(record: dict[str, Any], kept: float) -> float:
    """Core hours for all texts."""
    return TEXTS / (3600 * float(record["value"]) / int(record["threads"]) * kept)
