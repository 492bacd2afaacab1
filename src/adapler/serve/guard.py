"""What stands around the routes: the key, errors in one form, a line in the log a request; and bodies read within bounds."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from adapler.serve.limits import Limits
from adapler.serve.logs import LOGGER, requests, told
from adapler.serve.metrics import Metrics
from adapler.serve.schema import ErrorType, Refusal

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]
T = TypeVar("T")
Answer = Callable[[Request], Awaitable[Response]]

OPEN = frozenset({"/health", "/ping", "/ui"})
"""Paths that need no key."""
OVERLOADED = 429
HUNG_UP = 499
"""In logs alone: the client left before its answer."""
_DISCARDED = 8
"""So many times the payload limit is read and thrown away, that a client may come to read why it was refused."""
_BODIES = 64
"""So many bodies of full size may be on their way in at once."""


class HungUp(Exception):
    """Nobody waits for this answer any more."""


class Guard:
    """An ASGI app around the app."""

    def __init__(
        self,
        app: App,
        *,
        metrics: Metrics,
        key: bytes | None,
        paths: frozenset[str],
        model_routes: Mapping[str, Answer],
        check_room: Callable[[], None],
    ) -> None:
        """`paths` are those that exist: others are not written down, as they may hold anything. What is asked of the model goes
        to `model_routes` without a detour through the app, whose ways would cost more than a short text does; and it is refused
        here where `check_room` raises: under a flood, to say no must cost next to nothing."""
        self._app, self._metrics, self._key, self._paths = app, metrics, key, paths
        self._model_routes, self._check_room = model_routes, check_room
        self._model_paths = frozenset(path.encode() for path in model_routes)
        self._turned_away, self._told_last = 0, 0.0

    def turned_away(self, method: bytes, path: bytes, headers: Headers) -> Refusal | None:
        """Why a request whose head has come finds no place; None for what is to be let in or answered otherwise. Asked before
        anything is made for a request: a flood that outruns its refusals would keep those waiting that were let in."""
        if method != b"POST" or path not in self._model_paths:
            return None
        if self._key is not None and not _knows(headers, self._key):
            return None
        try:
            self._check_room()
        except Refusal as refusal:
            if refusal.status == OVERLOADED:
                self._metrics.failures.labels(refusal.kind.value.lower()).inc()
                self._turn_away()
                return refusal
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        status = HUNG_UP

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            answer = self._model_routes.get(scope["path"]) if scope["method"] == "POST" else None
            app: App = self._app
            try:
                self._check_key(scope)
                if answer is not None:
                    self._check_room()
                    app = await answer(Request(scope, receive))
            except Refusal as refusal:
                self._metrics.failures.labels(refusal.kind.value.lower()).inc()
                scope.setdefault("adapler", {})["error_type"] = refusal.kind.value
                app = refused(refusal)
            await app(scope, receive, watched)
        except HungUp:
            self._metrics.dropped.inc()
        except Exception:
            if status == HUNG_UP:
                self._metrics.failures.labels("internal").inc()
                await refused(INTERNAL)(scope, receive, watched)
            LOGGER.exception("a request failed")
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            spent = round(1000 * (time.perf_counter() - begin), 3)
            if status == OVERLOADED:
                self._turn_away()
            else:
                fields = {"method": scope["method"], "path": path, "status": status, "ms": spent}
                requests.add(fields | scope.get("adapler", {}))

    def _turn_away(self) -> None:
        """A line a second at most: a flood of refusals shall not become a flood of lines."""
        self._turned_away += 1
        if time.monotonic() >= self._told_last + 1.0:
            told("overloaded", {"status": OVERLOADED, "refused": self._turned_away})
            self._turned_away, self._told_last = 0, time.monotonic()

    def _check_key(self, scope: Scope) -> None:
        if self._key is not None and scope["path"] not in OPEN and not _knows(scope["headers"], self._key):
            headers = {"www-authenticate": "Bearer"}
            raise Refusal(401, ErrorType.unauthorized, "an API key is needed: Authorization: Bearer KEY", headers)


def refused(refusal: Refusal) -> JSONResponse:
    """An error as every error is written."""
    return JSONResponse(refusal.body(), refusal.status, refusal.headers)


INTERNAL = Refusal(500, ErrorType.internal, "the server failed; its log says where")


class Bodies:
    """Reads bodies within a server's limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held = 0

    async def read(self, request: Request) -> bytes:
        """The whole body of a JSON request."""
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        try:
            async with asyncio.timeout(self._limits.client_timeout):
                body = await self._collect(request)
        except TimeoutError:
            raise Refusal(
                408,
                ErrorType.timeout,
                f"the body did not come within {self._limits.client_timeout:g} s",
                {"connection": "close"},
            ) from None
        if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
            raise Refusal(415, ErrorType.validation, "expected the header Content-Type: application/json")
        return body

    async def _collect(self, request: Request) -> bytes:
        limit = self._limits.payload_limit
        body, size = bytearray(), 0
        declared = request.headers.get("content-length", "0")
        too_large = Refusal(413, ErrorType.validation, f"the body is larger than {limit} bytes, the payload limit")
        if declared.isdecimal() and int(declared) > _DISCARDED * limit:
            too_large.headers["connection"] = "close"
            raise too_large
        try:
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise HungUp
                chunk = message.get("body", b"")
                size += len(chunk)
                if size <= limit:
                    self._hold(len(chunk))
                    body += chunk
                elif size > _DISCARDED * limit:
                    too_large.headers["connection"] = "close"
                    raise too_large
                if not message.get("more_body", False):
                    break
        finally:
            self._held -= len(body)
        if size > limit:
            raise too_large
        return bytes(body)

    def _hold(self, count: int) -> None:
        if self._held + count > _BODIES * self._limits.payload_limit:
            raise Refusal(429, ErrorType.overloaded, "Model is overloaded", {"retry-after": "1", "connection": "close"})
        self._held += count


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """What the work gives, unless the client hangs up first: then the work is cancelled."""
    here = asyncio.current_task()
    assert here is not None
    leaving = asyncio.create_task(_hang_up(request))
    leaving.add_done_callback(lambda left: None if left.cancelled() else here.cancel())
    try:
        return await work
    except asyncio.CancelledError:
        if leaving.done() and not leaving.cancelled():
            here.uncancel()
            raise HungUp from None
        raise
    finally:
        leaving.cancel()


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _knows(headers: Headers, key: bytes) -> bool:
    """Whether a request brings the key. Compared in constant time."""
    given = [value for name, value in headers if name == b"authorization"]
    scheme, _, token = (given[0] if len(given) == 1 else b"").partition(b" ")
    return hmac.compare_digest(token.strip(), key) and scheme.lower() == b"bearer"
