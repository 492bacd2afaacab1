"""The encoder's linear maps in 8 bits, such that a text's answer does not depend on the texts it runs with.

Weights are signed and scaled per output. Activations are scaled per token, by the largest value in its own row, or by fixed
ranges seen in calibration. The usual scale over a whole batch would let one text's outlier coarsen all others, and near a
threshold change which tokens stay. Predictors, thresholds, norms, attention and the classifier stay in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import NDArray

from adapler.data.text import EncodedText
from adapler.errors import BadModel
from adapler.export.calibrate import measure_ranges
from adapler.export.graph import MICROSOFT, Graph
from adapler.export.linear import ENCODER, Linear, as_linear, join_projections, rewrite, tensor

_STEPS = 127
_LEVELS = 255
_ZERO = 128  # unsigned rows against signed weights: the product x86 has an instruction for
_SMALLEST = 1e-30  # a row of zeros is divided by something


def quantise(graph: Graph, texts: Sequence[EncodedText] | None = None) -> None:
    """Put every plain linear map of the encoder into 8 bits; a graph without one is refused.

    Without `texts` activations are scaled token by token; with them by the ranges these texts show, which is faster and
    coarser.
    """
    join_projections(graph)
    ranges = None if texts is None else measure_ranges(graph, texts)
    rows: dict[str, tuple[str, str]] = {}
    done = 0

    def replacement(node: onnx.NodeProto) -> dict[str, str] | None:
        nonlocal done
        linear = as_linear(graph, node)
        if linear is None or linear.part not in ENCODER:
            return None
        done += 1
        if ranges is not None:
            return {linear.output: _fixed(graph, linear, *ranges[linear.output])}
        if linear.x not in rows:
            rows[linear.x] = _quantised_rows(graph, linear)
        return {linear.output: _by_rows(graph, linear, *rows[linear.x])}

    rewrite(graph, replacement)
    if not done:
        raise BadModel("the model's layers hold no plain linear map to put into 8 bits; export it with --to onnx")


def quantised_weight(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """A weight (in, out) as whole numbers and the scale of each output."""
    scale = np.maximum(np.abs(weight).max(axis=0), _SMALLEST).astype(np.float32) / np.float32(_STEPS)
    return np.rint(weight / scale).astype(np.int8), scale


def _quantised_rows(graph: Graph, linear: Linear) -> tuple[str, str]:
    """The rows as whole numbers, and the largest value of each row, (T, 1)."""
    scope = linear.scope
    last = graph.constant([-1])
    top = graph.add("ReduceMax", [linear.x, last], scope=scope)
    bottom = graph.add("Neg", [graph.add("ReduceMin", [linear.x, last], scope=scope)], scope=scope)  # no copy, as Abs makes
    largest = graph.add("Max", [top, bottom, graph.constant(_SMALLEST, np.float32)], scope=scope)
    shares = graph.add("Div", [linear.x, largest], scope=scope)
    step, zero = graph.constant(1 / _STEPS, np.float32), graph.constant(_ZERO, np.uint8)
    return graph.add("QuantizeLinear", [shares, step, zero], scope=scope), largest


def _by_rows(graph: Graph, linear: Linear, rows: str, largest: str) -> str:
    scope = linear.scope
    step, zero = graph.constant(1 / _STEPS, np.float32), graph.constant(_ZERO, np.uint8)
    grown = graph.add("Mul", [_product(graph, linear, rows, step, zero), largest], scope=scope)
    return grown if linear.bias is None else graph.add("Add", [grown, tensor(graph, linear.bias, scope)], scope=scope)


def _fixed(graph: Graph, linear: Linear, low: float, high: float) -> str:
    """With the input's range given; 0 is always in it and is met exactly."""
    low, high = min(low, 0.0), max(high, 0.0)
    width = max(high - low, _SMALLEST) / _LEVELS
    step, zero = graph.constant(width, np.float32), graph.constant(round(-low / width), np.uint8)
    rows = graph.add("QuantizeLinear", [linear.x, step, zero], scope=linear.scope)
    return _product(graph, linear, rows, step, zero, bias=True)


def _product(graph: Graph, linear: Linear, rows: str, step: str, zero: str, *, bias: bool = False) -> str:
    """Whole rows times whole weights, in float again; with `bias` it is added on the way."""
    scope = linear.scope
    whole, scale = quantised_weight(linear.weight)
    inputs = [rows, tensor(graph, whole, scope), step, tensor(graph, scale, scope), zero]
    if bias and linear.bias is not None:
        inputs += ["", tensor(graph, linear.bias, scope)]
    return graph.add("MatMulIntegerToFloat", inputs, domain=MICROSOFT, scope=scope)
