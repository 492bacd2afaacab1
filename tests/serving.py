"""A real server on a free port, in a thread of the test's own process, so that tests can slow its model down."""

from __future__ import annotations

import gc
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from adapler.classifier import Classifier
from adapler.points import Dial, Point
from adapler.serve.app import create_app
from adapler.serve.limits import Limits
from adapler.serve.run import listen, make_server
from adapler.serve.service import Service

SECONDS = 30.0  # what takes longer hangs
JSON = {"content-type": "application/json"}


def made_up_dial(*points: tuple[str, float, float, float]) -> Dial:
    """Operating points that nobody measured: name, scale, loss, speedup."""
    made = [
        Point(name=name, scale=scale, score=0.9, loss_points=loss, flops_speedup=speedup, flops_speedup_executed=speedup)
        for name, scale, loss, speedup in points
    ]
    return Dial(data="made up", n=10, metric="accuracy", reference="itself", reference_score=0.9, points=tuple(made))


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    content: Any


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    port: int
    service: Service

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = JSON) -> Reply:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            raw = response.read()
        finally:
            connection.close()
        found = {name.lower(): value for name, value in response.getheaders()}
        content = json.loads(raw) if found.get("content-type") == "application/json" else raw
        return Reply(response.status, found, content)

    def predict(self, body: object, path: str = "/predict") -> Reply:
        return self.ask("POST", path, json.dumps(body).encode())

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)


@contextmanager
def serving(
    classifier: Classifier, limits: Limits | None = None, *, key: str | None = None, log_texts: bool = False
) -> Iterator[Served]:
    """Serve until the block ends."""
    limits = limits or Limits()
    service = Service(classifier, limits)
    server = make_server(create_app(service, name="tiny", key=key, log_texts=log_texts), limits, 5)
    gc.freeze()  # to look through all that tests have loaded takes up to a second, which a server here may not have
    with listen("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield Served(bound.getsockname()[1], service)
        finally:
            server.should_exit = True
            thread.join(SECONDS)
            service.close(SECONDS)
            gc.unfreeze()
        assert not thread.is_alive()


@contextmanager
def slowed(classifier: Classifier, seconds: float) -> Iterator[list[int]]:
    """Every batch takes so much longer; gives the number of texts of each batch that ran."""
    answers, sizes = classifier.answers, []

    def slow(parts: Any, how: Any) -> Any:
        sizes.append(len(parts))
        time.sleep(seconds)
        return answers(parts, how)

    classifier.answers = slow  # type: ignore[method-assign]
    try:
        yield sizes
    finally:
        del classifier.answers


def wait_until(true: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Fail where it does not come true in time."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)
