"""`adapler study`: length-reduction methods compared on one engine, by one protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adapler.cli.shared import guarded, note

study = typer.Typer(help="Compare length-reduction methods: run tasks x methods x seeds, then show them.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(metavar="STUDY", help="Folder of the study.")]


@study.command()
@guarded
def run(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="YAML or JSON file: tasks, methods, seeds, settings.")],
    out: Annotated[Path, typer.Option(help="Folder of the study; what is done in it is not done again.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the cells and what is left.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Train and measure every method on every task; stop it when you like, the same command goes on.

    adapler study run study.yaml --out runs/study
    """
    from rich.console import Console

    from adapler.study.places import cell_done
    from adapler.study.plan import cells, read_plan

    wanted = read_plan(plan)
    if dry_run:
        for cell in cells(wanted):
            typer.echo(f"{'done' if cell_done(out, cell) else 'to do'}  {cell.name}")
        return

    from adapler.study.run import run_study
    from adapler.training.progress import progress_for

    console = Console(stderr=True)
    run_study(wanted, out, lambda: progress_for(console, quiet=quiet), lambda line: console.print(line, highlight=False))


@study.command()
@guarded
def table(
    folder: Folder,
    form: Annotated[str, typer.Option("--format", help="markdown, latex or html.")] = "markdown",
    datasets: Annotated[bool, typer.Option("--datasets", help="What the tasks are, instead of what came out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records instead.")] = False,
) -> None:
    """The paper's Table 1 on this machine, beside the paper's own figures.

    adapler study table runs/study --format latex
    """
    import json

    from adapler.study.places import read_results
    from adapler.study.tables import FORMATS, dataset_table, results_table

    records = read_results(folder)
    if as_json:
        typer.echo(json.dumps(records))
        return
    typer.echo(FORMATS[form](dataset_table(records) if datasets else results_table(records)))


@study.command()
@guarded
def curves(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="Figure to write: .png, .svg or .pdf.")],
    limit: Annotated[int | None, typer.Option(min=1, help="Score only so many test texts, the first ones.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Score against speed, a panel a task: every trained model at every scale of its thresholds, on test.

    adapler study curves runs/study --out curves.png
    """
    from adapler.report.plot import check_figure
    from adapler.study.curves import draw, measure_curves, read_curves
    from adapler.study.places import read_results

    check_figure(out)  # before hours of measuring
    measure_curves(folder, (lambda line: None) if quiet else note, limit)
    draw(read_curves(folder), read_results(folder), out)
    typer.echo(str(out))


@study.command()
@guarded
def clock(
    folder: Folder,
    texts: Annotated[int, typer.Option(min=1, help="How many test texts, the first ones.")] = 500,
    seconds: Annotated[float, typer.Option(min=1, help="Time for a task; at least three turns are taken.")] = 60.0,
    watts: Annotated[float, typer.Option(min=0.1, help="What a core draws under load, for the estimate of energy.")] = 10.0,
    form: Annotated[str, typer.Option("--format", help="markdown, latex or html.")] = "markdown",
    as_json: Annotated[bool, typer.Option("--json", help="Print the records instead.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Wall clock of every method at the point dev chose, on this machine, and the energy of a million texts, estimated.

    adapler study clock runs/study
    """
    import json

    from adapler.study.clock import clock_table, measure_clock, read_clock
    from adapler.study.tables import FORMATS

    shown = FORMATS[form]
    measure_clock(folder, (lambda line: None) if quiet else note, texts=texts, seconds=seconds, watts=watts)
    records = read_clock(folder)
    typer.echo(json.dumps(records) if as_json else shown(clock_table(records)))


@study.command()
@guarded
def page(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="Page to write (HTML, nothing fetched).")],
    limit: Annotated[int | None, typer.Option(min=1, help="Curves of only so many test texts, the first ones.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Tables and curves on one page.

    adapler study page runs/study --out study.html
    """
    from adapler.study.curves import measure_curves
    from adapler.study.page import write_page

    measure_curves(folder, (lambda line: None) if quiet else note, limit)
    write_page(folder, out)
    typer.echo(str(out))


@study.command()
@guarded
def rationale(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="YAML or JSON file: tasks, rows, seeds, settings.")],
    out: Annotated[Path, typer.Option(help="Folder of the pilot; what is done in it is not done again.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the cells and what is left.")] = False,
    form: Annotated[str, typer.Option("--format", help="Of the tables: markdown, latex or html.")] = "markdown",
    as_json: Annotated[bool, typer.Option("--json", help="Print the records instead of the tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """The paper's Table 2: models that read only the words people, saliency or attention choose, against full input.

    adapler study rationale pilot.yaml --out runs/pilot
    """
    import json

    from rich.console import Console

    from adapler.study.rationale_plan import rationale_cells, read_rationale_plan
    from adapler.study.tables import FORMATS

    wanted, shown = read_rationale_plan(plan), FORMATS[form]

    from adapler.study.rationale import rationale_done, run_pilot

    if dry_run:
        for cell in rationale_cells(wanted):
            typer.echo(f"{'done' if rationale_done(out, cell) else 'to do'}  {cell.name}")
        return

    from adapler.study.places import read_results
    from adapler.study.rationale_table import pairs_table, pilot_table
    from adapler.training.progress import progress_for

    console = Console(stderr=True)
    run_pilot(wanted, out, lambda: progress_for(console, quiet=quiet), lambda line: console.print(line, highlight=False))
    records = read_results(out, "rationale")
    if as_json:
        typer.echo(json.dumps(records))
        return
    typer.echo(f"{shown(pilot_table(records))}\n\n{shown(pairs_table(records))}")
