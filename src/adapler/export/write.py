"""From a checkpoint to an exported folder: written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from adapler.checkpoint import Checkpoint, write_folder
from adapler.data.text import EncodedText, PlainTokenizer
from adapler.engine import model_cost
from adapler.errors import BadModel, MissingExtra
from adapler.export import EXPORTS
from adapler.runtimes.exported import Exported, seal_exported

_LIMIT = 2**31  # bytes: what one protobuf file may hold


def export(
    opened: Checkpoint,
    out: str | Path,
    *,
    to: str,
    overwrite: bool = False,
    texts: Sequence[EncodedText] | None = None,
    accept: Callable[[Exported], None] | None = None,
) -> None:
    """Write `out` for the runtime `to`. `accept` sees the finished folder before it gets its name; what it raises undoes it.

    `texts` are what an 8-bit graph is calibrated on, if it should be.
    """
    content = _serialised(opened, to, texts)
    config = opened.backbone.model.config

    def write(staging: Path) -> None:
        exported = Exported(
            path=staging,
            runtime=to,
            method=None if opened.reducer is None else opened.reducer.name,
            labels=list(opened.backbone.labels),
            problem_type=config.problem_type,
            max_length=opened.max_length,
            longest=opened.backbone.max_length,
            tokenizer=PlainTokenizer.of(opened.tokenizer),
            cost=model_cost(opened.backbone, opened.reducer),
            dial=opened.dial,
            thresholds=None if opened.backbone.thresholds is None else list(opened.backbone.thresholds),
        )
        exported.model.write_bytes(content)
        seal_exported(exported)
        if accept is not None:
            accept(exported)

    write_folder(Path(out), write, overwrite=overwrite)


def _serialised(opened: Checkpoint, to: str, texts: Sequence[EncodedText] | None) -> bytes:
    """The graph as a file holds it."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"exporting needs {error.name}, which is not installed; pip install 'adapler[onnx]'") from error
    from adapler.export.encode import build_graph, to_model

    improve = EXPORTS[to]
    graph = build_graph(opened.backbone, opened.reducer)
    improve(graph, texts)
    model = to_model(graph, reduced=opened.reducer is not None)
    if model.ByteSize() >= _LIMIT:
        raise BadModel(f"the graph takes {model.ByteSize()} bytes, a file holds less than {_LIMIT}; use torch")
    content: bytes = model.SerializeToString()
    return content
