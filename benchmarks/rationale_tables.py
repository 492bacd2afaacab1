"""Tables of human rationales: the pilot on chosen words, and agreement by layer. From records of kind `rationale`."""

from __future__ import annotations

from adapler.report.agreement import verdicts
from adapler.study.rationale_table import pairs_table, pilot_table
from adapler.study.tables import markdown
from benchmarks.measured import MISSING, Records, commit


def pilot(records: Records) -> str:
    """Table 2 beside the paper's, and its rows held against each other."""
    if not records:
        return MISSING
    first = next(record for record in records if "score" in record)
    about = f"{first['backbone']}, {first['n_train']} training documents; {first['machine']}; {first['date']}, {commit(first)}."
    return "\n\n".join([markdown(pilot_table(records)), markdown(pairs_table(records)), about])


def agreement(records: Records) -> str:
    """Figure 5 in numbers: average precision, and false positive rate with recall in brackets, by layer."""
    parts = [_agreement(records, task) for task in dict.fromkeys(record["task"] for record in records)]
    return "\n\n".join(parts) or MISSING


def _agreement(records: Records, task: str) -> str:
    own = [record for record in records if record["task"] == task]
    found = {(record["method"], record["metric"], record["layer"]): record["value"] for record in own}
    layers = sorted({record["layer"] for record in own})
    lines = [f"| {task} | | {' | '.join(f'layer {layer}' for layer in layers)} |", "|---|---|" + "---:|" * len(layers)]
    for name in dict.fromkeys(record["method"] for record in own):
        precision = [f"{found[name, 'map', layer]:.3f}" for layer in layers]
        wrong = [f"{found[name, 'fpr', layer]:.3f} ({found[name, 'recall', layer]:.3f})" for layer in layers]
        lines += [f"| {name} | mAP | {' | '.join(precision)} |", f"| | FPR (recall) | {' | '.join(wrong)} |"]
    first, about = own[0], own[0]["config"]
    said = [f"- {line}." for line in verdicts(own)]
    closing = (
        f"{about['documents']} documents in {about['windows']} windows (`{about['window']}`); {first['date']}, {commit(first)}."
    )
    return "\n".join([*lines, "", *said, *([""] if said else []), closing])
