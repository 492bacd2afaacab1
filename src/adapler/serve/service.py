"""The life of a request: read, admitted, made token ids, run in a batch with others, answered. Knows nothing of HTTP."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from adapler.classifier import Classifier
from adapler.data.text import EncodedText, Text
from adapler.errors import AdaplerError, BadConfig
from adapler.memory import give_back
from adapler.points import Operating
from adapler.prediction import Prediction
from adapler.serve.batcher import Batcher, Done
from adapler.serve.explaining import Explained, explain
from adapler.serve.limits import Limits
from adapler.serve.metrics import Metrics
from adapler.serve.reading import Inputs, characters, read_request
from adapler.serve.schema import ErrorType, PredictRequest, Refusal, scored

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
    """What the model's thread is given: texts in both forms, and how to run them."""

    texts: list[Text]
    parts: list[list[EncodedText]]
    how: Operating
    kind: str


@dataclass
class Reply:
    """An answer, with its account."""

    content: Any = None
    predictions: list[Prediction] = field(default_factory=list)
    characters: int = 0
    texts: int = 0
    tokenization: float = 0.0
    queue: float = 0.0
    inference: float = 0.0
    total: float = 0.0

    def headers(self) -> dict[str, str]:
        """Those of text-embeddings-inference, in whole milliseconds, and ours."""
        spent = sum(each.flops for each in self.predictions)
        full = sum(each.flops_full for each in self.predictions)
        timing = {"tokenization": self.tokenization, "queue": self.queue, "inference": self.inference, "total": self.total}
        return {
            "x-compute-type": "cpu",
            "x-compute-time": _milliseconds(self.tokenization + self.inference),
            "x-compute-characters": str(self.characters),
            "x-compute-tokens": str(sum(len(each.tokens) for each in self.predictions)),
            **{f"x-{name}-time": _milliseconds(seconds) for name, seconds in timing.items()},
            "x-adapler-tokens-in": str(sum(len(each.tokens) for each in self.predictions)),
            "x-adapler-tokens-kept": str(sum(each.lengths[-1] for each in self.predictions)),
            "x-adapler-flops-ratio": f"{spent / full if full else 1.0:.4f}",
            "x-truncated": str(int(any(each.truncated for each in self.predictions))),
            "server-timing": ", ".join(f"{name};dur={1000 * seconds:.3f}" for name, seconds in timing.items()),
        }


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
        """Large bodies on a thread of the pool, so that others are answered meanwhile."""
        if len(body) <= _SHORT_BODY:
            return read_request(body, self.limits)
        return await asyncio.get_running_loop().run_in_executor(self._pool, read_request, body, self.limits)

    async def _answer(self, request: PredictRequest, inputs: Inputs, kind: str) -> Reply:
        most = self.limits.max_client_batch_size
        count = len(inputs.items)
        try:
            how = self.classifier.wished(point=request.point, max_loss=request.max_loss)
        except BadConfig as error:
            raise Refusal(422, ErrorType.validation, str(error)) from error
        reply = Reply(characters=inputs.characters, texts=count)
        rows: list[Any] = []
        if count <= most:
            rows += await self._piece(request, inputs.items, how, kind, reply, first=0 if inputs.batch else None)
        else:
            pieces = [
                partial(self._piece, request, inputs.items[first : first + most], how, kind, reply, first=first)
                for first in range(0, count, most)
            ]
            rows += await _in_turn(pieces)
        reply.content = rows if inputs.batch else rows[0]
        return reply

    async def _piece(
        self,
        request: PredictRequest,
        items: Sequence[Text | Refusal],
        how: Operating,
        kind: str,
        reply: Reply,
        *,
        first: int | None,
    ) -> list[Any]:
        """Answers of some items; what is wrong with one stands in its place. `first` is the index of the first in its batch."""
        side = request.truncation_direction.lower()
        cut = self.limits.auto_truncate if request.truncate is None else request.truncate
        if kind == EXPLAIN and not self.classifier.cost.predictors:
            raise Refusal(424, ErrorType.backend, "the model removes nothing, so it has no account of which tokens mattered")
        begin = time.perf_counter()
        if characters(items) <= _SHORT:
            read = self._encoded(items, side, cut, kind == EXPLAIN)
        else:
            loop = asyncio.get_running_loop()
            read = await loop.run_in_executor(self._pool, self._encoded, items, side, cut, kind == EXPLAIN)
        reply.tokenization += time.perf_counter() - begin
        rows: list[Any] = [item if isinstance(item, Refusal) else None for item in read]
        bad = [index for index, row in enumerate(rows) if row is not None]
        if first is not None:
            for index in bad:
                rows[index] = rows[index].at(first + index)
        if bad and not (request.partial and first is not None):
            raise rows[bad[0]]
        parts = [each for each in read if not isinstance(each, Refusal)]
        if parts:
            if not first:  # others may have come to the line meanwhile; later pieces of a request stay, as it was begun
                self.check_room(admitted=True)
            texts = [item for item, each in zip(items, rows, strict=True) if each is None and not isinstance(item, Refusal)]
            tokens = sum(len(part.ids) for text in parts for part in text)
            done = await self._run(Task(texts, parts, how, kind), tokens)
            reply.queue += done.queue_seconds
            reply.inference += done.inference_seconds
            answers = iter(done.result)
            for index, row in enumerate(rows):
                if row is None:
                    rows[index] = self._row(next(answers), request, reply)
        return [row.body() if isinstance(row, Refusal) else row for row in rows]

    def _row(self, answer: Prediction | Explained, request: PredictRequest, reply: Reply) -> Any:
        if isinstance(answer, Explained):
            reply.predictions.append(answer.prediction)
            return answer.account
        reply.predictions.append(answer)
        return scored(answer, raw=request.raw_scores)

    async def _run(self, task: Task, tokens: int) -> Done:
        try:
            return await self.batcher(task, kind=task.kind, tokens=tokens)
        except AdaplerError as error:
            raise Refusal(424, ErrorType.backend, str(error)) from error
        except (ArithmeticError, IndexError, MemoryError, RuntimeError, ValueError) as error:  # out of the model's own code
            raise Refusal(424, ErrorType.backend, f"the model could not run ({type(error).__name__})") from error

    def _encoded(
        self, items: Sequence[Text | Refusal], side: str, cut: bool, places: bool
    ) -> list[list[EncodedText] | Refusal]:
        """Token ids of the items, with their places in the text where asked, on a thread of the pool."""
        encoder = self._encoders[side]
        texts = [item for item in items if not isinstance(item, Refusal)]
        try:
            parts = iter(encoder.parts(texts, places=places))
        except AdaplerError as error:
            raise Refusal(422, ErrorType.tokenizer, "the tokenizer cannot read a text") from error
        read: list[list[EncodedText] | Refusal] = []
        for item in items:
            if isinstance(item, Refusal):
                read.append(item)
                continue
            text = next(parts)
            if not cut and any(part.truncated for part in text):
                most, given = encoder.max_length, encoder.count(item)
                said = f"Input validation error: `inputs` must have less than {most} tokens. Given: {given}"
                read.append(Refusal(422, ErrorType.validation, said))
            else:
                read.append(text)
        return read

    def _compute(self, tasks: Sequence[Task]) -> list[list[Any]]:
        """On the model's thread: one list a task, all tasks in the same batches."""
        self._since_tidy += sum(len(task.parts) for task in tasks)
        if tasks[0].kind == EXPLAIN:
            return [list(explain(self.classifier, task.texts, task.parts, task.how)) for task in tasks]
        parts = [text for task in tasks for text in task.parts]
        answers = iter(self.classifier.answers(parts, [task.how for task in tasks for _ in task.parts]))
        return [[next(answers) for _ in task.parts] for task in tasks]

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


async def _in_turn(pieces: Sequence[Callable[[], Coroutine[Any, Any, list[Any]]]]) -> list[Any]:
    """The rows of all pieces, a few under way at a time; the first that fails ends the others."""
    rows: list[Any] = []
    try:
        async with asyncio.TaskGroup() as group:
            under_way: deque[asyncio.Task[list[Any]]] = deque()
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


def _milliseconds(seconds: float) -> str:
    return str(int(1000 * seconds))
