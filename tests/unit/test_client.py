"""The client by itself, against servers that behave badly on purpose: what it sends again, and what it must not."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from adapler.client import AsyncClient, Client
from adapler.errors import ServerRefused

SCORES = b'[{"label": "a", "score": 1.0}]'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(SCORES), SCORES)
Behaviour = Callable[[socket.socket, int], None]
"""What is done on a connection with its request of this number, counted from 1 over all connections."""


@dataclass
class Scripted:
    """A server that follows a script, one connection at a time."""

    behave: Behaviour
    listening: socket.socket
    requests: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listening.getsockname()[1]}"

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:  # the end of the test
                return
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection:
            while read(connection):
                self.requests += 1
                self.behave(connection, self.requests)
                if connection.fileno() == -1:
                    return


def read(connection: socket.socket) -> bool:
    """One request to its end; False where there is none."""
    got = b""
    while b"\r\n\r\n" not in got:
        chunk = connection.recv(4096)
        if not chunk:
            return False
        got += chunk
    head, _, body = got.partition(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    while len(body) < length:
        body += connection.recv(4096)
    return True


@contextmanager
def scripted(behave: Behaviour) -> Iterator[Scripted]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Scripted(behave, listening)
        threading.Thread(target=server.run, daemon=True).start()
        try:
            yield server
        finally:
            listening.shutdown(socket.SHUT_RDWR)


def answers_once_then(then: Behaviour) -> Behaviour:
    return lambda connection, number: connection.sendall(ANSWER) if number == 1 else then(connection, number)


def dawdles(connection: socket.socket, number: int) -> None:
    time.sleep(1.0)  # longer than the client waits, twice


def broken_off(connection: socket.socket, number: int) -> None:
    connection.sendall(ANSWER[:-10])
    connection.close()


def test_a_request_whose_time_ran_out_is_not_sent_twice() -> None:
    with scripted(answers_once_then(dawdles)) as server, Client(server.url, timeout=0.3) as client:
        client.predict("a film")  # now there is a kept connection
        with pytest.raises(ServerRefused, match="TimeoutError"):
            client.predict("a film")
    assert server.requests == 2


def test_nor_by_the_client_for_asyncio() -> None:
    async def asked(url: str) -> None:
        async with AsyncClient(url, timeout=0.3, connections=1) as client:
            await client.predict("a film")
            with pytest.raises(ServerRefused, match="TimeoutError"):
                await client.predict("a film")

    with scripted(answers_once_then(dawdles)) as server:
        asyncio.run(asked(server.url))
    assert server.requests == 2


def test_nor_is_one_whose_answer_broke_off() -> None:
    with scripted(answers_once_then(broken_off)) as server, Client(server.url) as client:
        client.predict("a film")
        with pytest.raises(ServerRefused, match="IncompleteRead"):
            client.predict("a film")
    assert server.requests == 2


def test_a_kept_connection_that_was_closed_is_made_anew() -> None:
    def closes(connection: socket.socket, number: int) -> None:
        if number == 2:
            connection.close()
        else:
            connection.sendall(ANSWER)

    with scripted(closes) as server, Client(server.url) as client:
        assert [client.predict("a film").label for _ in range(3)] == ["a"] * 3
    assert server.requests == 4


def test_a_new_connection_that_is_closed_is_an_error() -> None:
    with (
        scripted(lambda connection, number: connection.close()) as server,
        Client(server.url) as client,
        pytest.raises(ServerRefused, match="does not answer"),
    ):
        client.predict("a film")
    assert server.requests == 1
