"""Linear maps of a graph whose weights are plain tensors: found, and joined where several read the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from adapler.data.text import EncodedText
from adapler.export.graph import Graph

PROJECTIONS = frozenset({"query", "key_value"})
ENCODER = PROJECTIONS | {"merge", "feed_forward"}
"""Parts of a layer by the name of their piece. Neither predictors nor the classifier are among them."""


@dataclass(frozen=True)
class Linear:
    """`x @ weight + bias`."""

    x: str
    weight: NDArray[np.float32]
    """(in, out)"""
    bias: NDArray[np.float32] | None
    output: str
    scope: str

    @property
    def part(self) -> str:
        """Which part of a layer it belongs to."""
        return self.scope.partition(".")[2]


def as_linear(graph: Graph, node: onnx.NodeProto) -> Linear | None:
    """The node as a linear map, if it is one with its weights beside it."""
    if node.op_type not in ("Gemm", "MatMul") or node.domain or node.input[1] not in graph.tensors:
        return None
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    weight = graph.tensors[node.input[1]]
    biases = node.input[2:]
    plain = weight.ndim == 2 and not attributes.get("transA") and attributes.get("alpha", 1.0) == 1.0
    if not plain or (biases and (attributes.get("beta", 1.0) != 1.0 or biases[0] not in graph.tensors)):
        return None
    bias = graph.tensors[biases[0]] if biases else None
    scope = node.name.partition("/")[0]
    return Linear(node.input[0], weight.T if attributes.get("transB") else weight, bias, node.output[0], scope)


def rewrite(graph: Graph, replacement: Callable[[onnx.NodeProto], dict[str, str] | None]) -> None:
    """Offer every node for replacement, in order.

    `replacement` adds the nodes that stand in for one and says which new value takes the place of which old one (none, if
    an earlier replacement covered the node already); None keeps the node.
    """
    nodes, graph.nodes = graph.nodes, []
    renamed: dict[str, str] = {}
    for node in nodes:
        for place, value in enumerate(node.input):
            node.input[place] = renamed.get(value, value)
        values = replacement(node)
        if values is None:
            graph.nodes.append(node)
        else:
            renamed |= values


def join_projections(graph: Graph, texts: Sequence[EncodedText] | None = None) -> None:
    """One product for the query, key and value of the same rows: a wide one fills the cores better than three narrow ones.

    What the texts are like changes nothing about it; other passes ask.
    """
    groups = {linears[0].output: linears for linears in _sharing_rows(graph)}
    joined = {linear.output for linears in groups.values() for linear in linears}

    def replacement(node: onnx.NodeProto) -> dict[str, str] | None:
        if node.output[0] in groups:
            return _join(graph, groups[node.output[0]])
        return {} if node.output[0] in joined else None

    rewrite(graph, replacement)


def _sharing_rows(graph: Graph) -> Iterator[list[Linear]]:
    by_rows: dict[str, list[Linear]] = {}
    for node in graph.nodes:
        linear = as_linear(graph, node)
        if linear is not None and linear.part in PROJECTIONS:
            by_rows.setdefault(linear.x, []).append(linear)
    return (linears for linears in by_rows.values() if len(linears) > 1)


def _join(graph: Graph, linears: list[Linear]) -> dict[str, str]:
    scope = linears[0].scope
    widths = [linear.weight.shape[1] for linear in linears]
    weight = tensor(graph, np.concatenate([linear.weight for linear in linears], axis=1), scope)
    inputs = [linears[0].x, weight]
    if any(linear.bias is not None for linear in linears):
        biases = [np.zeros(linear.weight.shape[1], np.float32) if linear.bias is None else linear.bias for linear in linears]
        inputs.append(tensor(graph, np.concatenate(biases), scope))
    product = graph.add("Gemm", inputs, scope=scope)
    parts = graph.add_all("Split", [product, graph.constant(widths)], {"axis": 1}, outputs=len(linears), scope=scope)
    return {linear.output: part for linear, part in zip(linears, parts, strict=True)}


def tensor(graph: Graph, array: NDArray[Any], scope: str) -> str:
    """A large constant of its own."""
    name = graph.fresh("weights", scope)
    graph.tensors[name] = np.ascontiguousarray(array)
    return name
