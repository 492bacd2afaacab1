"""Ranges of the encoder's activations, seen while a float graph reads real texts: what fixed 8-bit scales are made of."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from adapler.data.text import EncodedText, budget_batches
from adapler.errors import BadInput, MissingExtra
from adapler.export.encode import to_model
from adapler.export.graph import Graph
from adapler.export.linear import ENCODER, Linear, as_linear

Ranges = dict[str, tuple[float, float]]
"""By the output of a linear map: the smallest and largest value of its input."""
_BUDGET = 2048


def measure_ranges(graph: Graph, texts: Sequence[EncodedText]) -> Ranges:
    """Run the graph on texts like those it will meet. A value outside what was seen is later cut to its range."""
    if not texts:
        raise BadInput("there are no texts to calibrate on; give some like those the model will read")
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra("calibrating needs ONNX Runtime, which is not installed; pip install 'adapler[onnx]'") from error
    linears = list(_encoder_linears(graph))
    session = onnxruntime.InferenceSession(_watched(graph, linears).SerializeToString(), providers=["CPUExecutionProvider"])
    taken = {entry.name for entry in session.get_inputs()}
    wanted = [name for number in range(len(linears)) for name in _names(number)]
    low, high = np.full(len(linears), np.inf), np.full(len(linears), -np.inf)
    for batch in budget_batches([len(text.ids) for text in texts], _BUDGET):
        feeds = {
            "ids": np.concatenate([texts[i].ids for i in batch]),
            "types": np.concatenate([texts[i].types for i in batch]),
            "lengths": np.array([len(texts[i].ids) for i in batch]),
            "scale": np.ones(len(batch), dtype=np.float32),
            "keep": np.zeros(sum(len(texts[i].ids) for i in batch), dtype=np.bool_),
        }
        seen = np.array(session.run(wanted, {name: feeds[name] for name in feeds if name in taken})).reshape(-1, 2)
        low, high = np.minimum(low, seen[:, 0]), np.maximum(high, seen[:, 1])
    return {linear.output: (float(a), float(b)) for linear, a, b in zip(linears, low, high, strict=True)}


def _watched(graph: Graph, linears: Sequence[Linear]) -> onnx.ModelProto:
    """The graph with two more outputs for each linear map."""
    model = to_model(copy.deepcopy(graph), reduced=any("scale" in node.input for node in graph.nodes))
    for number, linear in enumerate(linears):
        for op, name in zip(("ReduceMin", "ReduceMax"), _names(number), strict=True):
            model.graph.node.append(helper.make_node(op, [linear.x], [name], keepdims=0))
            model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, []))
    return model


def _encoder_linears(graph: Graph) -> Iterator[Linear]:
    for node in graph.nodes:
        linear = as_linear(graph, node)
        if linear is not None and linear.part in ENCODER:
            yield linear


def _names(number: int) -> tuple[str, str]:
    return f"low.{number}", f"high.{number}"
