"""Half precision on a CPU: what is done otherwise gives the same, up to its rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from adapler.training import precision
from adapler.training.precision import autocast

CPU = torch.device("cpu")


def gradients(rows: int, asked: str) -> tuple[Tensor, list[Tensor]]:
    """A linear map's answer for so many rows, and the gradients of input, weight and bias."""
    torch.manual_seed(0)
    linear, x = nn.Linear(8, 4), torch.randn(rows, 8, requires_grad=True)
    with autocast(CPU, asked):
        y = linear(x)
    return y.detach(), list(torch.autograd.grad(y.float().square().sum(), [x, linear.weight, linear.bias]))


@pytest.mark.parametrize("rows", [1, 31, 32, 33])
def test_rows_that_were_added_leave_no_trace(rows: int) -> None:
    exact, expected = gradients(rows, "no")
    made, found = gradients(rows, "bf16")
    assert made.dtype == torch.bfloat16 and made.shape == exact.shape
    for one, other in zip([made, *found], [exact, *expected], strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0.05, atol=0.05 * float(other.abs().max()))  # eight bits


def test_linear_maps_see_round_numbers_of_rows() -> None:
    seen: list[int] = []

    class Seeing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is F.linear:
                seen.append(len(args[0]))
            return func(*args, **(kwargs or {}))

    with Seeing(), autocast(CPU, "bf16"):
        for rows in (precision.ROWS - 1, precision.ROWS, precision.ROWS + 1):
            assert len(nn.Linear(2, 2)(torch.zeros(rows, 2))) == rows
    assert seen == [precision.ROWS, precision.ROWS, 2 * precision.ROWS]


def test_attention_stays_in_single_precision_with_and_without_a_mask() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 5, 8).bfloat16().unbind()
    mask = torch.zeros(2, 1, 1, 5).masked_fill(torch.tensor([0, 0, 0, 0, 1], dtype=torch.bool), float("-inf"))
    for given in (None, mask, mask.bfloat16(), mask == 0):
        wide = given if given is None or given.dtype == torch.bool else given.float()
        exact = F.scaled_dot_product_attention(query.float(), key.float(), value.float(), attn_mask=wide)
        with autocast(CPU, "bf16"):
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=given)
        assert found.dtype == torch.bfloat16 and torch.equal(found, exact.bfloat16())


def test_nothing_is_done_where_half_precision_was_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_OnCpu", lambda: pytest.fail("entered"))
    with autocast(CPU, "no"):
        assert nn.Linear(2, 2)(torch.zeros(3, 2)).dtype == torch.float32
