"""The life of a request: read, admitted, made token ids, run in a batch with others, answered. Knows nothing of HTTP."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from adapler.classifier import Classifier
from adapler.data.text import Text
from adapler.errors import AdaplerError, BadConfig
from adapler.memory import give_back
from adapler.points import Operating
from adapler.serve.batcher import Batcher
from adapler.serve.encoding import Encoded, encoded
from adapler.serve.explaining import explain
from adapler.serve.limits import Limits
from adapler.serve.metrics import Metrics
from adapler.serve.reading import Inputs, characters, read_request
from adapler.serve.reply import Reply
from adapler.serve.schema import ErrorType, PredictRequest, Refusal, scored, written

T = TypeVar("T")
PREDICT, EXPLAIN = "predict", "explain"
_AHEAD = 2
"""Pieces of one large request that are under way at once: enough to keep the model busy, too few to take the line over."""
_PATIENCE = 0.5
"""Share of the time a request has that it may have to wait for others; past it, it is refused at once."""
_SHORT = 2000
"""Characters up to which token ids are made at once: to hand them to another thread would take longer."""
_SHORT_BODY = 8 * 1024
"""Bytes up to which a body is read at once: milliseconds, whatever it holds."""
_GIVE_BACK_TEXTS = 1024


@dataclass(frozen=True)
class Task:
    """What the model's thread is given: texts, and how to run them."""

    texts: list[Encoded]
    how: Operating
    kind: str

    @property
    def tokens(self) -> int:
        """Of all texts."""
        return sum(text.tokens for text in self.texts)


@dataclass(frozen=True)
class Asked:
    """What all pieces of a request have in common."""

    request: PredictRequest
    how: Operating
    kind: str
    batch: bool
    reply: Reply

    def told(self, row: str | Refusal, index: int) -> str:
        """A row of the answer. What stands against an item is raised, or, where the answer may be partial, has its place."""
        if not isinstance(row, Refusal):
            return row
        refusal = row.at(index) if self.batch else row
        if not (self.batch and self.request.partial):
            raise refusal
        return written(refusal.body())


class Service:
    """A classifier, its batcher and its limits."""

    def __init__(self, classifier: Classifier, limits: Limits) -> None:
        self.classifier, self.limits = classifier, limits
        self.metrics = Metrics(lambda: self.batcher.waiting)
        self.batcher: Batcher[Task] = Batcher(
            self._compute,
            budget=limits.max_batch_tokens,
            gather_seconds=limits.gather_ms / 1000,
            seen=self._seen,
            after=self._tidy,
        )
        self._pool = ThreadPoolExecutor(limits.tokenization_workers, thread_name_prefix="adapler-tokens")
        self._encoders = {side: classifier.encoder.cutting(side) for side in ("right", "left")}
        self._admitted = 0
        self._since_tidy = 0
        self.draining = False

    @property
    def healthy(self) -> bool:
        """Whether requests will be answered."""
        return self.batcher.alive and not self.draining

    async def __call__(self, body: bytes, kind: str) -> Reply:
        """Answer the body of a request; whatever stands against it is raised as a `Refusal`."""
        begin = time.perf_counter()
        with self._admission():
            try:
                async with asyncio.timeout(self.limits.request_timeout):
                    request, inputs = await self._read(body)
                    self.metrics.requests.labels(_method(inputs)).inc()
                    reply = await self._answer(request, inputs, kind)
            except TimeoutError:
                raise Refusal(
                    504, ErrorType.timeout, f"no answer within {self.limits.request_timeout:g} s; send less at once"
                ) from None
        reply.total = time.perf_counter() - begin
        self._count(reply, inputs)
        return reply

    def close(self, seconds: float) -> bool:
        """Answer what is in line and stop; whether the model's thread came to its end."""
        self.draining = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        return self.batcher.close(seconds)

    @contextmanager
    def _admission(self) -> Iterator[None]:
        self.check_room()
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    def check_room(self, *, admitted: bool = False) -> None:
        """Refuse what would find no place, or wait so long that its time might run out."""
        ahead = self.batcher.seconds_ahead()
        full = not admitted and self._admitted >= self.limits.max_concurrent_requests
        if full or ahead > _PATIENCE * self.limits.request_timeout:
            wait = max(1, math.ceil(ahead))
            raise Refusal(429, ErrorType.overloaded, "Model is overloaded", {"retry-after": str(wait)})

    async def _read(self, body: bytes) -> tuple[PredictRequest, Inputs]:
        read = partial(read_request, body, self.limits)
        return read() if len(body) <= _SHORT_BODY else await self._on_a_thread(read)

    async def _answer(self, request: PredictRequest, inputs: Inputs, kind: str) -> Reply:
        most = self.limits.max_client_batch_size
        count = len(inputs.items)
        try:
            how = self.classifier.wished(point=request.point, max_loss=request.max_loss)
        except BadConfig as error:
            raise Refusal(422, ErrorType.validation, str(error)) from error
        asked = Asked(request, how, kind, inputs.batch, Reply(characters=inputs.characters, texts=count))
        if count <= most:
            rows = await self._piece(asked, inputs.items, 0)
        else:
            firsts = range(0, count, most)
            rows = await _in_turn([partial(self._piece, asked, inputs.items[first : first + most], first) for first in firsts])
        asked.reply.content = f"[{', '.join(rows)}]" if inputs.batch else rows[0]
        return asked.reply

    async def _piece(self, asked: Asked, items: Sequence[Text | Refusal], first: int) -> list[str]:
        """Rows of some items, in JSON; `first` is the index of the first in its request."""
        request = asked.request
        side = request.truncation_direction.lower()
        cut = self.limits.auto_truncate if request.truncate is None else request.truncate
        if asked.kind == EXPLAIN and not self.classifier.cost.predictors:
            raise Refusal(424, ErrorType.backend, "the model removes nothing, so it has no account of which tokens mattered")
        begin = time.perf_counter()
        encode = partial(encoded, self._encoders[side], items, cut=cut, places=asked.kind == EXPLAIN)
        read = encode() if characters(items) <= _SHORT else await self._on_a_thread(encode)
        asked.reply.tokenization += time.perf_counter() - begin
        bad = {at: asked.told(each, first + at) for at, each in enumerate(read) if isinstance(each, Refusal)}
        texts = [each for each in read if not isinstance(each, Refusal)]
        if texts and not first:  # others may have come to the line meanwhile; later pieces of a request stay, as it was begun
            self.check_room(admitted=True)
        good = iter(await self._rows(asked, texts) if texts else [])
        return [bad[at] if at in bad else asked.told(next(good), first + at) for at in range(len(items))]

    async def _rows(self, asked: Asked, texts: list[Encoded]) -> list[str | Refusal]:
        """One a text. Where the model fails, texts are run one by one, so that only the one to blame suffers; none is run
        after it unless the answer may be partial."""
        try:
            return await self._run(asked, Task(texts, asked.how, asked.kind))
        except Refusal as failure:
            if len(texts) == 1:
                return [failure]
        rows: list[str | Refusal] = []
        for text in texts:
            rows += await self._rows(asked, [text])
            if isinstance(rows[-1], Refusal) and not asked.request.partial:
                break
        return rows

    async def _run(self, asked: Asked, task: Task) -> list[str | Refusal]:
        try:
            done = await self.batcher(task, kind=task.kind, tokens=task.tokens)
        except AdaplerError as error:
            raise Refusal(424, ErrorType.backend, str(error)) from error
        except (ArithmeticError, IndexError, MemoryError, RuntimeError, ValueError) as error:  # out of the model's own code
            raise Refusal(424, ErrorType.backend, f"the model could not run ({type(error).__name__})") from error
        reply = asked.reply
        reply.queue += done.queue_seconds
        reply.inference += done.inference_seconds
        if task.kind == EXPLAIN:  # accounts are long
            reply.predictions += [each.prediction for each in done.result]
            return await self._on_a_thread(partial(_in_json, [each.account for each in done.result]))
        reply.predictions += done.result
        return _in_json([scored(each, raw=asked.request.raw_scores) for each in done.result])

    async def _on_a_thread(self, work: Callable[[], T]) -> T:
        """Of the pool, so that others are answered meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _compute(self, tasks: Sequence[Task]) -> list[list[Any]]:
        """On the model's thread: one list a task, all tasks in the same batches."""
        self._since_tidy += sum(len(task.texts) for task in tasks)
        if tasks[0].kind == EXPLAIN:
            return [explain(self.classifier, task.texts, task.how) for task in tasks]
        parts = [text.parts for task in tasks for text in task.texts]
        answers = iter(self.classifier.answers(parts, [task.how for task in tasks for _ in task.texts]))
        return [[next(answers) for _ in task.texts] for task in tasks]

    def _seen(self, works: int, tokens: int) -> None:
        self.metrics.batch_size.observe(works)
        self.metrics.batch_tokens.observe(tokens)

    def _tidy(self) -> None:
        """Memory that was freed goes back to the system, so that it stays flat: milliseconds after thousands of texts."""
        if self._since_tidy >= _GIVE_BACK_TEXTS:
            self._since_tidy = 0
            give_back()

    def _count(self, reply: Reply, inputs: Inputs) -> None:
        metrics = self.metrics
        metrics.successes.labels(_method(inputs)).inc()
        metrics.duration.observe(reply.total)
        metrics.tokenization.observe(reply.tokenization)
        metrics.queue.observe(reply.queue)
        metrics.inference.observe(reply.inference)
        for prediction in reply.predictions:
            metrics.answered(prediction)


def _in_json(contents: Sequence[object]) -> list[str | Refusal]:
    """Each in JSON, or what stands against it."""
    rows: list[str | Refusal] = []
    for content in contents:
        try:
            rows.append(written(content))
        except Refusal as refusal:
            rows.append(refusal)
    return rows


async def _in_turn(pieces: Sequence[Callable[[], Coroutine[Any, Any, list[str]]]]) -> list[str]:
    """The rows of all pieces, a few under way at a time; the first that fails ends the others."""
    rows: list[str] = []
    try:
        async with asyncio.TaskGroup() as group:
            under_way: deque[asyncio.Task[list[str]]] = deque()
            for piece in pieces:
                if len(under_way) == _AHEAD:
                    rows += await under_way.popleft()
                under_way.append(group.create_task(piece()))
            while under_way:
                rows += await under_way.popleft()
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    return rows


def _method(inputs: Inputs) -> str:
    return "batch" if inputs.batch else "single"
