"""The engine itself as a runtime: packed, on any torch device. What the others are compared with."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from adapler import checkpoint
from adapler.backbones import view
from adapler.backbones.base import Backbone
from adapler.data.text import EncodedText
from adapler.engine import encode, model_cost, pack
from adapler.errors import BadConfig
from adapler.methods.base import Reducer
from adapler.runtimes.base import Answer, Runtime, scales
from adapler.runtimes.workers import workers
from adapler.safefile import reason


class TorchPacked(Runtime):
    name: ClassVar[str] = "torch"
    budgets: ClassVar[tuple[int, int]] = (2048, 4096)

    def __init__(self, model: Any, reducer: Reducer | None = None, device: str | torch.device = "cpu") -> None:
        """`model` is a transformers sequence classifier or a view of one; it is moved to the device."""
        self.backbone: Backbone = model if isinstance(model, Backbone) else view(model)
        self.device = usable_device(device)
        self.model = self.backbone.model.to(self.device).eval()
        self.reducer = None if reducer is None else reducer.to(self.device).eval()
        self.labels = list(self.backbone.labels)
        self.thresholds = self.backbone.thresholds
        self.layers = len(self.backbone.blocks)
        self.cost = model_cost(self.backbone, self.reducer)
        self.longest = self.backbone.max_length

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (type(self), type(self.backbone), self.model, self.reducer, self.device)

    @classmethod
    def open(cls, path: str | Path) -> TorchPacked:
        """From a model folder."""
        opened = checkpoint.load(path)
        return cls(opened.backbone, opened.reducer)

    @property
    def threads(self) -> int:
        return torch.get_num_threads()

    @property
    def problem_type(self) -> str | None:
        kind: str | None = self.model.config.problem_type
        return kind

    def __call__(
        self,
        texts: Sequence[EncodedText],
        *,
        scale: NDArray[np.float32] | None = None,
        reduced: bool = True,
        trace: bool = True,
    ) -> Answer:
        factors = None if scale is None else torch.from_numpy(scales(scale, len(texts))).to(self.device)
        with torch.inference_mode():
            tokens, counts = pack(self.backbone, texts, self.device)
            logits, seen = encode(self.backbone, tokens, self.reducer if reduced else None, scale=factors)
            return Answer(
                logits=logits.cpu().numpy(),
                lengths=torch.stack(seen.lengths, dim=1).round().long().cpu().numpy(),
                depths=seen.depths(counts).cpu().numpy() if trace else None,
                scores=tuple(step.decision.score.cpu().numpy() for step in seen.steps) if trace else None,
                in_front=tuple(step.in_front for step in seen.steps) if trace else (),
            )

    def workers(self) -> Executor | None:
        return torch_workers() if self.device.type == "cpu" else None

    def on_one_core(
        self, texts: Sequence[EncodedText], *, scale: NDArray[np.float32] | None, reduced: bool, trace: bool
    ) -> Answer:
        return self(texts, scale=scale, reduced=reduced, trace=trace)


def _made_again(
    runtime: type[TorchPacked], view: Callable[[Any], Backbone], model: Any, reducer: Reducer | None, device: torch.device
) -> TorchPacked:
    """Out of a pickle, which holds the weights; a view, and what it keeps of them, is made of them."""
    return runtime(view(model), reducer, device)


def torch_workers() -> Executor | None:
    """A thread for each core torch has here, each of which computes by itself; None where there is one core."""
    threads = torch.get_num_threads()
    if threads == 1:
        return None
    made = workers("torch", threads, _one_core)
    torch.set_num_threads(threads)  # the workers' own number is theirs, but they set the one for later threads as well
    return made


def _one_core() -> None:
    """Make this thread do all its work by itself."""
    torch.get_num_threads()  # a thread that has not asked yet takes the process' number at its first product
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # masked attention leaves numbers so small that the processor slows down on them
    # MKL has one number for the whole process, unless a thread has its own; torch says nothing about that one.
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if torch.backends.mkl.is_available() and library.exists():
        set_own = getattr(ctypes.CDLL(str(library)), "MKL_Set_Num_Threads_Local", None)
        if set_own is not None:
            set_own(1)


def usable_device(device: str | torch.device) -> torch.device:
    """The device, if this machine has it."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BadConfig(f"device {str(device)!r} cannot be used here ({reason(error)[:200]}); cpu always can") from error
