"""The batcher: work waits in one bounded line, and one thread runs the model on as much of it as a batch should hold.

First come, first served. An idle thread begins at once; under load it waits a few milliseconds for a batch to fill. Work whose
client has gone is taken out of the line before it costs anything.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_REMEMBERED = 0.9
"""Weight of the past in the speed that is expected of the next batch."""


@dataclass(eq=False)
class Work(Generic[T]):
    """One piece of a request on its way to the model."""

    task: T
    kind: str
    """Only work of one kind shares a batch."""
    tokens: int
    future: asyncio.Future[Done]
    since: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True)
class Done:
    """What came of it."""

    result: Any
    queue_seconds: float
    inference_seconds: float


class Batcher(Generic[T]):
    """One line, one thread. `run` answers the tasks of a batch, one result each, in order."""

    def __init__(
        self,
        run: Callable[[Sequence[T]], Sequence[Any]],
        *,
        budget: int,
        gather_seconds: float,
        seen: Callable[[int, int], None] = lambda works, tokens: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """`seen` is told of every batch how many works and tokens it holds; `after` is called when a batch is answered."""
        self._run, self._budget, self._gather = run, budget, gather_seconds
        self._seen, self._after = seen, after
        self._line: deque[Work[T]] = deque()
        self._tokens = 0  # in the line
        self._running = 0  # tokens with the model
        self._rate: float | None = None  # tokens a second
        self._crowded = False
        self._closed = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="adapler-model", daemon=True)
        self._thread.start()

    async def __call__(self, task: T, *, kind: str, tokens: int) -> Done:
        """Wait in line, then for the model. Cancelling takes the work out of the line."""
        work = Work(task, kind, tokens, asyncio.get_running_loop().create_future())
        with self._change:
            if self._closed:
                raise RuntimeError("the batcher is closed")
            self._line.append(work)
            self._tokens += tokens
            self._change.notify()
        try:
            return await work.future
        finally:
            if work.future.cancelled():
                self._drop(work)

    @property
    def waiting(self) -> int:
        """Works in the line."""
        return len(self._line)

    @property
    def alive(self) -> bool:
        """Whether there is a thread that answers."""
        return self._thread.is_alive() and not self._closed

    def seconds_ahead(self) -> float:
        """How long what waits and runs now will take, as far as is known."""
        return 0.0 if self._rate is None else (self._tokens + self._running) / self._rate

    def close(self, seconds: float) -> bool:
        """Answer what is in the line, then stop; whether that was done in time."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _drop(self, work: Work[T]) -> None:
        with self._change:
            if work in self._line:
                self._line.remove(work)
                self._tokens -= work.tokens

    def _work(self) -> None:
        while batch := self._next():
            self._answer(batch)
            self._after()

    def _next(self) -> list[Work[T]]:
        """The works of the next batch; none when there will be no more."""
        with self._change:
            while True:
                while not self._line and not self._closed:
                    self._change.wait()
                while self._crowded and self._line and self._tokens < self._budget and not self._closed:
                    left = self._line[0].since + self._gather - time.perf_counter()
                    if left <= 0:
                        break
                    self._change.wait(left)
                if self._line:
                    return self._taken()
                if self._closed:
                    return []

    def _taken(self) -> list[Work[T]]:
        batch = [self._line.popleft()]
        tokens = batch[0].tokens
        while self._line and self._line[0].kind == batch[0].kind and tokens + self._line[0].tokens <= self._budget:
            batch.append(self._line.popleft())
            tokens += batch[-1].tokens
        self._tokens -= tokens
        self._running = tokens
        return batch

    def _answer(self, batch: Sequence[Work[T]]) -> None:
        batch = [work for work in batch if not work.future.cancelled()]
        if not batch:
            self._running = 0
            return
        tokens = sum(work.tokens for work in batch)
        self._seen(len(batch), tokens)
        begin = time.perf_counter()
        failure: Exception | None = None
        results: Sequence[Any]
        try:
            results = self._run([work.task for work in batch])
        except Exception as error:
            if len(batch) > 1:  # one of them is to blame, and the others shall not suffer for it
                for work in batch:
                    self._answer([work])
                return
            results, failure = [None], error
        end = time.perf_counter()
        self._running = 0
        rate = tokens / max(end - begin, 1e-6)
        self._rate = rate if self._rate is None else _REMEMBERED * self._rate + (1 - _REMEMBERED) * rate
        # Before anybody is told: a lone client that asks again at once is no crowd.
        self._crowded = len(batch) > 1 or bool(self._line)
        for work, result in zip(batch, results, strict=True):
            done = Done(result, begin - work.since, end - begin)
            _tell(work, done, failure)


def _tell(work: Work[Any], done: Done, failure: Exception | None) -> None:
    """Settle a future from the model's thread."""

    def settle() -> None:
        if work.future.done():  # its client has gone meanwhile
            return
        if failure is None:
            work.future.set_result(done)
        else:
            work.future.set_exception(failure)

    try:
        work.future.get_loop().call_soon_threadsafe(settle)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return
