"""`adapler bench`: a model's speed beside what people would use instead."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adapler.cli.shared import note, open_checkpoint

if TYPE_CHECKING:
    from adapler.data.text import Text
    from adapler.records import Record

_WIDEST = 40


def bench(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a reduced model with a dial.")],
    data: Annotated[str, typer.Option(help="Named task, folder of splits, labelled file, or hub dataset id.")],
    split: Annotated[str, typer.Option(help="Split of a folder or task.")] = "test",
    text: Annotated[str | None, typer.Option(help="Column of the text.")] = None,
    pair: Annotated[str | None, typer.Option(help="Column of the second text of a pair.")] = None,
    label: Annotated[str, typer.Option(help="Column of the label.")] = "label",
    count: Annotated[int, typer.Option(min=32, help="Texts to classify.")] = 512,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of every contender.  [default: all cores]")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long to measure; whole rounds only.")] = 300.0,
    calibrate: Annotated[
        int, typer.Option(min=0, help="Train texts for a calibrated 8-bit graph, where the data has a train split.")
    ] = 256,
    only: Annotated[
        list[str] | None, typer.Option(help="Only contenders with this in their name, and what they are held against; repeat.")
    ] = None,
    compiled: Annotated[bool, typer.Option("--compile", help="Also transformers under torch.compile.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the records here as JSON.")] = None,
    chart: Annotated[Path | None, typer.Option(help="Write a page with charts here (HTML, nothing fetched).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records instead of a table.")] = False,
) -> None:
    """Time transformers, ONNX Runtime and adapler on the same texts and threads, in turns. Keep the machine quiet.

    adapler bench runs/ag_news --data ag_news --out bench.json --chart bench.html
    """
    import json

    folder = open_checkpoint(model)

    import torch

    from adapler import checkpoint
    from adapler.bench.run import bench as run_bench
    from adapler.config import build_config
    from adapler.data.load import read_split
    from adapler.errors import BadInput
    from adapler.records import write_records

    if threads is not None:
        torch.set_num_threads(threads)
    settings = build_config({"data": {"source": data, "text": text, "pair": pair, "label": label}}).data
    backbone = checkpoint.load(folder).backbone
    examples, _ = read_split(settings, split, backbone.labels, backbone.problem)
    seen: list[Text] = []
    if calibrate:
        try:
            seen = read_split(settings, "train", backbone.labels, backbone.problem)[0].texts[:calibrate]
        except BadInput as error:
            note(f"without a calibrated 8-bit graph: {error}")
    records = run_bench(
        folder,
        examples.texts[:count],
        calibrate=seen,
        task=Path(data).name,
        split=split,
        seconds=seconds,
        compiled=compiled,
        only=only or (),
        say=note,
    )
    if out is not None:
        write_records(out, records)
    if chart is not None:
        from adapler.bench.chart import write_chart

        write_chart(records, chart)
    if as_json:
        typer.echo(json.dumps([record.to_dict() for record in records]))
        return
    _print_table(records)


def _print_table(records: list[Record]) -> None:
    from rich.console import Console
    from rich.table import Table

    timed = [record for record in records if record.unit == "texts/s"]
    fastest = max(record.value or 0.0 for record in timed)
    table = Table("contender", "texts/s", "spread", "wall", "FLOPs", "wall/FLOPs", "dev loss", "")
    for record in timed:
        wall, flops = record.wall_speedup, record.flops_speedup_executed
        lost = (record.config or {}).get("dev_loss_points")
        table.add_row(
            record.variant or "",
            f"{record.value:.0f}",
            f"{record.spread:.0f}",
            "" if wall is None else f"{wall:.2f}x",
            "" if flops is None else f"{flops:.2f}x",
            "" if wall is None or flops is None or record.point == "full" else f"{wall / flops:.2f}",
            "" if lost is None else f"{lost:+.1f}",
            "#" * round(_WIDEST * (record.value or 0.0) / fastest),
        )
    console = Console()
    console.print(table)
    for record in records:
        if record.unit == "share" and record.config is not None:
            console.print(
                f"full length in torch reaches {100 * (record.value or 0):.0f}% of the machine's matrix products at these "
                f"shapes ({record.config['ceiling_gflops']:.0f} GFLOP/s)"
            )
    console.print(
        "wall: against the same runtime at full length in the same batches; the first rows, against transformers padded. "
        "dev loss: points the operating point lost when its dial was measured"
    )
