"""Memory stays flat: what was freed goes back to the system, what is kept is little. Imports nothing of the package."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any

_KERNELS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def give_back() -> None:
    """Return freed memory to the system, where the C library can.

    Tensors of ever new sizes, as ragged batches make them, leave glibc's heap full of holes that it keeps: a process that
    needs one gigabyte grows to several over hours. Costs milliseconds; does nothing elsewhere.
    """
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def keep_few_kernels() -> None:
    """Let torch keep few of the kernels that it compiles. To be called before it computes anything; later it changes nothing.

    oneDNN compiles a kernel for every new shape and keeps 1,024 of them. Ragged batches bring a new shape at nearly every
    call, so the store fills for many minutes, by some hundred mebibytes in all, and hardly one is used again: 64 are as fast.
    A number set by the user stays.
    """
    os.environ.setdefault(_KERNELS, "64")


@cache
def _glibc() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        return library if hasattr(library, "malloc_trim") else None
    except OSError:  # another C library
        return None
