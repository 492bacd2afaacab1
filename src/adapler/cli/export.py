"""`adapler export`: a model folder as one ONNX graph, for machines without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adapler.cli.shared import note, open_checkpoint
from adapler.errors import BadConfig, BadModel

if TYPE_CHECKING:
    from adapler.data.text import EncodedText
    from adapler.export.measure import Comparison


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or a hub id.")],
    out: Annotated[Path, typer.Option(help="Folder to write, whole or not at all.")],
    to: Annotated[str, typer.Option(help="onnx (float32) or onnx-int8 (layers in 8 bits).")] = "onnx",
    data: Annotated[str | None, typer.Option(help="Labelled data to measure score and speed on, as for evaluate.")] = None,
    split: Annotated[str, typer.Option(help="Split of a folder or task: dev or test.")] = "test",
    text: Annotated[str | None, typer.Option(help="Column of the text.")] = None,
    pair: Annotated[str | None, typer.Option(help="Column of the second text of a pair.")] = None,
    label: Annotated[str, typer.Option(help="Column of the label.")] = "label",
    metric: Annotated[str | None, typer.Option(help="accuracy, f1 or matthews; the task's own by default.")] = None,
    max_loss: Annotated[float, typer.Option(min=0, help="With --data: points of score the exported model may lose.")] = 0.5,
    calibrate: Annotated[
        int, typer.Option(min=0, help="With onnx-int8 and --data: fixed ranges from this many train texts; faster, coarser.")
    ] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model folder that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Write a model as a graph that onnxruntime runs without torch, tokens removed inside.

    \b
    adapler export ./model --out ./model-onnx
    adapler export ./model --to onnx-int8 --data sst2 --max-loss 0.3 --out ./model-int8

    With --data the exported model is run beside the float one; a slower or worse one is refused with exit code 5.
    """
    import json

    from adapler.config import build_config
    from adapler.export import EXPORTS

    if to not in EXPORTS:
        raise BadConfig(f"--to {to!r} is not known; choose one of {', '.join(EXPORTS)}")
    if calibrate and (to != "onnx-int8" or data is None):
        raise BadConfig("--calibrate needs --to onnx-int8 and --data to take texts from")
    folder = open_checkpoint(model)
    if out.exists() and not overwrite:  # told before anything is loaded, and in the words of the command
        raise BadModel(f"{out} exists; choose another folder or give --overwrite")
    columns = {"source": data, "text": text, "pair": pair, "label": label, "metric": metric}
    settings = None if data is None else build_config({"data": columns}).data

    from adapler import checkpoint
    from adapler.export.write import export as write
    from adapler.runtimes.exported import Exported

    opened = checkpoint.load(folder)
    measured: list[Comparison] = []

    def accept(exported: Exported) -> None:
        """Measure before the folder gets its name."""
        from adapler.export.measure import require

        assert settings is not None
        measured.append(_compared(opened, exported, settings, split))
        require(measured[0], max_loss)

    seen = _calibration(opened, settings, calibrate) if calibrate else None
    write(opened, out, to=to, overwrite=overwrite, texts=seen, accept=None if settings is None else accept)
    report: dict[str, Any] = {
        "model": str(folder.path),
        "out": str(out),
        "runtime": to,
        "bytes": _size(out),
        "calibrated_on": calibrate,
    }
    if measured:
        report |= {"data": data, "split": split, "max_loss": max_loss, **measured[0].to_dict()}
    if as_json:
        typer.echo(json.dumps(report))
        return
    note(f"wrote {out} ({report['bytes'] / 1e6:.1f} MB) for {to}")
    typer.echo(str(measured[0]) if measured else "not measured: give --data to compare score and speed with torch")


def _compared(opened: Any, exported: Any, settings: Any, split: str) -> Comparison:
    import torch

    from adapler.data.load import read_split
    from adapler.data.text import TextEncoder
    from adapler.export.measure import compare
    from adapler.runtimes import RUNTIMES
    from adapler.runtimes.torch_packed import TorchPacked

    examples, metric = read_split(settings, split, tuple(exported.labels), opened.backbone.problem)
    texts = TextEncoder(exported.tokenizer, exported.max_length)(examples.texts)
    runtime = RUNTIMES[exported.runtime](exported, threads=torch.get_num_threads())
    return compare(runtime, TorchPacked(opened.backbone, opened.reducer), texts, examples.labels, metric)


def _calibration(opened: Any, settings: Any, count: int) -> list[EncodedText]:
    """The first train texts: the split that is measured on must not shape what is measured."""
    from adapler.data.load import read_split
    from adapler.data.text import TextEncoder

    examples, _ = read_split(settings, "train", opened.backbone.labels, opened.backbone.problem)
    return TextEncoder(opened.tokenizer, opened.max_length)(examples.texts[:count])


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
