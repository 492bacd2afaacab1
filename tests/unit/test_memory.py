"""Freed memory goes back, and what is kept is little."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
import torch

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

KERNELS = """
import os, sys
from adapler.memory import keep_few_kernels
if sys.argv[1] == "few":
    keep_few_kernels()
import torch
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
block = torch.ones(1000, 64)
torch.nn.functional.gelu(block[:1])
before = resident()
for rows in range(2, 900):
    torch.nn.functional.gelu(block[:rows])
print(resident() - before)
"""


def left_by(code: str, *arguments: str, **environment: str) -> list[int]:
    """The numbers a process of its own prints."""
    there = {name: value for name, value in os.environ.items() if name != memory._KERNELS} | environment
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, env=there)
    return [int(number) for number in done.stdout.split()]


@pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or not sys.platform.startswith("linux"), reason="needs oneDNN and /proc"
)
def test_kernels_of_ever_new_shapes_are_not_kept_and_would_be_by_themselves() -> None:
    (few,), (all_of_them,) = left_by(KERNELS, "few"), left_by(KERNELS, "as they are")
    assert few < all_of_them / 3


def test_a_server_keeps_few() -> None:
    code = "import os; from adapler.serve.run import fit_threads; fit_threads(1); print(os.environ['" + memory._KERNELS + "'])"
    assert left_by(code) == [64]


def test_a_number_of_kernels_set_by_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(memory._KERNELS, "5")
    memory.keep_few_kernels()
    assert os.environ[memory._KERNELS] == "5"


@pytest.mark.skipif(memory._glibc() is None, reason="needs glibc")
def test_a_heap_full_of_holes_shrinks() -> None:
    before, after = left_by(HOLES)
    assert after < before - 50_000_000


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    memory._glibc.cache_clear()
    memory.give_back()
    memory._glibc.cache_clear()
