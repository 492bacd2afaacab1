"""Linears joined into one product: the same numbers, never stale, and only where they are plain linears."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adapler.backbones.base import Joined


class Adapted(nn.Linear):
    """A linear that does something else besides, as adapters do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


def test_joined_linears_answer_as_each_alone_and_pass_gradients() -> None:
    torch.manual_seed(0)
    linears = [nn.Linear(8, 6) for _ in range(3)]
    x = torch.randn(5, 8)
    joined = Joined(*linears)
    for mine, linear in zip(joined(x).chunk(3, dim=-1), linears, strict=True):
        torch.testing.assert_close(mine, linear(x))
    joined(x).square().sum().backward()
    assert all(linear.weight.grad is not None and linear.weight.grad.abs().sum() > 0 for linear in linears)


def test_a_changed_weight_is_seen_at_once() -> None:
    linears = [nn.Linear(8, 6) for _ in range(3)]
    x = torch.randn(5, 8)
    joined = Joined(*linears)
    with torch.no_grad():
        joined(x)
        kept = joined._weights._kept
        assert joined(x) is not None and joined._weights._kept is kept  # nothing changed, nothing copied
        linears[1].weight.mul_(2)
        torch.testing.assert_close(joined(x)[:, 6:12], linears[1](x))
        linears[2].load_state_dict({"weight": torch.ones(6, 8), "bias": torch.zeros(6)})
        torch.testing.assert_close(joined(x)[:, 12:], linears[2](x))
    linears[0].weight.data = torch.zeros(6, 8)  # another tensor in its place
    with torch.inference_mode():
        torch.testing.assert_close(joined(x)[:, :6], linears[0](x))


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_of_an_optimiser_is_seen_at_once(fused: bool) -> None:
    linears = [nn.Linear(8, 6) for _ in range(3)]
    optimizer = torch.optim.AdamW([p for linear in linears for p in linear.parameters()], lr=0.1, fused=fused)
    x = torch.randn(5, 8)
    joined = Joined(*linears)
    for _ in range(2):
        with torch.inference_mode():
            joined(x)
        joined(x).square().sum().backward()
        optimizer.step()
        with torch.inference_mode():
            for mine, linear in zip(joined(x).chunk(3, dim=-1), linears, strict=True):
                torch.testing.assert_close(mine, linear(x))


def test_what_is_no_plain_linear_computes_in_its_own_way() -> None:
    linears = [nn.Linear(8, 6), Adapted(8, 6), nn.Linear(8, 6, bias=False)]
    x = torch.randn(5, 8)
    for mine, linear in zip(Joined(*linears)(x).chunk(3, dim=-1), linears, strict=True):
        torch.testing.assert_close(mine, linear(x))
