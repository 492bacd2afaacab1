"""`adapler info`: what a model folder holds, read without torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adapler.cli.shared import open_folder, points_table

if TYPE_CHECKING:
    from adapler.doctor import Diagnosis
    from adapler.folder import Folder
    from adapler.points import Dial
    from adapler.runtimes.exported import Exported


def info(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or a hub id.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Check a model folder and show what it holds.

    \b
    adapler info ./model
    adapler info ./model --json
    """
    from adapler.runtimes.exported import Exported

    folder = open_folder(model)
    if isinstance(folder, Exported):
        description, dial, runtime = describe_exported(folder), folder.dial, folder.runtime
    else:
        dial = None if folder.reduction is None else folder.reduction.dial
        description, runtime = describe(folder), "torch"
    times = _times(folder.path, runtime)
    if dial is not None:
        description |= _describe_points(dial, times)
    if as_json:
        typer.echo(json.dumps(description))
    else:
        _print_tables(description, dial, times)


def describe(folder: Folder) -> dict[str, Any]:
    """Everything about a checked folder. The entries from `method` on are there only where it is reduced."""
    from adapler.folder import REDUCTION_JSON, REDUCTION_TENSORS, config_size

    config, reduction = folder.config, folder.reduction
    description: dict[str, Any] = {
        "path": str(folder.path),
        "model_type": config["model_type"],
        "layers": config_size(config, "num_hidden_layers"),
        "hidden_size": config_size(config, "hidden_size"),
        "labels": _labels(config),
        "max_length": _max_length(folder),
        "parameters": folder.parameters,
        "reduced": reduction is not None,
    }
    if reduction is None:
        return description
    from safetensors import safe_open

    tensors = folder.path / REDUCTION_TENSORS
    description |= {
        "method": reduction.method,
        "settings": reduction.settings.model_dump(),
        "reduction_parameters": _parameters(tensors),
        "format_version": json.loads((folder.path / REDUCTION_JSON).read_text(encoding="utf-8"))["format_version"],
    }
    with safe_open(tensors, framework="numpy") as opened:
        for name in sorted(opened.keys()):
            if "." not in name:  # the method's own numbers a layer; the weights of its parts have dotted names
                values = opened.get_tensor(name)  # where a layer has several, their sum: what it retains of all ranks
                description[name] = [float(str(number)) for number in values.reshape(len(values), -1).sum(axis=1)]
    return description


def describe_exported(exported: Exported) -> dict[str, Any]:
    """Everything about a checked folder of an exported graph."""
    description: dict[str, Any] = {
        "path": str(exported.path),
        "runtime": exported.runtime,
        "layers": len(exported.cost.layers),
        "labels": exported.labels,
        "max_length": exported.max_length,
        "bytes": exported.model.stat().st_size,
        "reduced": exported.method is not None,
    }
    return description | ({} if exported.method is None else {"method": exported.method})


def _times(path: Path, runtime: str) -> Diagnosis | None:
    """What was timed on this machine last."""
    from adapler.doctor import digest_of, recall_latest

    digest = digest_of(path)
    return None if digest is None else recall_latest(digest, runtime)


def _describe_points(dial: Dial, times: Diagnosis | None) -> dict[str, Any]:
    """Every point that can be asked for, where the model opens unasked, and what was timed, if anything was."""
    from adapler.points import TRAINED, opening

    opened = opening(dial, None if times is None else times.rates)
    told = {
        "points": {
            point.name: {**point.model_dump(exclude={"name"}), "also": dial.also(point), "kept": point in dial.points}
            for point in dial.named
        },
        "points_measured_on": f"{dial.n} texts of {dial.data}",
        "opens_at": TRAINED if opened is None else opened.name,
    }
    return told if times is None else {**told, "timings": times.model_dump()}


def _labels(config: dict[str, Any]) -> list[str]:
    labels = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}  # transformers does not write its default down
    return [labels[key] for key in sorted(labels, key=lambda key: (len(key), key))]


def _max_length(folder: Folder) -> int | None:
    """Tokens read of a text: the least of what the reduction, the positions and the tokenizer say."""
    file = folder.path / "tokenizer_config.json"
    stated: list[Any] = [folder.config.get("max_position_embeddings")]
    if folder.reduction is not None:
        stated.append(folder.reduction.max_length)
    elif file.is_file():
        stated.append(json.loads(file.read_text(encoding="utf-8")).get("model_max_length"))
    return min((int(length) for length in stated if isinstance(length, int | float)), default=None)


def _parameters(file: Path) -> int:
    from adapler.safefile import read_header

    return sum(math.prod(entry["shape"]) for entry in read_header(file).values() if "F" in entry["dtype"])


def _print_tables(description: dict[str, Any], dial: Dial | None, times: Diagnosis | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    layers = description["layers"]
    by_layer = {name: value for name, value in description.items() if name != "labels" and isinstance(value, list)}
    facts = Table(show_header=False)
    for name, value in description.items():
        if name == "settings":
            facts.add_row(name, Text(", ".join(f"{key} {number}" for key, number in value.items())))
        elif name == "timings":
            facts.add_row("timed", Text(str(times)))
        elif name != "points" and name not in by_layer:
            facts.add_row(name.replace("_", " "), Text(_shown(value)))  # Text: square brackets of a label are no markup
    console = Console()
    console.print(facts)
    if dial is not None:
        console.print(points_table(dial, dial.named, times))
    if not by_layer:
        return
    numbers = Table("layer", *by_layer)
    for layer in range(layers):
        # a list that is shorter leaves out the first layers: theta has none for the first
        cells = [value[layer - layers] if layers - layer <= len(value) else "" for value in by_layer.values()]
        numbers.add_row(str(layer), *(f"{cell:.4g}" if cell != "" else "" for cell in cells))
    console.print(numbers)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(value) if isinstance(value, list) else str(value)
