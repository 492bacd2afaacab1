"""Threads that each run whole batches on one core. Knows neither torch nor ONNX.

Two threads inside one batch wait for each other at every small product; two batches side by side never do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_POOLS: dict[tuple[str, int], ThreadPoolExecutor] = {}
_LOCK = threading.RLock()


def workers(kind: str, count: int, prepare: Callable[[], None] = lambda: None) -> ThreadPoolExecutor:
    """The process' threads for one kind of work, made at first use; each has run `prepare` when this returns.

    One pool for all models: callers that share it do not take each other's cores.
    """
    with _LOCK:
        if (kind, count) not in _POOLS:
            pool = ThreadPoolExecutor(count, thread_name_prefix=f"adapler-{kind}")
            started = threading.Barrier(count)

            def begin() -> None:
                prepare()
                started.wait()

            for begun in [pool.submit(begin) for _ in range(count)]:
                begun.result()
            _POOLS[kind, count] = pool
        return _POOLS[kind, count]


def _forked() -> None:
    """A forked process has none of its parent's threads."""
    global _LOCK
    _LOCK = threading.RLock()
    _POOLS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
