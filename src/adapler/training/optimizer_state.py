"""An optimiser's moments as named tensors and back, so that snapshots need no pickle."""

from __future__ import annotations

import torch
from torch import Tensor


def optimizer_tensors(prefix: str, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor of the optimiser's state, named by the place of its parameter."""
    return {
        f"{prefix}.{place}.{name}": value
        for place, parameter in enumerate(_parameters(optimizer))
        for name, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(prefix: str, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Take such a state over; parameters without one have not been updated yet."""
    parameters = _parameters(optimizer)
    for key, value in tensors.items():
        if key.startswith(prefix + "."):
            place, name = key[len(prefix) + 1 :].split(".")
            optimizer.state[parameters[int(place)]][name] = value.clone()


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Every group at `factor` of its peak rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
