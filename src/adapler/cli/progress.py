"""How far a run is, for people: a bar with the time left on a terminal, a line now and then elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from adapler.cli.shared import note

_SECONDS = 30.0  # between two lines


class Progress:
    """Says nothing. Its children do."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def begin(self, total: int | None, done: int = 0) -> None:
        """`total` texts in all, where that is known; `done` of them by earlier runs."""

    def advance(self, rows: int = 1) -> None:
        """So many more."""

    def note(self, message: str) -> None:
        """A line."""


class Lines(Progress):
    """A line every half minute."""

    def __init__(self) -> None:
        self._total: int | None = None
        self._done = self._before = 0
        self._started = self._told = time.monotonic()

    def begin(self, total: int | None, done: int = 0) -> None:
        self._total, self._done, self._before = total, done, done
        self._started = self._told = time.monotonic()
        if done:
            note(f"{done:,} of {total:,} rows were done before")

    def advance(self, rows: int = 1) -> None:
        self._done += rows
        now = time.monotonic()
        if now - self._told < _SECONDS:
            return
        self._told = now
        rate = (self._done - self._before) / (now - self._started)
        left = "" if self._total is None or not rate else f", {_clock((self._total - self._done) / rate)} left"
        of = "" if self._total is None else f" of {self._total:,}"
        note(f"{self._done:,}{of} rows, {rate:.0f} rows/s{left}")

    def note(self, message: str) -> None:
        note(message)


class Bar(Progress):
    """A bar on stderr, gone when it is full."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich
        from rich.progress import Task as RichTask
        from rich.text import Text

        class Rate(TextColumn):
            def render(self, task: RichTask) -> Text:
                return Text("" if task.speed is None else f"{task.speed:.0f} texts/s")

        columns = (BarColumn(), MofNCompleteColumn(), Rate(""), TimeRemainingColumn())
        console = Console(stderr=True)
        self._bar = Rich(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._task: Any = None

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def begin(self, total: int | None, done: int = 0) -> None:
        self._task = self._bar.add_task("texts", total=total, completed=done)

    def advance(self, rows: int = 1) -> None:
        self._bar.advance(self._task, rows)


def bar_fits(*, results_on_stdout: bool) -> bool:
    """Whether a bar on stderr has a terminal to itself."""
    return sys.stderr.isatty() and (not results_on_stdout or not sys.stdout.isatty())


def _clock(seconds: float) -> str:
    minutes = int(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min" if minutes else f"{seconds:.0f} s"
