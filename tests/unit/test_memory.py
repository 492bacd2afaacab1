"""Freed memory goes back."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from adapler import memory

HOLES = """
import os, sys
from adapler.memory import give_back
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
blocks = [bytearray(100_000) for _ in range(2000)]  # below the size that glibc takes from the system one by one
del blocks[::2]
pinned = bytearray(1000)
last = blocks[-1]
del blocks
before = resident()
give_back()
print(before, resident())
"""

LARGE = """
import os, sys
import numpy as np
from adapler.memory import large_ones_apart
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
if sys.argv[1] == "apart":
    large_ones_apart()
np.ones(16 << 20, np.uint8)  # freed at once: from here on glibc, left to itself, keeps pieces of this size in its heap
before = resident()
pieces = [np.ones((8 << 20) + number, np.uint8) for number in range(40)]
last = np.ones(300 << 10, np.uint8)  # lies above them: the heap cannot shrink past it
pieces.clear()
print(resident() - before)
"""


@pytest.mark.skipif(memory._glibc() is None, reason="needs glibc")
def test_large_pieces_go_back_at_once_and_would_not_by_themselves() -> None:
    kept = [
        int(subprocess.run([sys.executable, "-c", LARGE, how], capture_output=True, text=True, check=True).stdout)
        for how in ("apart", "as they are")
    ]
    assert kept[0] < 20_000_000 and kept[1] > 200_000_000


@pytest.mark.skipif(memory._glibc() is None, reason="needs glibc")
def test_a_heap_full_of_holes_shrinks() -> None:
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after < before - 50_000_000


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    memory._glibc.cache_clear()
    memory.give_back()
    memory.large_ones_apart()
    memory._glibc.cache_clear()
