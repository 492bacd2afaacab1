"""A graph under construction: nodes in the order they run, constants stored once. Knows ONNX, no model and no method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import helper, numpy_helper

OPSET = 20
"""The first with a GELU of its own; every node made here means the same since."""
MICROSOFT = "com.microsoft"
"""Operators of ONNX Runtime that are in no opset: the fused attention, the integer product with scales."""
_IR_VERSION = 10  # read by every ONNX Runtime since 1.18
PRODUCER = "adapler"


class Graph:
    """Values are their names. What is added runs in the order of adding, so a value must exist before it is used."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, NDArray[Any]] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._made = 0

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        scope: str = "",
    ) -> str:
        """A node with one output. `scope` says which part of the model it belongs to, and is the start of its name."""
        return self.add_all(op, inputs, attributes, domain=domain, scope=scope)[0]

    def add_all(
        self,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Any] | None = None,
        *,
        outputs: int = 1,
        domain: str = "",
        scope: str = "",
    ) -> list[str]:
        """A node; all its outputs."""
        names = [self.fresh(op, scope) for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, name=names[0], domain=domain, **(attributes or {})))
        return names

    def fresh(self, hint: str, scope: str = "") -> str:
        """A name that no value has yet."""
        self._made += 1
        return f"{scope or 'graph'}/{hint}.{self._made}"

    def constant(self, value: ArrayLike, dtype: Any = np.int64) -> str:
        """A small constant; the same one is stored once."""
        array = np.asarray(value, dtype=dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.fresh("constant")
            self.tensors[self._constants[key]] = array
        return self._constants[key]

    def model(self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]) -> onnx.ModelProto:
        """The whole as a file holds it; tensors that nothing reads are left out."""
        read = {name for node in self.nodes for name in node.input}
        tensors = [numpy_helper.from_array(array, name) for name, array in self.tensors.items() if name in read]
        made = helper.make_graph(self.nodes, PRODUCER, list(inputs), list(outputs), tensors)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(made, opset_imports=opsets, ir_version=_IR_VERSION, producer_name=PRODUCER)
