"""Connections that cannot be kept for nothing: uvicorn's protocol with a deadline for every thing a client may be slow at."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from adapler.serve.limits import Limits
from adapler.serve.schema import ErrorType, Refusal

TurnedAway = Callable[[bytes, bytes, Sequence[tuple[bytes, bytes]]], Refusal | None]
"""Of method, path and headers: why there is no place for such a request."""

KEEP_ALIVE = 15.0
"""Seconds an idle connection is kept for the next request."""
HEAD_BYTES = 64 * 1024
"""Most that a request may have in front of its body; the parser itself would take any number."""


class Connection(HttpToolsProtocol):
    """One client's. Aborted where its next request, or its reading of an answer, takes too long."""

    client_seconds: float
    request_seconds: float
    most: int
    turned_away: TurnedAway

    _deadline: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0
    _refused = False
    """Whether the request that is coming in was answered at its head; its body is not kept."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
            return
        self._within(self.client_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():  # what still comes after a refusal
            return
        before = self._in_head
        super().data_received(data)
        if before and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"the request's head is longer than {HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._refuse():
            return
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before and not self.cycle.response_complete:
            # Its body, the answer, and the time to read it, each have a shorter limit of their own.
            self._within(self.request_seconds)

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._refused:
            self._refused = False
            self.on_response_complete()
        else:
            super().on_message_complete()

    def _refuse(self) -> bool:
        """Say no at once where there is no place; whatever is not plain goes the usual way, and is refused there."""
        waiting = self.cycle is not None and not self.cycle.response_complete
        if waiting or self.expect_100_continue or self.parser.should_upgrade() or not self.parser.should_keep_alive():
            return False
        refusal = self.turned_away(self.parser.get_method(), self.url.partition(b"?")[0], self.headers)
        if refusal is None:
            return False
        self._refused = True
        self._answer("429 Too Many Requests", refusal.body(), refusal.headers)
        self._within(self.client_seconds)
        return True

    def on_response_complete(self) -> None:
        self._within(KEEP_ALIVE + self.client_seconds)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP gets the same kind of error as all else; none where an answer is under way already."""
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            said = {"error": msg, "error_type": ErrorType.validation.value}
            self._answer("400 Bad Request", said, {"connection": "close"})
        self.transport.close()

    def _answer(self, status: str, content: dict[str, str], headers: dict[str, str]) -> None:
        body = json.dumps(content)
        lines = {"content-type": "application/json", "content-length": str(len(body)), **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.transport.write(f"HTTP/1.1 {status}\r\n{head}\r\n{body}".encode())

    def _within(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)


def connection_class(limits: Limits, most: int, turned_away: TurnedAway) -> type[Connection]:
    """For a server with these limits and at most so many connections."""

    class Bounded(Connection):
        client_seconds = limits.client_timeout
        request_seconds = 2 * limits.client_timeout + limits.request_timeout + KEEP_ALIVE

    Bounded.most, Bounded.turned_away = most, staticmethod(turned_away)
    return Bounded
