"""`adapler dial`: measure a model's operating points and keep them in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adapler.cli.shared import note, open_checkpoint
from adapler.errors import BadModel

if TYPE_CHECKING:
    from adapler.points import Dial, Point


def dial(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a reduced model.")],
    data: Annotated[str, typer.Option(help="Named task, folder of splits, labelled file, or hub dataset id.")],
    split: Annotated[str, typer.Option(help="Split of a folder or task. Points are chosen by it: never test.")] = "dev",
    text: Annotated[str | None, typer.Option(help="Column of the text.")] = None,
    pair: Annotated[str | None, typer.Option(help="Column of the second text of a pair.")] = None,
    label: Annotated[str, typer.Option(help="Column of the label.")] = "label",
    metric: Annotated[str | None, typer.Option(help="accuracy, f1 or matthews; the task's own by default.")] = None,
    against: Annotated[Path | None, typer.Option(help="Full-length classifier to count losses from.")] = None,
    escalate: Annotated[list[float] | None, typer.Option(help="Also with careful answers below this probability.")] = None,
    always_keep: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Measure with this word never dropped. Repeatable; /REGEX/ too.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure, but leave the folder as it is.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every point as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Measure dev score and FLOPs at many speeds, and keep the points that no other beats.

    \b
    adapler dial runs/sst2 --data sst2
    adapler predict runs/sst2 reviews.csv --max-loss 0.5
    """
    import json

    from adapler.config import build_config
    from adapler.data.keep import read_always_keep

    named = read_always_keep(always_keep or [])
    folder = open_checkpoint(model)
    if folder.reduction is None:
        raise BadModel(f"{folder.path} holds no reduction, so it has no operating points; make one with adapler train")
    settings = build_config({"data": {"source": data, "text": text, "pair": pair, "label": label, "metric": metric}}).data

    from rich.console import Console

    from adapler.dial import measure_folder
    from adapler.folder import write_dial
    from adapler.training.progress import progress_for

    with progress_for(Console(stderr=True), quiet=quiet) as progress:
        progress.phase("dial")
        found, points = measure_folder(
            folder,
            settings,
            split,
            against=against,
            escalate=escalate or (),
            always_keep=named,
            advance=progress.advance,
        )
    if not dry_run:
        write_dial(folder, found)
    if as_json:
        typer.echo(json.dumps({"model": str(folder.path), **found.model_dump(), "measured": [p.model_dump() for p in points]}))
        return
    _print_table(found, points)
    if not dry_run:
        note(f"{len(found.points)} points are now in {folder.path}")


def _print_table(found: Dial, points: list[Point]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("point", "scale", found.metric, "loss", "flops_speedup", "executed", "kept")
    names = {point.name: alias for alias, point in found.aliases.items()}
    for point in sorted(points, key=lambda point: point.flops_speedup):
        table.add_row(
            point.name,
            f"{point.scale:.3g}",
            f"{100 * point.score:.2f}",
            f"{point.loss_points:+.2f}",
            f"{point.flops_speedup:.2f}x",
            f"{point.flops_speedup_executed:.2f}x",
            names.get(point.name, "yes") if point in found.points else "",
        )
    console = Console()
    console.print(table)
    console.print(f"{found.n} texts of {found.data}; loss in points from {found.reference} ({100 * found.reference_score:.2f})")
