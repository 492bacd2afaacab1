"""`adapler predict` into a folder: many files, parts, either engine. The single file is `predict.py`'s."""

from __future__ import annotations

import glob
import json
from pathlib import Path

import typer

from adapler.cli.progress import Bar, Lines, Progress, bar_fits
from adapler.cli.shared import note
from adapler.errors import BadConfig
from adapler.scale.parts import find
from adapler.scale.plan import Settings, model_digest
from adapler.scale.ray_engine import Cluster
from adapler.scale.run import check_apart, output_format, score


def wants_parts(source: str, out: str | None, engine: str) -> bool:
    """Whether a command asks for a folder of parts: by its engine, by many inputs, or by a folder to write to."""
    many = Path(source).is_dir() or (glob.has_magic(source) and not Path(source).exists())
    return engine != "local" or many or (out is not None and (out.endswith("/") or Path(out).is_dir()))


def predict_parts(
    model: Path,
    source: str,
    out: str | None,
    settings: Settings,
    *,
    source_format: str,
    to: str | None,
    engine: str,
    cluster: Cluster,
    device: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Check, score, tell. `settings` come without the model's digest and the output's format, which are found here."""
    if source == "-":
        raise BadConfig("parts need input that can be read again, and standard input cannot; save it to a file first")
    if out is None:
        raise BadConfig("answers in parts need a folder: give --out FOLDER/")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise BadConfig(f"--out {out} is a file; parts need a folder")
    sources, others = find(source, source_format)
    check_apart(sources, folder)
    wanted = settings.model_copy(update={"model": model_digest(model), "to": output_format(sources, to)})
    if wanted.tokens and wanted.to == "csv":
        raise BadConfig("--tokens does not fit into csv; give --to jsonl or --to parquet")
    progress = Progress() if quiet else Bar() if bar_fits(results_on_stdout=False) else Lines()
    if others and not quiet:
        note(f"{others} {'file' if others == 1 else 'files'} with other endings in {source} not read; --format reads them all")
    with progress:
        summary = score(
            model,
            sources,
            folder,
            wanted,
            progress,
            engine=engine,
            cluster=cluster,
            threads=cluster.threads,
            device=device,
        )
    if not quiet:
        before = f", {summary.parts_before} of {summary.parts} parts done before" if summary.parts_before else ""
        cut = f", {summary.truncated} cut" if summary.truncated else ""
        bad = f", {summary.bad} bad rows in {folder / '_bad'}" if summary.bad else ""
        took = f"in {summary.seconds:.2f} s ({summary.rows_per_second:.0f} rows/s)"
        if summary.parts_before == summary.parts:
            took, before = "all answered before", ""
        note(f"{summary.rows} texts {took}, flops_speedup {summary.flops_speedup:.2f}{cut}{bad}{before}")
    if as_json:
        about = {"model": str(model), "input": source, "out": out, "files": len(sources), "engine": engine}
        typer.echo(json.dumps({**about, **summary.to_dict()}))
