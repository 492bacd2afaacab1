"""A run that can be stopped anywhere: positions, snapshots, signals and progress around the phases of training."""

from __future__ import annotations

import math
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor

from adapler.errors import Diverged, Interrupted
from adapler.memory import give_back
from adapler.records import machine, versions
from adapler.training.processes import Processes
from adapler.training.snapshot import Snapshot, Snapshots

RNG = "rng"
"""Prefix of each process' random state in a snapshot."""
LOG_EVERY = 10
"""Updates between two losses given to the tracker."""


class Progress(Protocol):
    """Where a run says how far it is."""

    def say(self, line: str) -> None:
        """A line the user should read."""

    def phase(self, name: str) -> None:
        """A phase begins."""

    def advance(self, share: float) -> None:
        """`share` more of the whole run is done."""

    def note(self, text: str) -> None:
        """The latest figures, shown beside the bar."""


class Phase(ABC):
    """One stage of training, as steps that depend only on its state and position."""

    name: str
    epochs: int

    @abstractmethod
    def steps(self, epoch: int) -> Sequence[list[list[int]]]:
        """The epoch's steps; each is the batches of one update."""

    @abstractmethod
    def step(self, batches: list[list[int]], epoch: int) -> float:
        """One update; returns its loss."""

    @abstractmethod
    def finish_epoch(self, epoch: int) -> None:
        """After the last step of an epoch: evaluate, remember."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes from step to step."""

    @abstractmethod
    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take such a state over."""

    def state(self) -> dict[str, Any]:
        """Numbers that change beside the tensors, as JSON holds them."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take such numbers over."""
        return


@dataclass
class Session:
    """What the phases of one run share. `history` grows by one flat row an epoch and is part of every snapshot."""

    snapshots: Snapshots
    progress: Progress
    snapshot_seconds: float
    total_steps: int = 1
    processes: Processes = field(default_factory=Processes)
    history: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0
    logged: int = 0
    """Updates of the phases before this one, which the tracker counts on from."""
    _written: float = field(default_factory=time.monotonic)
    _signal: int | None = None
    _agreed: bool = False
    _saved: bool = False

    def resume(self) -> Snapshot | None:
        """The newest whole snapshot, with its history taken over; None for a fresh run."""
        snapshot = self.snapshots.newest()
        if snapshot is None:
            return None
        self.number = snapshot.number
        self.history = list(snapshot.state["history"])
        where = f"{snapshot.state['phase']}, epoch {snapshot.state['epoch'] + 1}, step {snapshot.state['step']}"
        self.progress.say(f"resuming from snapshot {snapshot.number} ({where})")
        then, now = snapshot.state["conditions"], conditions(self.processes.count)
        changed = [f"{key} {then.get(key)} -> {now[key]}" for key in now if then.get(key) != now[key]]
        if changed:
            self.progress.say(
                f"conditions changed since the snapshot ({'; '.join(changed)}): results may differ in the last bits"
            )
        return snapshot

    def run(self, phase: Phase, snapshot: Snapshot | None) -> None:
        """Run a phase from its beginning, or from `snapshot` where that was taken inside it."""
        self.progress.phase(phase.name)
        start = first = 0
        if snapshot is not None and snapshot.state["phase"] == phase.name:
            phase.load_tensors(snapshot.tensors)
            phase.load_state(snapshot.state["own"])
            own = f"{RNG}.{self.processes.rank}"
            if own in snapshot.tensors:  # else there are more processes than there were
                torch.set_rng_state(snapshot.tensors[own])
            start, first = snapshot.state["epoch"], snapshot.state["step"]
            self.progress.advance((start * len(phase.steps(0)) + first) / self.total_steps)
        for epoch in range(start, phase.epochs):
            steps = phase.steps(epoch)
            before = self.logged + epoch * len(steps)
            for index in range(first, len(steps)):
                loss = phase.step(steps[index], epoch)
                if not math.isfinite(loss):
                    raise self._diverged(f"the loss became {loss} in {phase.name}, epoch {epoch + 1}, step {index + 1}")
                self.progress.advance(1 / self.total_steps)
                if index % LOG_EVERY == 0:
                    self.processes.log({f"{phase.name}/loss": loss}, before + index)
                if index + 1 < len(steps):
                    self._tick(phase, epoch, index + 1)
            first = 0
            self._check(phase, epoch)
            phase.finish_epoch(epoch)
            self._log_row(before + len(steps))
            self.write(phase, epoch + 1, 0)
            self.stop_if_asked()
            give_back()
        self.logged += phase.epochs * len(phase.steps(0)) if phase.epochs else 0

    def exchange(self, parameters: Sequence[Tensor], loss: float) -> float:
        """Sum this step's gradients and loss over all processes; with them goes whether one of them wants to save."""
        return self.exchange_all(parameters, [loss])[0]

    def exchange_all(self, parameters: Sequence[Tensor], numbers: Sequence[float]) -> list[float]:
        """The same with several numbers, whose sums are returned."""
        *summed, wish = self.processes.sum_gradients(parameters, (*numbers, float(self._wish())))
        self._agreed = wish > 0
        return summed

    def write(self, phase: Phase, epoch: int, step: int) -> None:
        """Write a snapshot of the phase at this position: the next step to be done."""
        self.number += 1
        state = {
            "phase": phase.name,
            "epoch": epoch,
            "step": step,
            "own": phase.state(),
            "history": self.history,
            "conditions": conditions(self.processes.count),
        }
        random = {f"{RNG}.{rank}": rng for rank, rng in enumerate(self.processes.gather(torch.get_rng_state()))}
        if self.processes.leads:
            self.snapshots.write(self.number, {**phase.tensors(), **random}, state)
        self._written = time.monotonic()

    def stop_if_asked(self) -> None:
        """Leave, if a signal asked for it; the state has just been saved."""
        if self.processes.any(self._signal is not None):
            raise self._interrupted(self._signal or signal.SIGTERM)

    def saved(self) -> None:
        """Nothing is left to be saved: from here on a signal stops the run at once."""
        self._saved = True
        if self._signal is not None:
            raise self._interrupted(self._signal)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Inside, SIGTERM and Ctrl-C save before they stop the run. Only the main thread can do this; others go without."""

        def remember(number: int, _frame: FrameType | None) -> None:
            self._signal = number
            if self._saved:
                raise self._interrupted(number)

        try:
            before = {number: signal.signal(number, remember) for number in (signal.SIGTERM, signal.SIGINT)}
        except ValueError:  # not the main thread
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _tick(self, phase: Phase, epoch: int, step: int) -> None:
        if self._wish() if self.processes.count == 1 else self._agreed:
            self._check(phase, epoch)
            self.write(phase, epoch, step)
            self.stop_if_asked()

    def _check(self, phase: Phase, epoch: int) -> None:
        """Refuse to keep weights that are no numbers: a loss tells of them only a step later."""
        for name, tensor in phase.tensors().items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise self._diverged(f"{name} holds numbers that are none in {phase.name}, epoch {epoch + 1}")

    def _diverged(self, what: str) -> Diverged:
        return Diverged(
            f"{what}. The last good snapshot is kept in {self.snapshots.folder}; lower the learning rate and start in a new "
            f"folder"
        )

    def _interrupted(self, number: int) -> Interrupted:
        name = signal.Signals(number).name
        return Interrupted(f"stopped by {name}; the state is saved, the same command goes on from here", number)

    def _wish(self) -> bool:
        """Whether this process wants to save now."""
        return self._signal is not None or time.monotonic() - self._written >= self.snapshot_seconds

    def _log_row(self, step: int) -> None:
        row = self.history[-1] if self.history else {}
        figures = {f"{row['phase']}/{key}": value for key, value in row.items() if isinstance(value, float)}
        self.processes.log(figures, step)


def conditions(processes: int = 1) -> dict[str, Any]:
    """What a run's last bits depend on."""
    return {"processes": processes, "threads": torch.get_num_threads(), "machine": machine(), **versions()}
