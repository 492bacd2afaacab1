"""Tables of docs/results.md: the study beside the paper, its datasets, families timed, energy. From records alone."""

from __future__ import annotations

from typing import Any

from adapler.study.clock import WATTS_A_CORE, clock_table, kwh_a_million
from adapler.study.page import contest_table
from adapler.study.tables import dataset_table, markdown, results_table
from benchmarks.measured import MISSING, Records, conditions, where


def study(records: Records, backbone: str) -> str:
    """This machine's Table 1 for one backbone."""
    own = [record for record in records if backbone_of(records, record) == backbone]
    if not own:
        return MISSING
    return f"{markdown(results_table(own))} {backbone}; {where(own)}."


def contests(curves: Records) -> str:
    """Whose curve lies above whose."""
    return markdown(contest_table(curves)) if curves else MISSING


def clock(records: Records) -> str:
    """Texts a second of the methods, and what that is in energy, estimated."""
    if not records:
        return MISSING
    return f"{markdown(clock_table(records))} {where(records)}."


def leaving_clock(early: Records, late: Records) -> str:
    """Whether the feed-forward part that early leaving saves is saved by the clock too."""
    if not early:
        return MISSING
    before = {record["task"]: record for record in late if record["method"] == "adapler"}
    lines = [
        "| task | full length, texts/s | AdapLeR, texts/s | wall clock | FLOPs | clock of FLOPs | the same, leaving late |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for record in (record for record in early if record["method"] == "adapler"):
        task = record["task"]
        (full,) = (other for other in early if (other["task"], other["method"]) == (task, "full"))
        cells = [task, f"{full['value']:.0f}", f"{record['value']:.0f}", f"{record['wall_speedup']:.2f}x"]
        cells += [f"{record['flops_speedup_executed']:.2f}x", _clock_of_flops(record)]
        lines.append(f"| {' | '.join([*cells, _clock_of_flops(before[task]) if task in before else ''])} |")
    about = "In batches of a token budget, tokenising included, medians of turns; FLOPs as executed"
    return "\n".join([*lines, "", f"{about}; {early[0]['threads']} threads; {where(early)}."])


def _clock_of_flops(record: dict[str, Any]) -> str:
    wall, flops = record["wall_speedup"], record["flops_speedup_executed"]
    return f"{wall / flops:.2f} of {flops:.2f}x"


def datasets(records: Records) -> str:
    """What the tasks are."""
    full = [record for record in records if record["method"] == "full" and record["backbone"] == "minilm"]
    return markdown(dataset_table(full)) if full else MISSING


def families(records: Records) -> str:
    """Every family at base size with random weights."""
    if not records:
        return MISSING
    lines = [
        "| family, base size | layers | transformers, sorted | packed, full length | reduced | wall clock | of FLOPs saved |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in dict.fromkeys(record["backbone"] for record in records):
        rows, whole, reduced = (record for record in records if record["backbone"] == name)
        wall, flops = reduced["wall_speedup"], reduced["flops_speedup_executed"]
        cells = [name.split(" ")[0], str(rows["config"]["layers"])]
        cells += [f"{rows['value']:.1f}", f"{whole['value']:.1f} ({whole['wall_speedup']:.2f}x)", f"{reduced['value']:.1f}"]
        cells += [f"{wall:.2f}x", f"{wall / flops:.2f} of {flops:.2f}x"]
        lines.append(f"| {' | '.join(cells)} |")
    first = records[0]
    about = (
        f"{first['n']} texts of {first['config']['tokens_mean']:.0f} random tokens on average, random weights and predictors"
    )
    return "\n".join([*lines, "", f"Texts a second; {about}; reduced against full length; {conditions(first)}"])


def backbone_runs(records: Records, timed: Records) -> str:
    """Trained models on other backbones: score, and the clock of the point that they were trained at."""
    if not records:
        return MISSING
    lines = [
        "| backbone | task | train | metric | full | reduced | loss | FLOPs speedup | runtime | wall clock | of FLOPs saved |",
        "|---|---|---:|---|---:|---:|---:|---:|---|---:|---:|",
    ]
    for record in records:
        cells = [record["backbone"], record["task"], str(record["n_train"]), record["metric"]]
        cells += [f"{100 * record['score_full']:.1f}", f"{100 * record['score']:.1f}", f"{record['loss_points']:+.1f}"]
        cells += [f"{record['flops_speedup']:.2f}x"]
        rows = [
            row
            for row in timed
            if row.get("backbone") == record["backbone"] and row.get("batch") == "token budget" and row["method"] == "adapler"
        ]
        families = list(dict.fromkeys(row["variant"].partition(", ")[0] for row in rows))
        for name in families:
            # Of the points that were timed, the one nearest to what the model does unasked.
            own = [row for row in rows if row["variant"].partition(", ")[0] == name]
            row = min(own, key=lambda row: abs(row["flops_speedup_executed"] - record["flops_speedup_executed"]))
            wall, flops = row["wall_speedup"], row["flops_speedup_executed"]
            lines.append(f"| {' | '.join([*cells, name, f'{wall:.2f}x', f'{wall / flops:.2f} of {flops:.2f}x'])} |")
        if not families:
            lines.append(f"| {' | '.join([*cells, '', '', ''])} |")
    about = "Loss against the fine-tuning the run began with; wall clock in batches of a token budget, against the same runtime"
    return "\n".join([*lines, "", f"{about} at full length; {where(records)}."])


def energy(records: Records) -> str:
    """Energy of a million texts, estimated from time."""
    if not records:
        return MISSING
    chosen = [
        r for r in records if r.get("unit") == "texts/s" and (r.get("batch") == "token budget" or "32" in str(r.get("batch")))
    ]
    lines = ["| | texts/s | kWh a million texts, estimated |", "|---|---:|---:|"]
    for record in sorted(chosen, key=lambda record: record["value"]):
        energy = kwh_a_million(record["value"], record["threads"])
        lines.append(f"| {record['variant']} | {record['value']:.0f} | {energy:.3f} |")
    about = f"An estimate from time alone, at {WATTS_A_CORE:g} W a core under load; nothing was metered"
    return "\n".join([*lines, "", f"{about}. {records[0]['task']}; {conditions(records[0])}"])


def backbone_of(records: Records, record: dict[str, object]) -> object:
    """The backbone a record is about: another encoder or none is held against that of its task's full-length model."""
    config = record.get("config")
    if isinstance(config, dict) and "against" in config:
        return config["against"]
    if record["method"] in ("distilled", "words"):
        full = [r for r in records if (r["task"], r["method"], r["seed"]) == (record["task"], "full", record["seed"])]
        return full[0]["backbone"] if full else None
    return record["backbone"]
