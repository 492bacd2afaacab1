"""One fair timer: contenders are warmed up, take turns, and get a median with its spread. Imports nothing of the package."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

REPEATS = 7
FEWEST_REPEATS = 3


@dataclass(frozen=True)
class Timing:
    """Seconds of one contender, one number a repeat."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Slowest minus fastest repeat, relative to the median: how far the machine can be trusted."""
        return (max(self.seconds) - min(self.seconds)) / self.median

    def rate(self, count: int) -> float:
        """Things a second, where a repeat does `count` of them."""
        return count / self.median


def race(
    contenders: Mapping[str, Callable[[], object]], *, repeats: int = REPEATS, seconds: float = 60.0, settle: float = 0.0
) -> dict[str, Timing]:
    """Time contenders against each other, with `settle` seconds of rest before each: thread pools go on spinning for a while
    after their work is done, at the cost of who comes next.

    Each runs once untimed. Then they take turns, beginning with another one in every repeat, so that a busy moment of the
    machine and a warm cache come to all alike. Stops early, after whole repeats only, when `seconds` are over.
    """
    for contender in contenders.values():
        contender()
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    started = time.perf_counter()
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(settle)
            begin = time.perf_counter()
            contenders[name]()
            taken[name].append(time.perf_counter() - begin)
        if repeat + 1 >= FEWEST_REPEATS and time.perf_counter() - started > seconds:
            break
    return {name: Timing(tuple(times)) for name, times in taken.items()}
