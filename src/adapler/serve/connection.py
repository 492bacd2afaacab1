"""Connections that cannot be kept for nothing: uvicorn's protocol with a deadline for every thing a client may be slow at."""

from __future__ import annotations

import asyncio
import json
import logging

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from adapler.serve.limits import Limits
from adapler.serve.schema import ErrorType

KEEP_ALIVE = 15.0
"""Seconds an idle connection is kept for the next request."""
_LOGGER = logging.getLogger("adapler.serve")


class Connection(H11Protocol):
    """One client's. Aborted where its next request, or its reading of an answer, takes too long."""

    client_seconds: float
    request_seconds: float
    most: int

    _deadline: asyncio.TimerHandle | None = None

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

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.cycle.response_complete:
            # Its body, the answer, and the time to read it, each have a shorter limit of their own.
            self._within(self.request_seconds)

    def on_response_complete(self) -> None:
        self._within(KEEP_ALIVE + self.client_seconds)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP gets the same kind of error as all else."""
        body = json.dumps({"error": msg, "error_type": ErrorType.validation.value}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        try:
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # an answer is under way already
            _LOGGER.debug("a request broke off")
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
