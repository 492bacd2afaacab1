"""`adapler rationale`: how a model's explanations agree with the words people marked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from adapler.cli.shared import note, open_checkpoint
from adapler.errors import BadConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adapler.records import Record

FIGURE, PAGE, RECORDS = "rationale.png", "rationale.html", "rationale.json"
_SHOWN = ("map", "fpr", "fpr_at_annotated", "fpr_at_cp", "fpr_above_cp", "fpr_at_annotated_above_cp")


def rationale(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a reduced model, or of a plain classifier.")],
    data: Annotated[str, typer.Option(help="Folder of splits, or a file, with the columns words, rationale, label.")],
    split: Annotated[str, typer.Option(help="Split of a folder.")] = "test",
    explainers: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="By default all but integrated_gradients, which needs captum.")
    ] = None,
    window: Annotated[str, typer.Option(help="How long documents are cut: whole (no rationale split) or chunks.")] = "whole",
    target: Annotated[str, typer.Option(help="The class that is explained: predicted or gold.")] = "predicted",
    against: Annotated[Path | None, typer.Option(help="Full-length classifier that the other explainers explain.")] = None,
    point: Annotated[str | None, typer.Option(help="Operating point by name, as `adapler info` lists them.")] = None,
    max_loss: Annotated[float | None, typer.Option(help="The fastest point that loses at most so many points.")] = None,
    speedup: Annotated[float | None, typer.Option(help="The best point with at least so many times fewer FLOPs.")] = None,
    faithfulness: Annotated[bool, typer.Option(help="Also comprehensiveness and sufficiency (slow).")] = True,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many documents.")] = None,
    out: Annotated[Path | None, typer.Option(help=f"Folder for {RECORDS}, {FIGURE} and {PAGE}.")] = None,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """The paper's Figure 5: agreement of contribution predictors, saliency and attention with human rationales, by layer.

    \b
    adapler rationale runs/movies --data eraser_movies --out runs/movies-rationale
    """
    import json

    if window not in ("whole", "chunks"):
        raise BadConfig(f"--window takes whole or chunks, got {window!r}")
    if target not in ("predicted", "gold"):
        raise BadConfig(f"--target takes predicted or gold, got {target!r}")
    folder = open_checkpoint(model)
    if out is not None and out.exists() and not out.is_dir():
        raise BadConfig(f"--out {out} is a file; name a folder")

    from rich.console import Console

    from adapler.evaluation.agreement import Question, measure_folder, records
    from adapler.evaluation.explainers import DEFAULT, EXPLAINERS
    from adapler.folder import report_beside
    from adapler.points import operating
    from adapler.records import Record, model_name, write_records
    from adapler.training.progress import progress_for
    from adapler.training.snapshot import writing

    reads_reduction = ("cp", "kept") if folder.reduction is None else () if folder.reduction.method == "adapler" else ("cp",)
    names = tuple(name for name in DEFAULT if name not in reads_reduction)
    if explainers is not None:
        names = tuple(dict.fromkeys(name.strip() for name in explainers.split(",") if name.strip()))
        for name in names:
            EXPLAINERS[name]  # an unknown one is told before anything is loaded
    how = operating(
        None if folder.reduction is None else folder.reduction.dial, point=point, max_loss=max_loss, speedup=speedup
    )
    if how.escalate is not None:
        raise BadConfig(f"point {point} runs unsure texts twice, and an explanation is of one run; choose another")
    rule = cast("Literal['whole', 'chunks']", window)
    question = Question(names, rule, gold=target == "gold", limit=limit, faithful=faithfulness, scale=how.scale)
    if out is not None:
        _check_drawing()
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)  # before minutes of measuring
    with progress_for(Console(stderr=True), quiet=quiet) as progress:
        progress.phase("explain")
        measured = measure_folder(model, data, split, question, against=against, device=device, advance=progress.advance)
    made_by = (report_beside(folder.path) or {}).get("config", {})
    base = Record(
        kind="rationale",
        task=Path(data).name.split(".")[0],
        backbone=model_name(made_by["model"]) if made_by.get("model") else folder.path.name,
        seed=made_by.get("run", {}).get("seed"),
        split=split,
        n=measured.conditions["documents"],
        config={
            "reduction": None if folder.reduction is None else folder.reduction.method,
            **({} if how.scale is None else {"scale": how.scale}),
        },
    )
    made = records(measured, base)
    if out is not None:
        from adapler.evaluation.rationale import MEASURES
        from adapler.report.agreement import draw, write_agreement

        write_records(out / RECORDS, made)
        rows = [record.to_dict() for record in made]
        draw(rows, out / FIGURE)
        write_agreement(rows, {name: measure.words for name, measure in MEASURES.items()}, out / PAGE)
    if as_json:
        typer.echo(json.dumps([record.to_dict() for record in made]))
    else:
        _print(made)
    if out is not None:
        note(f"records, figure and page are in {out}")


def _check_drawing() -> None:
    """Before minutes of measuring."""
    import importlib.util

    from adapler.errors import MissingExtra

    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("--out draws a figure, which needs matplotlib: pip install 'adapler[plot]'")


def _print(made: Sequence[Record]) -> None:
    from rich.console import Console
    from rich.table import Table

    from adapler.report.agreement import BESIDE, verdicts

    console = Console()
    layers = sorted({record.layer for record in made if record.layer is not None})
    found = {(record.method, record.metric, record.layer): record for record in made}
    for metric in _SHOWN:
        beside = BESIDE.get(metric)
        table = Table(f"{metric} ({beside})" if beside else metric, *(f"layer {layer}" for layer in layers))
        for name in dict.fromkeys(record.method for record in made):
            cells = [_cell(found.get((name, metric, layer)), found.get((name, beside, layer))) for layer in layers]
            if any(cells):
                table.add_row(str(name), *cells)
        if table.row_count:
            console.print(table)
    about = made[0].config or {}
    console.print(
        f"{about['documents']} documents of {about['texts']} texts in {about['windows']} windows ({about['window']}; "
        f"{about['rationales_split']} rationales split, {about['windows_unmarked']} windows without one left out, "
        f"{about['windows_all_marked']} marked throughout, which have no false positives to count); the {about['class']} class "
        f"is explained"
    )
    told = verdicts([record.to_dict() for record in made])
    if told:
        console.print("fpr_above_cp in brackets: CP's recall there is below 0.8 of saliency's, or none, so it does not count")
    for line in told:
        console.print(line, highlight=False)


def _cell(record: Record | None, beside: Record | None) -> str:
    """A value; a false positive rate with its recall."""
    if record is None:
        return ""
    value = f"{record.value:.3f}" + ("" if beside is None else f" ({beside.value:.3f})")
    return value if (record.config or {}).get("counted", True) else f"[{value}]"
