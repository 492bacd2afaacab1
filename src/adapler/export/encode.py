"""The one loop as a graph: embed, thin, attend, feed, classify. `engine.encode` with hard removal, for any batch of texts.

Tokens are packed rows all the way. Whatever looks across tokens goes through a table of rows, one line a text; it is made
anew from the lengths each time some tokens have left. No loops, no conditions: the sizes themselves depend on the data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

from adapler.backbones.base import Backbone
from adapler.errors import BadModel
from adapler.export.graph import MICROSOFT, Graph
from adapler.export.pieces import Pieces, export_pieces
from adapler.methods.base import Judge, Reducer

_MASKED = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Places:
    """Where each text's tokens are among the packed rows."""

    lengths: str
    """(B,)"""
    starts: str
    """(B,): the row of each text's first token."""
    table: str
    """(B, M): the row of each text's i-th token; some row where it has none."""
    real: str
    """(B, M): whether it has one."""
    first: str
    """(1, M): True on the first column."""


@dataclass(frozen=True)
class State:
    """The surviving tokens at one depth, as in `Tokens`."""

    x: str
    position: str
    origin: str
    """(T,): each token's row in the input."""
    places: Places


def build_graph(backbone: Backbone, reducer: Reducer | None) -> Graph:
    """A model's forward pass, from `INPUTS` to `OUTPUTS`."""
    judge = _judge_of(reducer)
    _check(backbone)
    pieces = export_pieces(backbone, judge)
    graph = Graph()
    places = _places(graph, "lengths")
    position = _column_numbers(graph, places)
    everyone = graph.add("Range", [graph.constant(0), _rows(graph, "ids"), graph.constant(1)])
    (x,) = pieces.place(graph, "embed", {"ids": "ids", "types": "types", "position": position})
    state = State(x, position, everyone, places)
    lengths, kept, scores = [], [], []
    for index, block in enumerate(backbone.blocks):
        last = index == len(backbone.blocks) - 1
        if judge is not None and (index == 0 or not judge.early):
            state, score = _thin(graph, pieces, index, state)
            scores.append(score)
        lengths.append(state.places.lengths)
        kept.append(state.origin)
        alone = last and backbone.pooling == "first"
        state = _attend(graph, pieces, index, state, heads=_heads(backbone, index), scale=block.scale, alone=alone)
        if judge is not None and judge.early and not last:
            state, score = _thin(graph, pieces, index + 1, state)
            scores.append(score)
        (x,) = pieces.place(graph, f"{index}.feed_forward", {"x": state.x})
        state = replace(state, x=x)
    pooled = state.x if backbone.pooling == "first" else _mean(graph, state)
    (logits,) = pieces.place(graph, "classify", {"pooled": pooled})
    columns = [graph.add("Unsqueeze", [value, graph.constant([1])]) for value in lengths]
    _name(graph, logits, "logits")
    _name(graph, graph.add("Concat", columns, {"axis": 1}), "layer_lengths")
    if judge is not None:
        _name(graph, graph.add("Concat", kept, {"axis": 0}), "kept")
        _name(graph, graph.add("Concat", scores, {"axis": 0}), "scores")
    return graph


def to_model(graph: Graph, *, reduced: bool) -> onnx.ModelProto:
    """The graph with its inputs and outputs declared. A model without reduction removes nothing, so it takes
    neither a scale nor what to keep."""
    integers, floats = TensorProto.INT64, TensorProto.FLOAT
    inputs = [("ids", integers, ["tokens"]), ("types", integers, ["tokens"]), ("lengths", integers, ["texts"])]
    outputs = [("logits", floats, ["texts", "labels"]), ("layer_lengths", integers, ["texts", "layers"])]
    if reduced:
        inputs += [("scale", floats, ["texts"]), ("keep", TensorProto.BOOL, ["tokens"])]
        outputs += [("kept", integers, ["kept"]), ("scores", floats, ["judged"])]
    return graph.model(
        [helper.make_tensor_value_info(*entry) for entry in inputs],
        [helper.make_tensor_value_info(*entry) for entry in outputs],
    )


def _thin(graph: Graph, pieces: Pieces, index: int, state: State) -> tuple[State, str]:
    """Only what the method keeps; and the scores it gave, packed."""
    places = state.places
    (logit,) = pieces.place(graph, f"{index}.logit", {"x": state.x})
    named = graph.add("Gather", [graph.add("Gather", ["keep", state.origin]), places.table])
    feeds = {
        "logit": graph.add("Gather", [logit, places.table]),
        "weight": graph.add("Cast", [places.real], {"to": TensorProto.FLOAT}),
        "protected": graph.add("Or", [places.first, named]),
        "scale": "scale",
    }
    said, score = pieces.place(graph, f"{index}.rule", feeds)
    # At a threshold of 0, or where the row they stand for must stay, the empty places of the table would stay too.
    keep = graph.add("And", [said, places.real])
    rows = _chosen(graph, places.table, keep)
    counts = graph.add("Cast", [keep], {"to": TensorProto.INT64})
    left = _places(graph, graph.add("ReduceSum", [counts, graph.constant([1])], {"keepdims": 0}))
    x, position, origin = (graph.add("Gather", [value, rows]) for value in (state.x, state.position, state.origin))
    return State(x, position, origin, left), _chosen(graph, score, places.real)


def _attend(graph: Graph, pieces: Pieces, index: int, state: State, *, heads: int, scale: float, alone: bool) -> State:
    """A layer up to its feed-forward part. With `alone` only each text's first token asks and goes on: no other is read."""
    places = state.places
    key, value = pieces.place(graph, f"{index}.key_value", {"x": state.x, "position": state.position})
    x, position = state.x, state.position
    if alone:
        x, position = (graph.add("Gather", [value, places.starts]) for value in (x, position))
    (query,) = pieces.place(graph, f"{index}.query", {"x": x, "position": position})

    def asking(values: str) -> str:
        """Values of the asking tokens, text by text."""
        return graph.add("Unsqueeze", [values, graph.constant([1])]) if alone else graph.add("Gather", [values, places.table])

    asked = asking(query)
    attended = [graph.add("Gather", [part, places.table]) for part in (key, value)]
    mask = graph.add("Cast", [places.lengths], {"to": TensorProto.INT32})
    bias = []
    if f"{index}.bias" in pieces:
        between = {"asking": asking(position), "attended": graph.add("Gather", [state.position, places.table])}
        bias = pieces.place(graph, f"{index}.bias", {**between, "query": asked, "key": attended[0]})
    rows = graph.add(
        "MultiHeadAttention",
        [asked, *attended, "", mask, *bias],
        {"num_heads": heads, "scale": scale, "mask_filter_value": _MASKED},
        domain=MICROSOFT,
    )
    context = graph.add("Squeeze", [rows, graph.constant([1])]) if alone else _chosen_vectors(graph, rows, places.real)
    (x,) = pieces.place(graph, f"{index}.merge", {"x": x, "context": context})
    return replace(state, x=x)


def _places(graph: Graph, lengths: str) -> Places:
    starts = graph.add("CumSum", [lengths, graph.constant(0)], {"exclusive": 1})
    width = graph.add("ReduceMax", [lengths], {"keepdims": 0})
    column = graph.add("Unsqueeze", [graph.add("Range", [graph.constant(0), width, graph.constant(1)]), graph.constant([0])])
    by_text = [graph.add("Unsqueeze", [value, graph.constant([1])]) for value in (lengths, starts)]
    real = graph.add("Less", [column, by_text[0]])
    table = graph.add("Where", [real, graph.add("Add", [by_text[1], column]), graph.constant(0)])
    return Places(lengths, starts, table, real, graph.add("Equal", [column, graph.constant(0)]))


def _column_numbers(graph: Graph, places: Places) -> str:
    """(T,): each token's place in its text."""
    starts = graph.add("Unsqueeze", [places.starts, graph.constant([1])])
    return _chosen(graph, graph.add("Sub", [places.table, starts]), places.real)


def _chosen(graph: Graph, rows: str, which: str) -> str:
    """The values of (B, M) where `which` is True, text by text."""
    flat = graph.constant([-1])
    return graph.add("Compress", [graph.add("Reshape", [value, flat]) for value in (rows, which)])


def _chosen_vectors(graph: Graph, rows: str, which: str) -> str:
    """The same of (B, M, H): (T, H)."""
    width = graph.add("Shape", [rows], {"start": 2})
    shape = graph.add("Concat", [graph.constant([-1]), width], {"axis": 0})
    flat = graph.add("Reshape", [which, graph.constant([-1])])
    return graph.add("Compress", [graph.add("Reshape", [rows, shape]), flat], {"axis": 0})


def _mean(graph: Graph, state: State) -> str:
    places = state.places
    rows = graph.add("Gather", [state.x, places.table])
    real = graph.add("Unsqueeze", [graph.add("Cast", [places.real], {"to": TensorProto.FLOAT}), graph.constant([2])])
    total = graph.add("ReduceSum", [graph.add("Mul", [rows, real]), graph.constant([1])], {"keepdims": 0})
    length = graph.add("Cast", [places.lengths], {"to": TensorProto.FLOAT})
    return graph.add("Div", [total, graph.add("Unsqueeze", [length, graph.constant([1])])])


def _rows(graph: Graph, value: str) -> str:
    return graph.add("Squeeze", [graph.add("Shape", [value], {"start": 0, "end": 1})])


def _name(graph: Graph, value: str, name: str) -> None:
    """Give a value the name an output has."""
    graph.nodes.append(helper.make_node("Identity", [value], [name], name=name))


def _heads(backbone: Backbone, index: int) -> int:
    nothing = torch.zeros(1, backbone.hidden_size), torch.zeros(1, dtype=torch.int64)
    return backbone.blocks[index].query(*nothing).shape[-2]


def _judge_of(reducer: Reducer | None) -> Judge | None:
    if reducer is None or isinstance(reducer, Judge):
        return reducer
    raise BadModel(f"method {reducer.name!r} does not judge tokens one by one: it has no ONNX form; use torch")


def _check(backbone: Backbone) -> None:
    if backbone.model.dtype != torch.float32:
        raise BadModel(f"the model is in {backbone.model.dtype}; only float32 models are exported. Load it with adapler anew")
