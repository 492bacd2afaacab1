"""Progress of a run: one bar over all phases on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Silent:
    """Says only what the user must read, nothing else."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def say(self, line: str) -> None:
        if self.console is not None:
            self.console.print(line, highlight=False, markup=False)

    def phase(self, name: str) -> None:
        return None

    def advance(self, share: float) -> None:
        return None

    def note(self, text: str) -> None:
        return None


class Lines(Silent):
    """A line for every phase and every epoch's figures."""

    def phase(self, name: str) -> None:
        self.current = name
        self.say(f"{name} ...")

    def note(self, text: str) -> None:
        self.say(f"{self.current}: {text}")


class Bar(Silent):
    """One bar with time left, the phase's name and the latest figures."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self.task = self.bar.add_task("start", total=1.0, note="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def phase(self, name: str) -> None:
        self.bar.update(self.task, description=name)

    def advance(self, share: float) -> None:
        self.bar.advance(self.task, share)

    def note(self, text: str) -> None:
        self.bar.update(self.task, note=text)


def progress_for(console: Console, *, quiet: bool) -> Silent:
    """What fits the console. Quiet, it still says what must be read."""
    if quiet:
        return Silent(console)
    return Bar(console) if console.is_terminal else Lines(console)
