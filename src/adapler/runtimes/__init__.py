"""How a model is executed: one file a runtime, one line here. All must agree with `encode`."""

from __future__ import annotations

from adapler.registry import Registry

RUNTIMES = Registry(
    "runtime",
    {
        "torch": "adapler.runtimes.torch_packed:TorchPacked",
        "onnx": "adapler.runtimes.onnx_runtime:OnnxFloat",
        "onnx-int8": "adapler.runtimes.onnx_runtime:OnnxInt8",
    },
)
