"""Threads for batches: made once, prepared before use, and made anew in a forked process."""

from __future__ import annotations

import subprocess
import sys
import threading

from adapler.runtimes.workers import workers


def test_a_pool_is_made_once_and_every_thread_is_prepared() -> None:
    prepared: list[str] = []
    pool = workers("test", 3, lambda: prepared.append(threading.current_thread().name))
    assert len(set(prepared)) == 3
    assert workers("test", 3) is pool and len(prepared) == 3
    assert workers("test", 2) is not pool


FORKING = """
import os
from adapler.runtimes.workers import workers

assert workers("test", 2).submit(sum, [1, 2]).result() == 3
child = os.fork()
if child == 0:
    os._exit(workers("test", 2).submit(sum, [3, 4]).result(timeout=20))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_a_forked_process_has_threads_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", FORKING], check=True, timeout=60)
