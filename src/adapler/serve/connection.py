"""Connections that cannot be kept for nothing: uvicorn's protocol with a deadline for every thing a client may be slow at."""

from __future__ import annotations

import asyncio
import json

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from adapler.serve.limits import Limits
from adapler.serve.schema import ErrorType

KEEP_ALIVE = 15.0
"""Seconds an idle connection is kept for the next request."""
HEAD_BYTES = 64 * 1024
"""Most that a request may have in front of its body; the parser itself would take any number."""


class Connection(HttpToolsProtocol):
    """One client's. Aborted where its next request, or its reading of an answer, takes too long."""

    client_seconds: float
    request_seconds: float
    most: int

    _deadline: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0

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
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before and not self.cycle.response_complete:
            # Its body, the answer, and the time to read it, each have a shorter limit of their own.
            self._within(self.request_seconds)

    def on_response_complete(self) -> None:
        self._within(KEEP_ALIVE + self.client_seconds)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP gets the same kind of error as all else; none where an answer is under way already."""
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            body = json.dumps({"error": msg, "error_type": ErrorType.validation.value}).encode()
            head = (
                "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()

    def _within(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)


def connection_class(limits: Limits, most: int) -> type[Connection]:
    """For a server with these limits and at most so many connections."""

    class Bounded(Connection):
        client_seconds = limits.client_timeout
        request_seconds = 2 * limits.client_timeout + limits.request_timeout + KEEP_ALIVE

    Bounded.most = most
    return Bounded
