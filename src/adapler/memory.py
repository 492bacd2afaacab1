"""Memory that was freed, back to the system. Imports nothing of the package."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any


def give_back() -> None:
    """Return freed memory to the system, where the C library can.

    Tensors of ever new sizes, as ragged batches make them, leave glibc's heap full of holes that it keeps: a process that
    needs one gigabyte grows to several over hours. Costs milliseconds; does nothing elsewhere.
    """
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        return library if hasattr(library, "malloc_trim") else None
    except OSError:  # another C library
        return None
