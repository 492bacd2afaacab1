"""`adapler dial`: measure a model's operating points and keep them in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adapler.cli.doctor import note_opening
from adapler.cli.shared import note, open_checkpoint, points_table
from adapler.errors import BadModel

if TYPE_CHECKING:
    from adapler.dial import Measured
    from adapler.points import Point


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
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to time the points.")] = 2.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure, but keep nothing of it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every point as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Measure dev score, FLOPs and time at many speeds, and keep the points that no other beats in score and FLOPs.

    Times are of this machine, which should be quiet, and are remembered as `adapler doctor` remembers its own.

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
    from adapler.doctor import digest_of, remember
    from adapler.folder import write_dial
    from adapler.training.progress import progress_for

    with progress_for(Console(stderr=True), quiet=quiet) as progress:
        progress.phase("dial")
        measured = measure_folder(
            folder,
            settings,
            split,
            against=against,
            escalate=escalate or (),
            always_keep=named,
            seconds=seconds,
            advance=progress.advance,
        )
    if not dry_run:
        write_dial(folder, measured.dial)
        digest = digest_of(folder.path)  # of the folder as it now is: times belong to these points
        if digest is not None:
            remember(digest, measured.times)
    if as_json:
        typer.echo(json.dumps({"model": str(folder.path), **_told(measured)}))
        return
    _print_table(measured)
    if not dry_run:
        note(f"{len(measured.dial.points)} points are now in {folder.path}")
        note_opening(measured.dial, measured.times)


def _told(measured: Measured) -> dict[str, Any]:
    """As JSON holds it: the dial, and each point with its time."""

    def timed(point: Point) -> dict[str, Any]:
        return {**point.model_dump(), **measured.times.points[point.name].model_dump()}

    return {
        **measured.dial.model_dump(exclude={"points", "beaten"}),
        "points": [timed(point) for point in measured.dial.points],
        "measured": [timed(point) for point in measured.points],
        "timed": measured.times.model_dump(exclude={"points"}),
    }


def _print_table(measured: Measured) -> None:
    from rich.console import Console

    dial, times = measured.dial, measured.times
    console = Console()
    console.print(points_table(dial, measured.points, times))
    console.print(f"{dial.n} texts of {dial.data}; loss in points from {dial.reference} ({100 * dial.reference_score:.2f})")
    console.print(f"times: {times}")
