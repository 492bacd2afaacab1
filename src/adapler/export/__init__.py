"""A model as one ONNX graph with the removal inside, and the folder such a graph travels in."""

from __future__ import annotations

from adapler.registry import Registry

EXPORTS = Registry("export", {"onnx": "adapler.export.linear:join_projections", "onnx-int8": "adapler.export.int8:quantise"})
"""Runtimes a checkpoint can be exported to, and what is done to the graph for each."""
