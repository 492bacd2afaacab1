"""How much memory this process has now, and how much a piece of work takes at its peak. Linux only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from adapler.errors import BadInput
from adapler.memory import give_back

_STATUS = Path("/proc/self/status")
_FORGET_PEAK = (Path("/proc/self/clear_refs"), "5")


def resident_mib() -> float:
    """Memory of this process that is in RAM now."""
    return _told("VmRSS")


def peak_mib(work: Callable[[], object]) -> float:
    """The most that `work` has in RAM beyond what the process had before it."""
    give_back()
    before = resident_mib()
    file, wish = _FORGET_PEAK
    file.write_text(wish, encoding="ascii")
    work()
    return _told("VmHWM") - before


def _told(name: str) -> float:
    for line in _STATUS.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise BadInput(f"this system does not tell {name}, a process's memory, in {_STATUS}")
