"""Mixed precision: the context in which a phase computes its losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

ROWS = 32
"""Rows of a linear map's input come in multiples of this many."""


@contextmanager
def autocast(device: torch.device, precision: str) -> Iterator[None]:
    """Half precision where asked for (`bf16`)."""
    if precision != "bf16":
        yield
        return
    with torch.autocast(device.type, dtype=torch.bfloat16):
        if device.type != "cpu":
            yield
            return
        with _OnCpu():
            yield


class _OnCpu(TorchFunctionMode):
    """What half precision does slowly on a CPU, done otherwise.

    Attention of a few dozen tokens is very many very small products, forwards and backwards, whose setting up takes longer than
    they do: it stays in single precision. And a kernel is compiled for every new shape: packed texts have another number of
    tokens in every batch and, where tokens leave, in every layer, so linear maps get a round number of rows.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            mask: Tensor | None = given.pop("attn_mask")
            if mask is not None and mask.is_floating_point():
                mask = mask.float()
            with torch.autocast("cpu", enabled=False):
                attended: Tensor = func(*(tensor.float() for tensor in args), attn_mask=mask, **given)
            return attended.to(args[0].dtype)
        if func is F.linear and args[0].dim() == 2:
            x, *weights = args
            missing = -len(x) % ROWS
            if missing:
                computed: Tensor = func(F.pad(x, (0, 0, 0, missing)), *weights, **given)
                return computed[: len(x)]
        return func(*args, **given)
