"""`adapler study`: length-reduction methods compared on one engine, by one protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def study(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="YAML or JSON file: tasks, methods, seeds, settings.")],
    out: Annotated[Path, typer.Option(help="Folder of the study; what is done in it is not done again.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the cells and what is left.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Train and measure every method on every task; stop it when you like, the same command goes on.

    adapler study study.yaml --out runs/study
    """
    from rich.console import Console

    from adapler.study.plan import cells, read_plan

    wanted = read_plan(plan)
    if dry_run:
        from adapler.study.places import cell_done

        for cell in cells(wanted):
            typer.echo(f"{'done' if cell_done(out, cell) else 'to do'}  {cell.name}")
        return

    from adapler.study.run import run_study
    from adapler.training.progress import progress_for

    console = Console(stderr=True)
    run_study(wanted, out, lambda: progress_for(console, quiet=quiet), lambda line: console.print(line, highlight=False))
