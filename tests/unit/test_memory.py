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
    memory._glibc.cache_clear()
