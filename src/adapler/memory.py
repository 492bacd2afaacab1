"""Memory that was freed, back to the system. Imports nothing of the package."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's names for them (malloc.h)."""


def give_back() -> None:
    """Return freed memory to the system, where the C library can.

    Tensors of ever new sizes, as ragged batches make them, leave glibc's heap full of holes that it keeps: a process that
    needs one gigabyte grows to several over hours. Costs milliseconds; does nothing elsewhere.
    """
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def large_ones_apart() -> None:
    """From now on take large pieces of memory from the system and return them at once, where the C library can.

    By default glibc learns to keep them in its heap, which then swells and shrinks by half a gigabyte between two calls of
    `give_back`. To take them anew each time costs a few percent of speed: right for a server that runs for weeks.
    """
    library = _glibc()
    if library is not None:
        library.mallopt(_MMAP_THRESHOLD, 1 << 20)
        library.mallopt(_TRIM_THRESHOLD, 64 << 20)


@cache
def _glibc() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        return library if hasattr(library, "malloc_trim") else None
    except OSError:  # another C library
        return None
