"""`adapler evaluate`: what a reduced model costs and loses on labelled data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from adapler.cli.shared import open_checkpoint


def evaluate(
    model: Annotated[str, typer.Argument(help="Model folder or hub id.")],
    data: Annotated[str, typer.Option(help="Named task, folder of splits, labelled file, or hub dataset id.")],
    split: Annotated[str, typer.Option(help="Split of a folder or task: dev or test.")] = "test",
    text: Annotated[str | None, typer.Option(help="Column of the text.")] = None,
    pair: Annotated[str | None, typer.Option(help="Column of the second text of a pair.")] = None,
    label: Annotated[str, typer.Option(help="Column of the label.")] = "label",
    metric: Annotated[str | None, typer.Option(help="accuracy, f1 or matthews; the task's own by default.")] = None,
    against: Annotated[Path | None, typer.Option(help="Full-length classifier to measure the loss against.")] = None,
    always_keep: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Never drop it. Repeatable; a pattern as /REGEX/.")
    ] = None,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Score, loss against full length with its 95% interval, FLOPs speedups, tokens per layer, loss by class and length.

    adapler evaluate runs/sst2 --data sst2
    """
    import json

    from adapler.config import build_config
    from adapler.data.keep import read_always_keep

    named = read_always_keep(always_keep or [])
    open_checkpoint(model)  # a bad folder is told before torch is imported
    settings = build_config({"data": {"source": data, "text": text, "pair": pair, "label": label, "metric": metric}}).data

    from adapler.evaluation.evaluate import evaluate as run_evaluation

    report = run_evaluation(model, settings, split, against=against, device=device, always_keep=named)
    if as_json:
        typer.echo(json.dumps(report))
        return
    for line in _lines(report):
        typer.echo(line)


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [
        f"{report['metric']} {100 * report['score']:.2f} on {report['n']} {report['split']} texts",
        f"FLOPs: {report['flops_speedup']:.2f}x fewer ({report['flops_speedup_executed']:.2f}x as executed, "
        f"{report['flops_speedup_padded']:.2f}x with the full model padded)",
        f"tokens: {report['tokens']:.1f} in; entering each layer: {' '.join(f'{n:.1f}' for n in report['tokens_per_layer'])}",
    ]
    for key, name in (("against_own_full_length", "its own full length"), ("against_phase_1", "the model it was made from")):
        if key in report:
            loss = report[key]
            low, high = loss["loss_points_95"]
            lines.append(
                f"loss against {name}: {loss['loss_points']:+.2f} points (95%: {low:+.2f} to {high:+.2f}), "
                f"{loss['answers_changed']} answers changed"
            )
    lines.append("class: recall (full length), share of token-layers kept")
    lines += [
        f"  {row['label']}: {100 * row['recall']:.1f} ({100 * row['recall_full']:.1f}), {100 * row['tokens_kept']:.0f}%"
        for row in report["by_class"]
    ]
    lines.append("tokens: score (full length), share of token-layers kept")
    lines += [
        f"  {row['tokens'][0]}-{row['tokens'][1]}: {100 * row['score']:.1f} ({100 * row['score_full']:.1f}), "
        f"{100 * row['tokens_kept']:.0f}%"
        for row in report["by_length"]
    ]
    return lines
