"""How fast could this machine be? Its matrix products at the model's own shapes, on many rows, without anything between."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F

from adapler.runtimes.torch_packed import torch_workers

ROWS = 2048
_SECONDS = 0.3
_COPIES = 6  # of every weight, taken in turns, as a model's layers are


def gemm_ceiling(shapes: list[tuple[int, int]], rows: int = ROWS) -> float:
    """FLOPs a second over all of these (inputs, outputs) products together, float32, on the threads torch has.

    Taken both ways, all threads in one product and every thread in one of its own; the faster counts.
    """
    together = _rate(shapes, rows)
    workers = torch_workers()
    if workers is None:
        return together
    apart = [workers.submit(_rate, shapes, rows) for _ in range(torch.get_num_threads())]
    return max(together, sum(rate.result() for rate in apart))


def _rate(shapes: list[tuple[int, int]], rows: int) -> float:
    work, spent = 0.0, 0.0
    with torch.inference_mode():
        for inputs, outputs in shapes:
            x, bias = torch.randn(rows, inputs), torch.randn(outputs)
            weights = [torch.randn(outputs, inputs) for _ in range(_COPIES)]
            for weight in weights:
                F.linear(x, weight, bias)
            best = float("inf")
            end = time.perf_counter() + _SECONDS
            while time.perf_counter() < end:
                begin = time.perf_counter()
                for weight in weights:
                    F.linear(x, weight, bias)
                best = min(best, (time.perf_counter() - begin) / _COPIES)
            work += 2.0 * rows * inputs * outputs
            spent += best
    return work / spent


def layer_shapes(hidden: int, intermediate: int) -> list[tuple[int, int]]:
    """An encoder layer's linear maps."""
    return [(hidden, 3 * hidden), (hidden, hidden), (hidden, intermediate), (intermediate, hidden)]
