"""One process or many, the same code: who this process is, sums over all of them, and where figures are logged.

Every process holds the same weights and takes the same steps; a batch's texts are dealt out to them and the gradients are
summed once a step. The model is not wrapped: `encode` runs on a view of it, and eta and theta lie outside it.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from adapler.errors import BadConfig, MissingExtra
from adapler.runtimes.torch_packed import usable_device

if TYPE_CHECKING:
    from accelerate import Accelerator

TRACKERS = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}
"""Name of a tracker -> the package that is it."""
_RANKS_APART = 7919  # between the seeds of two processes' dropout

T = TypeVar("T")


class Processes:
    """This process among its like. `stop` and everything else all must do together is agreed on in the sum of a step."""

    def __init__(self, accelerator: Accelerator | None = None) -> None:
        self.accelerator = accelerator
        self.rank = 0 if accelerator is None else int(accelerator.process_index)
        self.count = 1 if accelerator is None else int(accelerator.num_processes)
        self.tracked = False

    @property
    def leads(self) -> bool:
        """Whether this one speaks and writes files."""
        return self.rank == 0

    @property
    def device(self) -> str | None:
        """This process' own device, where they are many."""
        return None if self.accelerator is None or self.count == 1 else str(self.accelerator.device)

    def part_ways(self) -> None:
        """From here on, other random numbers in every process: each drops out of its own texts."""
        if self.rank > 0:
            torch.manual_seed(torch.initial_seed() + _RANKS_APART * self.rank)

    def own(self, items: Sequence[T]) -> list[T]:
        """This process' share of a list."""
        return list(items[self.rank :: self.count])

    def sum_gradients(self, parameters: Sequence[Tensor], also: Sequence[float]) -> list[float]:
        """Replace every gradient by its sum over processes, in one exchange; also sums a few numbers, and returns those.

        A process whose share was empty has no gradients yet; it adds zeros.
        """
        if self.accelerator is None or self.count == 1:
            return list(also)
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        numbers = torch.tensor(also, dtype=torch.float32, device=gradients[0].device)
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients] + [numbers])
        summed: Tensor = self.accelerator.reduce(flat, reduction="sum")
        place = 0
        for gradient in gradients:
            gradient.copy_(summed[place : place + gradient.numel()].view_as(gradient))
            place += gradient.numel()
        return [float(value) for value in summed[place:]]

    def any(self, wish: bool) -> bool:
        """Whether any process wishes it. All must ask."""
        if self.accelerator is None or self.count == 1:
            return wish
        asked = torch.tensor([float(wish)], device=self.accelerator.device)
        return bool(self.accelerator.reduce(asked, reduction="sum").item() > 0)

    def gather(self, item: Any) -> list[Any]:
        """Every process' item, in order. All must ask."""
        if self.count == 1:
            return [item]
        from accelerate.utils import gather_object

        found: list[Any] = gather_object([item])
        return found

    def first(self, work: Callable[[], T]) -> T:
        """Let the leading process work before the others do the same."""
        if self.accelerator is None or self.leads:
            done = work()
            self.wait()
            return done
        self.wait()
        return work()

    def wait(self) -> None:
        """Until all are here."""
        if self.accelerator is not None:
            self.accelerator.wait_for_everyone()

    def log(self, values: dict[str, float], step: int) -> None:
        """Figures for the tracker, where there is one."""
        if self.tracked and self.accelerator is not None:
            self.accelerator.log(values, step=step)

    @contextmanager
    def tracking(self, tracker: str | None, folder: Path, settings: dict[str, Any]) -> Iterator[None]:
        """Inside, figures go to the tracker of this name, under these settings; its files, if it writes any, to `folder`."""
        if tracker is None or self.accelerator is None:
            yield
            return
        folder.mkdir(parents=True, exist_ok=True)
        self.accelerator.project_configuration.logging_dir = str(folder)
        self.accelerator.log_with = [tracker]
        self.accelerator.init_trackers("adapler", config=_flat(settings))
        self.tracked = True
        try:
            yield
        finally:
            self.tracked = False
            self.accelerator.end_training()


def join(device: str, tracker: str | None = None) -> Processes:
    """This process among those that `accelerate launch` or `torchrun` started; alone where none did.

    A tracker that will be asked for has to be installed, and the device to be here.
    """
    usable_device(device)
    if tracker is not None and importlib.util.find_spec(TRACKERS[tracker]) is None:
        raise MissingExtra(f"tracker {tracker!r} is not installed: pip install {TRACKERS[tracker]}")
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=torch.device(device).type == "cpu")
    if accelerator.num_processes > 1 and accelerator.device.type != torch.device(device).type:
        raise BadConfig(f"run.device is {device!r}, but the processes were started for {accelerator.device.type!r}")
    return Processes(accelerator)


def leads() -> bool:
    """Whether this process speaks for all, as its launcher numbered it. Asked before anything heavy is imported."""
    return os.environ.get("RANK", "0") == "0"


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name, as trackers' tables of settings take them."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value if isinstance(value, bool | int | float | str) else str(value)
    return found
