"""Tables of human rationales: the pilot on chosen words, and agreement by layer. From records of kind `rationale`."""

from __future__ import annotations

import statistics
from typing import Any

from adapler.report.agreement import BESIDE, HELD_AT, tallies
from adapler.study.rationale_table import pairs_table, pilot_table
from adapler.study.tables import markdown
from benchmarks.measured import MISSING, Records, commit

_CLAIM = (
    "Layers, of those that count (at 1/n, where CP's recall is at least 0.8 of saliency's), seed after seed; in brackets, with "
    "the whole 95% interval."
)


def pilot(records: Records) -> str:
    """Table 2 beside the paper's, and its rows held against each other."""
    if not records:
        return MISSING
    about = "; ".join(_conditions(records, task) for task in dict.fromkeys(record["task"] for record in records)) + "."
    pairs = pairs_table(records)  # written when all rows are there
    return "\n\n".join([markdown(pilot_table(records)), *([markdown(pairs)] if pairs.rows else []), about])


def _conditions(records: Records, task: str) -> str:
    first = next(record for record in records if record["task"] == task and "score" in record)
    made = f"{first['backbone']}, {first['n_train']} training documents, {first['n']} test documents"
    return f"{task}: {made}; {first['machine']}; {first['date']}, {commit(first)}"


def agreement(records: Records) -> str:
    """Figure 5 in numbers: average precision, and false positive rates with their recall, by layer; means over seeds."""
    by_run: dict[str, Records] = {}
    for record in records:
        by_run.setdefault(_what(record), []).append(record)
    return "\n\n".join(_agreement(what, own) for what, own in by_run.items()) or MISSING


def _what(record: dict[str, Any]) -> str:
    scale = record["config"].get("scale")
    return str(record["task"]) if scale is None else f"{record['task']}, thresholds x {scale:.2f}"


def _agreement(what: str, own: Records) -> str:
    layers = sorted({record["layer"] for record in own})

    def mean(name: str, metric: str, layer: int) -> float:
        wanted = (name, metric, layer)
        return statistics.fmean(float(r["value"]) for r in own if (r["method"], r["metric"], r["layer"]) == wanted)

    lines = [f"| {what} | | {' | '.join(f'layer {layer}' for layer in layers)} |", "|---|---|" + "---:|" * len(layers)]
    for name in dict.fromkeys(record["method"] for record in own):
        precision = [f"{mean(name, 'map', layer):.3f}" for layer in layers]
        lines.append(f"| {name} | mAP | {' | '.join(precision)} |")
        for rate, words in (("fpr", "FPR at 1/n (recall)"), ("fpr_at_annotated", "FPR, as many as marked (recall)")):
            cells = [f"{mean(name, rate, layer):.3f} ({mean(name, BESIDE[rate], layer):.3f})" for layer in layers]
            lines.append(f"| | {words} | {' | '.join(cells)} |")
    seeds = list(dict.fromkeys(record.get("seed") for record in own))
    first, about = own[0], own[0]["config"]
    closing = (
        f"{about['documents']} documents of {about['texts']} texts in {about['windows']} windows (`{about['window']}`); "
        f"{first['backbone']}, {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}; {first['date']}, "
        f"{commit(first)}."
    )
    return "\n".join(
        [*lines, *_claim([[record for record in own if record.get("seed") == seed] for seed in seeds]), "", closing]
    )


def _claim(by_seed: list[Records]) -> list[str]:
    """In how many of the layers that count CP's rate lies below another's, seed after seed; with the whole interval."""
    cells: dict[str, dict[str, list[str]]] = {}
    for own in by_seed:
        for found in tallies(own):
            held = f"{found.below} of {found.counted} ({found.sure})"
            cells.setdefault(found.name, {}).setdefault(found.level, []).append(held)
    if not cells:
        return []
    head = f"| CP's false positive rate below that of | {' | '.join(HELD_AT.values())} |"
    lines = [
        f"| {name} | {' | '.join(', '.join(found.get(level, [])) for level in HELD_AT)} |" for name, found in cells.items()
    ]
    return ["", head, "|---|" + "---:|" * len(HELD_AT), *lines, "", _CLAIM]
