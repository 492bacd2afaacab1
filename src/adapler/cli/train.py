"""`adapler train`: three phases into one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def train(
    out: Annotated[Path, typer.Option(help="Folder of the run; an unfinished run in it goes on.")],
    data: Annotated[
        str | None, typer.Option(help="Named task, folder of splits, CSV/JSONL/parquet file, or hub dataset id.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Transformers folder or hub id, or `minilm`.")] = None,
    text: Annotated[str | None, typer.Option(help="Column of the text.")] = None,
    pair: Annotated[str | None, typer.Option(help="Column of the second text of a pair.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the label.")] = None,
    target_speedup: Annotated[float | None, typer.Option(help="Steer training towards this FLOPs speedup.")] = None,
    max_loss: Annotated[float | None, typer.Option(help="Points of dev score the kept model may lose.")] = None,
    finetuned_from: Annotated[
        Path | None, typer.Option(help="Another run's folder: take its phase 1 over instead of doing it again.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="`paper`: the paper's settings for the named task.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML or JSON file of settings.")] = None,
    assign: Annotated[list[str] | None, typer.Option("--set", help="Any setting, as key=value; may be repeated.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    keep: Annotated[int | None, typer.Option(help="Snapshots kept.")] = None,
    class_weights: Annotated[bool, typer.Option("--class-weights", help="Weigh rare classes more.")] = False,
    device: Annotated[str | None, typer.Option(help="Torch device.")] = None,
    tracker: Annotated[str | None, typer.Option(help="Also log to tensorboard, wandb or trackio.")] = None,
    no_examples: Annotated[bool, typer.Option("--no-examples", help="Keep dev texts out of the report.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Fine-tune, extract saliencies, learn what to leave out; ends in a faster classifier and an account of what it cost.

    adapler train --data sst2 --out runs/sst2

    adapler train --model ./my-encoder --data reviews.csv --text body --label stars --target-speedup 3 --out runs/reviews

    accelerate launch --num_processes 4 -m adapler train --data sst2 --out runs/sst2
    """
    import json

    from rich.console import Console

    from adapler.config import build_config, parse_assignments, read_config

    flags: dict[str, Any] = {
        "model": model,
        "data": {"source": data, "text": text, "pair": pair, "label": label, "class_weights": class_weights or None},
        "steer": {"target_speedup": target_speedup, "max_loss": max_loss},
        "run": {"seed": seed, "keep": keep, "device": device, "tracker": tracker},
    }
    if no_examples:
        flags["run"]["report_examples"] = False
    layers = [read_config(config) if config else {}, _given(flags), parse_assignments(assign or [])]
    resolved = build_config(*layers)
    if preset is not None:  # below the others, and for the data that they name
        resolved = build_config(_preset(preset, resolved.data.source), *layers)

    from adapler.training.processes import leads
    from adapler.training.progress import progress_for
    from adapler.training.run import train as run_training

    console = Console(stderr=True, quiet=not leads())
    with progress_for(console, quiet=quiet) as progress:
        report = run_training(resolved, out, progress, finetuned_from=finetuned_from)
    if not leads():
        return
    typer.echo(json.dumps({**report, "out": str(out)}) if as_json else f"{report['account']}\nmodel and report: {out}")


def _preset(name: str, source: str) -> dict[str, Any]:
    from adapler.data.tasks import TASKS
    from adapler.errors import UnknownName

    task = TASKS.get(Path(source).name)
    if name != "paper" or task is None:
        raise UnknownName(f"preset {name!r} for data {source!r}: known is `paper`, for {', '.join(TASKS)}")
    return task.paper


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """Without what was not given."""
    given: dict[str, Any] = {}
    for key, value in flags.items():
        kept = _given(value) if isinstance(value, dict) else value
        if kept is not None and kept != {}:
            given[key] = kept
    return given
