"""What a model computes token by token, as ONNX nodes: one export of all the pieces, cut apart again.

The pieces come from the views and the method themselves, so no family and no rule is stated a second time here. Each has
inputs of its own in the exported graph; `Pieces.place` copies a piece's nodes to where a graph needs it.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

from adapler.backbones.base import Backbone, Block
from adapler.errors import BadModel
from adapler.export.graph import OPSET, Graph
from adapler.layout import Padded
from adapler.methods.base import Judge
from adapler.safefile import reason
from adapler.tokens import Tokens

_ROWS = 5  # tokens of an example; any number but 0 and 1, which the exporter takes for fixed
_TEXTS, _WIDTH = 3, 7


@dataclass(frozen=True)
class Piece:
    """A computation with an example of its inputs, of which the dimensions in `dynamic` may differ at every call."""

    run: Callable[..., Any]
    example: dict[str, Tensor]
    outputs: int = 1
    dynamic: tuple[int, ...] = (0,)


class Pieces:
    """The exported pieces by name: `embed`, `classify`, and for layer l `l.query`, `l.key_value`, `l.merge`, ..."""

    def __init__(self, pieces: dict[str, Piece], graph: onnx.GraphProto) -> None:
        self._pieces = pieces
        self._tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self._fold(graph)
        self._maker = {name: node for node in graph.node for name in node.output}
        self._order = {id(node): number for number, node in enumerate(graph.node)}

    def __contains__(self, name: object) -> bool:
        return name in self._pieces

    def place(self, graph: Graph, name: str, feeds: Mapping[str, str]) -> list[str]:
        """Copy a piece into `graph`, reading the values of `feeds` in place of its inputs; the names of its outputs."""
        piece = self._pieces[name]
        renamed = {_input(name, argument): value for argument, value in feeds.items()}
        for node in self._behind([_output(name, number) for number in range(piece.outputs)]):
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = graph.fresh(node.op_type, name)
            del copy.input[:], copy.output[:]
            copy.input.extend(renamed.get(value, value) for value in node.input)
            for value in node.output:
                renamed[value] = graph.fresh(node.op_type, name) if value else ""
                copy.output.append(renamed[value])
            graph.nodes.append(copy)
            graph.tensors |= {value: self._tensors[value] for value in node.input if value in self._tensors}
        return [renamed[_output(name, number)] for number in range(piece.outputs)]

    def _fold(self, graph: onnx.GraphProto) -> None:
        """Compute what depends on constants alone, such as the slice of a joint weight: passes look for plain weights."""
        kept = []
        for node in graph.node:
            if node.input and all(value in self._tensors for value in node.input if value):
                run = ReferenceEvaluator(node)
                values = run.run(None, {value: self._tensors[value] for value in node.input if value})
                self._tensors |= zip(node.output, map(np.asarray, values), strict=True)
            else:
                kept.append(node)
        del graph.node[:]
        graph.node.extend(kept)

    def _behind(self, wanted: list[str]) -> list[onnx.NodeProto]:
        """The nodes that values depend on, in the order they run."""
        found: dict[int, onnx.NodeProto] = {}
        while wanted:
            node = self._maker.get(wanted.pop())
            if node is not None and id(node) not in found:
                found[id(node)] = node
                wanted += node.input
        return sorted(found.values(), key=lambda node: self._order[id(node)])


def export_pieces(backbone: Backbone, judge: Judge | None) -> Pieces:
    """Every per-token computation of a model and the method's rule, through torch's exporter."""
    pieces = {**_of_backbone(backbone), **({} if judge is None else _of_judge(backbone, judge))}
    module = _Module(backbone, judge, pieces)
    fixed = torch.export.Dim.STATIC
    free = torch.export.Dim.DYNAMIC
    shapes = tuple(
        {dim: free if dim in piece.dynamic and size > 1 else fixed for dim, size in enumerate(tensor.shape)}
        for piece in pieces.values()
        for tensor in piece.example.values()
    )
    try:
        with torch.no_grad(), quiet_exporter():
            program = torch.onnx.export(
                module,
                tuple(tensor for piece in pieces.values() for tensor in piece.example.values()),
                input_names=[_input(name, argument) for name, piece in pieces.items() for argument in piece.example],
                output_names=[_output(name, number) for name, piece in pieces.items() for number in range(piece.outputs)],
                dynamic_shapes=(shapes,),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise BadModel(f"torch cannot export this model to ONNX ({reason(error)[:300]}); run it with torch") from error
    if program is None:
        raise BadModel("torch's exporter gave nothing back; run the model with torch")
    return Pieces(pieces, program.model_proto.graph)


class _Module(nn.Module):
    """All pieces side by side, as the exporter wants them: tensors in, tensors out, weights below it."""

    def __init__(self, backbone: Backbone, judge: Judge | None, pieces: dict[str, Piece]) -> None:
        super().__init__()
        self.model = backbone.model
        self.judge = judge
        self._pieces = list(pieces.values())
        self.eval()

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        left = iter(inputs)
        outputs: list[Tensor] = []
        for piece in self._pieces:
            made = piece.run(*(next(left) for _ in piece.example))
            outputs += [made] if isinstance(made, Tensor) else made
        return tuple(outputs)


def _of_backbone(backbone: Backbone) -> dict[str, Piece]:
    width = backbone.hidden_size
    numbers = torch.zeros(_ROWS, dtype=torch.int64)
    pieces = {"embed": Piece(backbone.embed, {"ids": numbers, "types": numbers.clone(), "position": torch.arange(_ROWS)})}
    for index, block in enumerate(backbone.blocks):
        context = torch.zeros(_ROWS, context_width(backbone, block))
        asked = {"x": torch.zeros(_ROWS, width), "position": torch.arange(_ROWS)}
        pieces |= {
            f"{index}.query": Piece(_flat(block.query), asked),
            f"{index}.key_value": Piece(_flat(block.key_value), {k: v.clone() for k, v in asked.items()}, outputs=2),
            f"{index}.merge": Piece(block.merge, {"x": torch.zeros(_ROWS, width), "context": context}),
            f"{index}.feed_forward": Piece(block.feed_forward, {"x": torch.zeros(_ROWS, width)}),
        }
        if biased(backbone, block):
            pieces[f"{index}.bias"] = _bias(block, *_heads_and_width(backbone, block))
    pieces["classify"] = Piece(backbone.classify, {"pooled": torch.zeros(_TEXTS, width)})
    return pieces


def _of_judge(backbone: Backbone, judge: Judge) -> dict[str, Piece]:
    """The method's logit of each token, and its rule over texts in rows."""
    pieces = {}
    for index in range(len(backbone.blocks)):

        def logit(x: Tensor, layer: int = index) -> Tensor:
            return judge.logit(x, layer)

        def rule(logit: Tensor, weight: Tensor, protected: Tensor, scale: Tensor, layer: int = index) -> tuple[Tensor, Tensor]:
            nothing = torch.zeros_like(weight)
            rows = Tokens(nothing, nothing, weight, nothing, protected, Padded(weight.shape[0]))
            decision = judge.judge(rows, logit, layer, scale=scale)
            return decision.keep, decision.score

        pieces[f"{index}.logit"] = Piece(logit, {"x": torch.zeros(_ROWS, backbone.hidden_size)})
        rows = torch.ones(_TEXTS, _WIDTH)
        example = {"logit": rows, "weight": rows.clone(), "protected": rows > 0, "scale": torch.ones(_TEXTS)}
        pieces[f"{index}.rule"] = Piece(rule, example, outputs=2, dynamic=(0, 1))
    return pieces


def _bias(block: Block, heads: int, width: int) -> Piece:
    """What a layer adds to its scores, over texts in rows; heads lie side by side in its inputs."""

    def run(asking: Tensor, attended: Tensor, query: Tensor, key: Tensor) -> Tensor | None:
        apart = (rows.unflatten(-1, (heads, width)).transpose(1, 2) for rows in (query, key))
        return block.bias(asking, attended, *apart)

    example = {
        "asking": torch.arange(_WIDTH).repeat(_TEXTS, 1),
        "attended": torch.arange(_ROWS).repeat(_TEXTS, 1),
        "query": torch.zeros(_TEXTS, _WIDTH, heads * width),
        "key": torch.zeros(_TEXTS, _ROWS, heads * width),
    }
    return Piece(run, example, dynamic=(0, 1))


def biased(backbone: Backbone, block: Block) -> bool:
    """Whether a layer adds anything to its scores."""
    x, position = torch.zeros(1, 1, backbone.hidden_size), torch.zeros(1, 1, dtype=torch.int64)
    query, (key, _) = block.query(x, position), block.key_value(x, position)
    return block.bias(position, position, query.transpose(1, 2), key.transpose(1, 2)) is not None


def context_width(backbone: Backbone, block: Block) -> int:
    """How wide the context of a token is, all heads together."""
    heads, width = _heads_and_width(backbone, block)
    return heads * width


def _heads_and_width(backbone: Backbone, block: Block) -> tuple[int, int]:
    value = block.key_value(torch.zeros(1, backbone.hidden_size), torch.zeros(1, dtype=torch.int64))[1]
    return value.shape[-2], value.shape[-1]


def _flat(projection: Callable[[Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor], Any]:
    """A projection without the split into heads, which the attention operator does itself."""

    def run(x: Tensor, position: Tensor) -> Any:
        made = projection(x, position)
        return made.flatten(-2) if isinstance(made, Tensor) else tuple(part.flatten(-2) for part in made)

    return run


def _input(piece: str, argument: str) -> str:
    return f"{piece}<{argument}"


def _output(piece: str, number: int) -> str:
    return f"{piece}>{number}"


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """The exporter without its notes on packages it would also know, on what it does not fold, and on its own
    deprecations."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):  # older ones print what they rewrote
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
