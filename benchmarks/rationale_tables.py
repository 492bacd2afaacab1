"""Tables of human rationales: the pilot on chosen words, and agreement by layer. From records of kind `rationale`."""

from __future__ import annotations

import statistics

from adapler.report.agreement import BESIDE, verdicts
from adapler.study.rationale_table import pairs_table, pilot_table
from adapler.study.tables import markdown
from benchmarks.measured import MISSING, Records, commit


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
    parts = [_agreement(records, task) for task in dict.fromkeys(record["task"] for record in records)]
    return "\n\n".join(parts) or MISSING


def _agreement(records: Records, task: str) -> str:
    own = [record for record in records if record["task"] == task]
    seeds = list(dict.fromkeys(record.get("seed") for record in own))
    layers = sorted({record["layer"] for record in own})

    def mean(name: str, metric: str, layer: int) -> float:
        wanted = (name, metric, layer)
        return statistics.fmean(float(r["value"]) for r in own if (r["method"], r["metric"], r["layer"]) == wanted)

    lines = [f"| {task} | | {' | '.join(f'layer {layer}' for layer in layers)} |", "|---|---|" + "---:|" * len(layers)]
    for name in dict.fromkeys(record["method"] for record in own):
        precision = [f"{mean(name, 'map', layer):.3f}" for layer in layers]
        lines.append(f"| {name} | mAP | {' | '.join(precision)} |")
        for rate, words in (("fpr", "FPR at 1/n (recall)"), ("fpr_at_annotated", "FPR, as many as marked (recall)")):
            cells = [f"{mean(name, rate, layer):.3f} ({mean(name, BESIDE[rate], layer):.3f})" for layer in layers]
            lines.append(f"| | {words} | {' | '.join(cells)} |")
    first, about = own[0], own[0]["config"]
    said = []
    for seed in seeds:
        told = verdicts([record for record in own if record.get("seed") == seed])
        said += [f"- {line}{'' if len(seeds) == 1 else f' (seed {seed})'}." for line in told]
    closing = (
        f"{about['documents']} documents of {about['texts']} texts in {about['windows']} windows (`{about['window']}`); "
        f"{first['backbone']}, {len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}; {first['date']}, {commit(first)}."
    )
    return "\n".join([*lines, "", *said, *([""] if said else []), closing])
