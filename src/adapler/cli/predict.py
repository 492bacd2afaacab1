"""`adapler predict`: the texts of a file in, one row a text out. Flat memory; torch comes last, after every check."""

from __future__ import annotations

import csv
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adapler.cli.progress import Bar, Progress, bar_fits
from adapler.cli.shared import Output, note, open_folder, open_output
from adapler.errors import BadConfig

if TYPE_CHECKING:
    from adapler.prediction import Prediction


class Format(StrEnum):
    """Of the input."""

    auto = "auto"
    lines = "lines"
    csv = "csv"
    tsv = "tsv"
    jsonl = "jsonl"
    parquet = "parquet"


class To(StrEnum):
    """Of the output."""

    jsonl = "jsonl"
    csv = "csv"
    glue = "glue"
    parquet = "parquet"


class Engine(StrEnum):
    """Who answers parts."""

    local = "local"
    ray = "ray"


@dataclass
class Summary:
    """What a whole run did."""

    texts: int = 0
    truncated: int = 0
    """Texts longer than the model reads."""
    seconds: float = 0.0
    """Reading, predicting and writing; without loading the model."""
    flops: int = 0
    flops_full: int = 0

    @property
    def flops_speedup(self) -> float:
        """How many times fewer FLOPs than at full length, over all texts together."""
        return self.flops_full / self.flops

    def add(self, prediction: Prediction) -> None:
        """Count one more text in."""
        self.texts += 1
        self.truncated += prediction.truncated
        self.flops += prediction.flops
        self.flops_full += prediction.flops_full

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**asdict(self), "flops_speedup": self.flops_speedup}


def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or a hub id.")],
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A data file, - for standard input; a folder or a quoted pattern of files.")
    ],
    out_name: Annotated[
        str | None,
        typer.Option("--out", metavar="PATH", help="Write here, whole or not at all; parts, if a folder or PATH/."),
    ] = None,
    source_format: Annotated[Format, typer.Option("--format", help="Of INPUT; auto goes by the name's ending.")] = Format.auto,
    to: Annotated[To | None, typer.Option(help="Format of the output.  [default: jsonl; of parts, the input's]")] = None,
    text: Annotated[str | None, typer.Option(metavar="COL", help="Text column.  [default: text, or the only one]")] = None,
    pair: Annotated[str | None, typer.Option(metavar="COL", help="Second texts.  [default: text_pair, if there]")] = None,
    max_length: Annotated[int | None, typer.Option(min=3, help="Tokens to read of a text.  [default: the model's]")] = None,
    token_budget: Annotated[int | None, typer.Option(min=1, help="Tokens a batch.  [default: by the model]")] = None,
    point: Annotated[str | None, typer.Option(help="Operating point by name, as `adapler info` lists them.")] = None,
    max_loss: Annotated[float | None, typer.Option(help="The fastest point that loses at most so many points.")] = None,
    speedup: Annotated[float | None, typer.Option(help="The best point with at least so many times fewer FLOPs.")] = None,
    max_latency_ms: Annotated[
        float | None, typer.Option(help="The best point that takes at most so long for a text on this machine (doctor).")
    ] = None,
    escalate: Annotated[float | None, typer.Option(help="Answer again, carefully, where less sure than this.")] = None,
    always_keep: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Never drop it. Repeatable; a pattern as /REGEX/.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=0, help="Read longer texts in windows that share so many tokens.  [default: cut]")
    ] = None,
    device: Annotated[str, typer.Option(help="A torch device.")] = "cpu",
    tokens: Annotated[bool, typer.Option("--tokens", help="Also each text's tokens and which entered each layer.")] = False,
    with_text: Annotated[bool, typer.Option("--with-text", help="Parts: the texts too, beside the other columns.")] = False,
    part_rows: Annotated[int, typer.Option(min=1, help="Parts: rows of one, at most.")] = 50_000,
    engine: Annotated[Engine, typer.Option(help="Who answers parts: this process, or actors on Ray.")] = Engine.local,
    workers: Annotated[int | None, typer.Option(min=1, help="Ray: actors.  [default: one a core]")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Parts: threads, of each actor on Ray.  [default: all; 1]")] = None,
    address: Annotated[str | None, typer.Option(help="Ray: of a running cluster, or auto.  [default: this machine]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --out: a summary on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Neither progress nor summary for people.")] = False,
) -> None:
    """Classify the texts of a file, one output row a text, in order.

    \b
    adapler predict ./model reviews.csv --out answers.jsonl
    adapler predict ./model pairs.jsonl --text premise --pair hypothesis --to csv
    zcat texts.gz | adapler predict ./model - | head -3
    adapler predict ./model corpus/ --out answers/
    adapler predict ./model 'corpus/*.parquet' --out answers/ --engine ray

    INPUT may be text lines, CSV or TSV with a header, JSON lines (these also as .gz) or parquet. Of many files, or into a
    folder, answers come in parts: run again, the command goes on where it stopped.
    """
    from adapler.cli.corpus import predict_parts, wants_parts
    from adapler.data.files import STDIN, read_texts
    from adapler.data.keep import keeper, read_always_keep

    if wants_parts(source, out_name, engine):
        from adapler.scale.plan import Settings
        from adapler.scale.ray_engine import Cluster

        if to is To.glue:
            raise BadConfig("--to glue is one file; give --to jsonl, csv or parquet for parts")
        keeper(read_always_keep(always_keep or []))  # refuses what names nothing, before anything is opened
        settings = Settings(
            model="",
            to="",
            text=text,
            pair=pair,
            max_length=max_length,
            token_budget=token_budget,
            point=point,
            max_loss=max_loss,
            speedup=speedup,
            max_latency_ms=max_latency_ms,
            escalate=escalate,
            always_keep=tuple(always_keep or ()),
            stride=stride,
            tokens=tokens,
            with_text=with_text,
            part_rows=part_rows,
        )
        predict_parts(
            open_folder(model).path,
            source,
            out_name,
            settings,
            source_format=source_format,
            to=to,
            engine=engine,
            cluster=Cluster(address, workers, threads),
            device=device,
            as_json=as_json,
            quiet=quiet,
        )
        return
    _refuse_for_one_file(to, with_text=with_text, workers=workers, threads=threads, address=address)
    to = to or To.jsonl
    out = None if out_name is None else Path(out_name)
    if tokens and to is not To.jsonl:
        raise BadConfig(f"--tokens does not fit into {to.value}; leave out --to {to.value}")
    if out is not None and _same_file(out, Path(source)):
        raise BadConfig(f"--out {out} is the input itself; choose another file")
    named = read_always_keep(always_keep or [])
    keeper(named)  # refuses what names nothing, before anything is opened
    folder = open_folder(model)
    # A file is read twice: a bad row at its end is told at once, not after hours, and the time left is known.
    total = (
        None
        if source == STDIN or _is_pipe(Path(source))
        else sum(1 for _ in read_texts(source, format=source_format, text=text, pair=pair))
    )
    with open_output(out) as output:
        from adapler.classifier import Classifier

        classifier = Classifier.from_pretrained(
            folder,
            max_length=max_length,
            token_budget=token_budget,
            device=device,
            point=point,
            max_loss=max_loss,
            speedup=speedup,
            max_latency_ms=max_latency_ms,
            escalate=escalate,
            always_keep=named,
            stride=stride,
        )
        rows = {To.csv: _csv_rows, To.glue: _glue_rows}
        write = rows[to](output, classifier.labels) if to in rows else _json_rows(output, tokens)
        summary = Summary()
        start = time.perf_counter()
        with Bar() if bar_fits(results_on_stdout=out is None) and not quiet else Progress() as progress:
            progress.begin(total)
            for prediction in classifier(read_texts(source, format=source_format, text=text, pair=pair)):
                write(prediction)
                summary.add(prediction)
                progress.advance()
        output.finish()
        summary.seconds = time.perf_counter() - start
    if not quiet:
        cut = f", {summary.truncated} cut at {classifier.max_length} tokens" if summary.truncated else ""
        note(f"{summary.texts} texts in {summary.seconds:.2f} s, flops_speedup {summary.flops_speedup:.2f}{cut}")
    if as_json and out is not None:
        typer.echo(json.dumps({"model": str(folder.path), "input": source, "out": str(out), **summary.to_dict()}))


def _refuse_for_one_file(
    to: To | None, *, with_text: bool, workers: int | None, threads: int | None, address: str | None
) -> None:
    """What makes sense for parts alone."""
    given = {"--to parquet": to is To.parquet, "--with-text": with_text, "--threads": threads, "--workers": workers}
    for flag, value in {**given, "--address": address}.items():
        if value:
            raise BadConfig(f"{flag} is for answers in parts; give --out FOLDER/ or leave it out")


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there, or cannot be looked at; opening it will say so
        return False


def _is_pipe(path: Path) -> bool:
    try:
        return path.is_fifo()
    except OSError:
        return False


def _json_rows(output: Output, tokens: bool) -> Callable[[Prediction], None]:
    def write(prediction: Prediction) -> None:
        row: dict[str, Any] = {
            "label": prediction.label,
            "score": prediction.score,
            "scores": prediction.scores,
            "n_tokens": len(prediction.tokens),
            "tokens_kept": prediction.lengths,
            "flops": prediction.flops,
            "flops_full": prediction.flops_full,
            "truncated": prediction.truncated,
            "windows": prediction.windows,
        }
        if tokens:
            row |= {"tokens": prediction.tokens, "kept": prediction.kept}
        output.write(json.dumps(row, ensure_ascii=False) + "\n")

    return write


def _csv_rows(output: Output, labels: list[str]) -> Callable[[Prediction], None]:
    from adapler.scale.answers import answer_columns, answer_values

    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(answer_columns(labels))

    def write(prediction: Prediction) -> None:
        values = answer_values(prediction, labels)
        writer.writerow(str(value).lower() if isinstance(value, bool) else value for value in values)

    return write


def _glue_rows(output: Output, labels: list[str]) -> Callable[[Prediction], None]:
    """As the GLUE test server takes them: numbers, but names for the tasks about entailment."""
    output.write("index\tprediction\n")
    named = any("entail" in label for label in labels)
    count = itertools.count()

    def write(prediction: Prediction) -> None:
        answer = prediction.label if named else labels.index(prediction.label)
        output.write(f"{next(count)}\t{answer}\n")

    return write
