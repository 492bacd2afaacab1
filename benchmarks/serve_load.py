"""A server in a process of its own, and load on it from this one, over loopback; plain sockets, which cost little."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

STARTING = 180.0
IDLE = 5.0
"""Seconds after which a kept connection is not used again: servers close idle ones, and the next request would be lost."""
_LOST = (ConnectionError, asyncio.IncompleteReadError, OSError)


def run(load: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, in a loop that costs clients as little as may be: they share the server's cores."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(load)


@dataclass(frozen=True)
class Running:
    """A server's process."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def mebibytes(self) -> float:
        """Of memory that is its own."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def files(self) -> int:
        """How many it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))  # noqa: PTH208 (links that may be gone when looked at)


@contextmanager
def running(command: Sequence[str], *, says: str = '"serving"', port: int | None = None) -> Iterator[Running]:
    """A server that is up. Its log tells the port, where none is given; it is stopped by SIGTERM, or as it was."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as stream:
            process = subprocess.Popen(command, stderr=stream, stdout=stream)
        try:
            end = time.monotonic() + STARTING
            while says not in log.read_text() or not (port or _port(log)) or not _listens(port or _port(log)):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the server did not come up:\n{log.read_text()[-2000:]}")
                time.sleep(0.05)
            yield Running(port or _port(log), process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def served(model: str, *options: str) -> list[str]:
    """The command of a server of ours."""
    return [sys.executable, "-m", "adapler", "serve", model, "--port", "0", *options]


def request(body: object, path: str = "/predict") -> bytes:
    """A request as it goes over the wire."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: loopback\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


@dataclass
class Seen:
    """What clients met."""

    statuses: Counter[int] = field(default_factory=Counter)
    """0 for connections that were lost."""
    seconds: list[float] = field(default_factory=list)
    """Of every answer with 200."""
    without_retry_after: int = 0
    elapsed: float = 0.0

    @property
    def rate(self) -> float:
        """Answers with 200 a second."""
        return self.statuses[200] / self.elapsed

    def quantile(self, share: float) -> float:
        """Of the answers' seconds."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Connection:
    """A kept connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used = 0.0

    async def ask(self, raw: bytes) -> tuple[int, bytes, bytes]:
        """Status, head and body; a connection that is lost is opened anew by the next."""
        if time.monotonic() > self._used + IDLE:
            self.close()
        self._used = time.monotonic()
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        try:
            writer.write(raw)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            body = await reader.readexactly(length)
        except _LOST:
            self.close()
            raise
        if b"connection: close" in head:
            self.close()
        return int(head[9:12]), head, body

    def close(self) -> None:
        """Let it go."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def closed_loop(port: int, requests: Sequence[bytes], clients: int, seconds: float, most: int | None = None) -> Seen:
    """So many clients, each of which asks again when it has its answer."""
    seen, numbers = Seen(), itertools.count()
    begin = time.monotonic()

    async def client() -> None:
        connection = Connection(port)
        while time.monotonic() < begin + seconds:
            number = next(numbers)
            if most is not None and number >= most:
                break
            await _ask(connection, requests[number % len(requests)], seen)
        connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    seen.elapsed = time.monotonic() - begin
    return seen


async def open_loop(
    port: int, requests: Sequence[bytes], rate: float, seconds: float, most_open: int = 2000
) -> tuple[Seen, int]:
    """So many requests a second, whether or not earlier ones are answered; also how many there were."""
    seen, idle, under_way = Seen(), list[Connection](), set[asyncio.Task[None]]()
    begin, sent = time.monotonic(), 0

    async def one(raw: bytes) -> None:
        connection = idle.pop() if idle else Connection(port)
        await _ask(connection, raw, seen)
        idle.append(connection)

    while (now := time.monotonic() - begin) < seconds:
        while sent < now * rate and len(under_way) < most_open:
            task = asyncio.create_task(one(requests[sent % len(requests)]))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            sent += 1
        await asyncio.sleep(0.002)
    seen.elapsed = time.monotonic() - begin
    if under_way:
        await asyncio.wait(under_way, timeout=60)
    for connection in idle:
        connection.close()
    return seen, sent


async def _ask(connection: Connection, raw: bytes, seen: Seen) -> None:
    begin = time.perf_counter()
    try:
        status, head, _ = await connection.ask(raw)
    except _LOST:
        seen.statuses[0] += 1
        await asyncio.sleep(0.01)
        return
    seen.statuses[status] += 1
    if status == 200:
        seen.seconds.append(time.perf_counter() - begin)
    elif status == 429:
        seen.without_retry_after += b"retry-after:" not in head


def _port(log: Path) -> int:
    for line in log.read_text().splitlines():
        with suppress(ValueError, KeyError, TypeError):
            return int(json.loads(line)["port"])
    return 0


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
