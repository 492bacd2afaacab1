"""What a server bears: floods, clients that hang up or dawdle, time running out, its own end."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any

import pytest

from adapler.classifier import Classifier
from adapler.client import AsyncClient, Client, Scored
from adapler.data.text import Text
from adapler.errors import BadConfig, BadInput, ServerRefused
from adapler.serve.limits import Limits
from adapler.serve.reading import read_request
from adapler.serve.service import Service
from tests.serving import JSON, Served, serving, slowed, wait_until
from tests.tiny import tiny_classifier, tiny_texts

SECRET = "xyzzy plugh"  # a text nobody may read in a log
STARTING = 120  # seconds; the machine may be busy


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return tiny_classifier(eta=0.5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, classifier: Classifier) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    classifier.save_pretrained(folder)
    return folder


def request_bytes(body: object) -> bytes:
    content = json.dumps(body).encode()
    return b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(
        content
    ) + content  # fmt: skip


def test_a_flood_gets_429_with_when_to_come_back_and_then_all_is_well(classifier: Classifier) -> None:
    limits = Limits(max_concurrent_requests=4, max_batch_tokens=64)
    with serving(classifier, limits) as server, slowed(classifier, 0.15):
        with ThreadPoolExecutor(40) as pool:
            replies = list(pool.map(lambda text: server.predict({"inputs": text}), ["a good film"] * 40))
        statuses = [reply.status for reply in replies]
        assert set(statuses) == {200, 429}
        refused = [reply for reply in replies if reply.status == 429]
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
        assert refused[0].content == {"error": "Model is overloaded", "error_type": "Overloaded"}
        begin = time.monotonic()
        assert server.predict({"inputs": "a good film"}).status == 200
        assert time.monotonic() - begin < 1.0


def test_who_is_refused_at_the_head_may_ask_again_on_the_same_connection(classifier: Classifier) -> None:
    limits = Limits(max_concurrent_requests=1)
    with (
        serving(classifier, limits, key="k") as server,
        slowed(classifier, 0.5),
        Client(server.url, key="k") as busy,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(busy.predict, "a good film")
        wait_until(lambda: server.service._admitted == 1)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        body, known = json.dumps({"inputs": "a film " * 2000}), {**JSON, "authorization": "Bearer k"}

        def asked(path: str, headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
            connection.request("POST", path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

        refused = 429, {"error": "Model is overloaded", "error_type": "Overloaded"}
        assert asked("/predict", known) == asked("/?a=b", known) == refused
        assert asked("/predict", JSON)[0] == 401  # strangers do not hear how busy it is
        assert asked("/nowhere", known)[0] == 404
        connection.request("GET", "/metrics", headers=known)
        counted = connection.getresponse().read().decode()
        assert 'adapler_request_failure_total{err="overloaded"} 2.0' in counted
        assert first.result().label
        assert asked("/predict", known)[0] == 200
        connection.close()


def test_what_would_wait_too_long_is_refused_at_once(classifier: Classifier) -> None:
    """Rather than let it run into its time limit."""
    with serving(classifier, Limits(request_timeout=1.0, max_batch_tokens=16)) as server, slowed(classifier, 0.2):
        server.predict({"inputs": "a good film"})  # now its speed is known
        with ThreadPoolExecutor(30) as pool:
            statuses = list(pool.map(lambda text: server.predict({"inputs": text}).status, ["a good film"] * 30))
    assert set(statuses) == {200, 429}


def test_time_that_runs_out_is_504_and_costs_nothing_more(classifier: Classifier) -> None:
    with serving(classifier, Limits(request_timeout=0.3)) as server:
        with slowed(classifier, 0.8) as sizes:
            with ThreadPoolExecutor(5) as pool:
                first = pool.submit(server.predict, {"inputs": "a good film"})
                wait_until(lambda: len(sizes) == 1)
                others = list(pool.map(lambda text: server.predict({"inputs": text}), ["a good film"] * 4))
            replies = [first.result(), *others]
            assert {reply.status for reply in replies} == {504}
            assert replies[0].content["error_type"] == "Timeout"
            wait_until(lambda: server.service.batcher.waiting == 0)
        wait_until(lambda: server.predict({"inputs": "a"}).status == 200)
        assert sum(sizes) < 5  # those still in line were never run


def check_hang_ups_cost_nothing(classifier: Classifier) -> None:
    with serving(classifier) as server, slowed(classifier, 0.5) as sizes:
        first = Thread(target=server.predict, args=({"inputs": "a good film"},))
        first.start()
        wait_until(lambda: len(sizes) == 1)
        gone = [server.connect() for _ in range(20)]
        for each in gone:
            each.sendall(request_bytes({"inputs": [["bad"], ["worse"]]}))
        wait_until(lambda: server.service.batcher.waiting == 20)
        for each in gone:
            each.close()
        wait_until(lambda: server.service.batcher.waiting == 0, 0.45)
        first.join()
        assert server.predict({"inputs": "a good film"}).status == 200
        assert sizes == [1, 1]
        wait_until(lambda: server.service._admitted == 0)
        assert "adapler_request_dropped_total 20.0" in server.ask("GET", "/metrics").content.decode()


def test_clients_that_hang_up_are_dropped_before_they_cost_anything(classifier: Classifier) -> None:
    check_hang_ups_cost_nothing(classifier)


def test_running_for_nobody_would_be_noticed(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    async def regardless(request: object, work: object) -> object:
        return await work  # type: ignore[misc]

    monkeypatch.setattr("adapler.serve.app.while_connected", regardless)
    with pytest.raises(AssertionError):
        check_hang_ups_cost_nothing(classifier)


def closed_by_server(each: socket.socket) -> bool:
    each.settimeout(0.01)
    try:
        return not any(iter(lambda: each.recv(65536), b""))
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_dawdling_connections_are_ended_and_nobody_else_notices(classifier: Classifier) -> None:
    with serving(classifier, Limits(client_timeout=0.5)) as server:
        silent = [server.connect() for _ in range(50)]
        half = [server.connect() for _ in range(50)]
        for each in half:
            each.sendall(b"POST /predict HTTP/1.1\r\nhost: a\r\n")
        assert server.predict({"inputs": "a good film"}).status == 200
        for each in [*silent, *half]:
            wait_until(lambda each=each: closed_by_server(each), 5)  # type: ignore[misc]
            each.close()
        slow = server.connect()
        slow.sendall(b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{")
        answer = b"".join(iter(lambda: slow.recv(4096), b""))
        slow.close()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error_type"] == "Timeout"
        assert server.service._admitted == 0
        assert server.predict({"inputs": "a good film"}).status == 200


def test_one_large_request_lets_others_through(classifier: Classifier) -> None:
    limits = Limits(max_client_batch_size=2, max_batch_tokens=32)
    with serving(classifier, limits) as server, slowed(classifier, 0.05), ThreadPoolExecutor(1) as pool:
        large = pool.submit(server.predict, {"inputs": [["a good film"]] * 60})
        wait_until(lambda: server.service._admitted == 1)
        begin = time.monotonic()
        assert server.predict({"inputs": "a good film"}).status == 200
        assert time.monotonic() - begin < 1.0 and not large.done()
        assert len(large.result().content) == 60


def test_a_large_body_is_read_while_others_are_answered(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    large, small, answered = Event(), Event(), Event()

    def watched(body: bytes, limits: Limits) -> Any:
        on_the_loop = not current_thread().name.startswith("adapler-tokens")
        if len(body) > 10_000:
            large.set()
            assert on_the_loop or answered.wait(30), "nobody was answered meanwhile"
            assert not on_the_loop
        elif on_the_loop:
            small.set()
        return read_request(body, limits)

    monkeypatch.setattr("adapler.serve.service.read_request", watched)
    with serving(classifier) as server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.predict, {"inputs": [["a good film"]] * 1000})
        assert large.wait(30)
        assert server.ask("GET", "/health").status == 200
        assert server.predict({"inputs": "a good film"}).status == 200
        answered.set()
        assert len(waiting.result().content) == 1000
    assert small.is_set(), "to hand a short one to another thread takes longer than to read it"


def test_what_is_being_read_counts_as_a_request(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise any number of large bodies could wait to be read."""
    over = Event()

    def held(body: bytes, limits: Limits) -> Any:
        assert over.wait(30)
        return read_request(body, limits)

    monkeypatch.setattr("adapler.serve.service.read_request", held)
    with serving(classifier, Limits(max_concurrent_requests=2)) as server, ThreadPoolExecutor(2) as pool:
        large = {"inputs": "a good film", "unknown": "a" * 10_000}
        waiting = [pool.submit(server.predict, large) for _ in range(2)]
        wait_until(lambda: server.service._admitted == 2)
        assert server.predict(large).status == 429
        over.set()
        assert [each.result().status for each in waiting] == [200, 200]


def test_the_key_guards_all_but_health_and_the_page(classifier: Classifier) -> None:
    with serving(classifier, key="open sesame".replace(" ", "-")) as server:
        for path in ("/predict", "/explain", "/", "/invocations"):
            for headers in (JSON, {**JSON, "authorization": "Bearer wrong"}, {**JSON, "authorization": "open-sesame"}):
                reply = server.ask("POST", path, b'{"inputs": "a"}', headers)
                assert (reply.status, reply.content["error_type"]) == (401, "Unauthorized")
                assert reply.headers["www-authenticate"] == "Bearer"
        for path in ("/info", "/metrics", "/docs", "/openapi.json", "/", "/nothing"):
            assert server.ask("GET", path).status == 401
        for path in ("/health", "/ping"):
            assert server.ask("GET", path).status == 200
        assert server.ask("GET", "/ui").status == 200
        with Client(server.url, key="open-sesame") as client:
            assert client.predict("a good film").label in classifier.labels
            assert client.info()["model_id"] == "tiny"
        with Client(server.url, key="wrong") as client, pytest.raises(ServerRefused, match="401") as caught:
            client.info()
        assert (caught.value.status, caught.value.error_type) == (401, "Unauthorized")


def test_nothing_is_shared_across_origins(classifier: Classifier) -> None:
    with serving(classifier) as server:
        asked = {"origin": "http://elsewhere", "access-control-request-method": "POST"}
        preflight = server.ask("OPTIONS", "/predict", None, asked)
        assert preflight.status == 405
        answered = server.ask("POST", "/predict", b'{"inputs": "a"}', {**JSON, "origin": "http://elsewhere"})
    assert not [name for reply in (preflight, answered) for name in reply.headers if name.startswith("access-control")]


def test_clients_give_what_the_classifier_says(classifier: Classifier) -> None:
    texts: list[Text] = [*tiny_texts(20, seed=4), ("a good film", "a bad story")]
    expected = classifier(texts)

    async def asked(url: str) -> tuple[list[Scored], dict[str, Any], dict[str, Any]]:
        async with AsyncClient(url, batch=4) as client:
            assert await client.healthy()
            scored = [await client.predict(texts[0]), *await client.predict(texts)]
            return scored, await client.explain(texts[0]), await client.info()

    with serving(classifier) as server:
        with Client(server.url, batch=6) as client:
            assert client.healthy()
            found = client.predict(texts)
            one = client.predict(texts[-1])
            assert client.explain(texts[:2])[1]["tokens"] == expected[1].tokens
            with pytest.raises(ServerRefused, match="no operating points") as caught:
                client.predict("a", point="fast")
            assert caught.value.status == 422
            with pytest.raises(BadInput):
                client.predict([1])  # type: ignore[list-item]
        together = asyncio.run(asked(server.url))
    answers = [*found, one, *together[0]]
    for answer, prediction in zip(answers, [*expected, expected[-1], expected[0], *expected], strict=True):
        assert answer.label == prediction.label
        assert answer.scores == pytest.approx(prediction.scores, abs=1e-5)
    assert together[1]["tokens"] == expected[0].tokens
    assert together[2]["model_id"] == "tiny"
    with Client(server.url) as client:
        assert not client.healthy()
        with pytest.raises(ServerRefused, match="does not answer"):
            client.predict("a")
    with pytest.raises(BadConfig, match="expected an address"):
        Client("localhost:8080")


def test_a_client_comes_back_after_429(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    with serving(classifier, Limits(max_concurrent_requests=1)) as server, Client(server.url) as client:

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            server.service._admitted = 0

        monkeypatch.setattr("adapler.client.time.sleep", sleep)
        server.service._admitted = 1
        assert client.predict("a good film").label in classifier.labels
    assert waits == [1.0]


@pytest.fixture
def process(model: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Served, Path]]:
    """`adapler serve` as a user starts it, in the model's folder; the log it writes."""
    log = tmp_path / "log.jsonl"
    command = [sys.executable, "-m", "adapler", "serve", ".", "--port", "0", "--max-client-batch-size", "4"]
    with log.open("wb") as stream:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MAX_BATCH_TOKENS": "512"}
        started = subprocess.Popen(command, stderr=stream, env=environment, cwd=model)
    try:
        wait_until(lambda: '"serving"' in log.read_text(), STARTING)
        told = next(json.loads(line) for line in log.read_text().splitlines() if '"serving"' in line)
        server = Served(told["port"], None)  # type: ignore[arg-type]
        wait_until(lambda: "startup complete" in log.read_text())
        yield started, server, log
    finally:
        started.kill()
        started.wait()


def test_sigterm_drains_and_leaves_with_0_and_logs_hold_no_text(
    process: tuple[subprocess.Popen[bytes], Served, Path],
) -> None:
    started, server, log = process
    info = server.ask("GET", "/info").content
    assert info["max_batch_tokens"] == 512  # out of the environment
    assert info["model_id"] == info["served_model_name"] == "tiny"
    server.predict({"inputs": SECRET})
    server.predict({"inputs": SECRET, "point": SECRET})
    server.ask("GET", f"/{SECRET.split()[0]}?q={SECRET.split()[1]}")
    server.ask("POST", "/predict", SECRET.encode())
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(server.predict, {"inputs": [[SECRET]] * 1200})
        wait_until(lambda: b'adapler_request_count_total{method="batch"} 1.0' in server.ask("GET", "/metrics").content)
        started.send_signal(signal.SIGTERM)
        reply = under_way.result()
    assert started.wait(STARTING) == 0
    assert reply.status == 200 and len(reply.content) == 1200
    written = log.read_text()
    assert [word for word in SECRET.split() if word in written] == []
    lines = [json.loads(line) for line in written.splitlines()]
    assert lines[-1]["message"] == "stopped"
    assert next(line["model"] for line in lines if line["message"] == "serving") == "tiny"
    assert {"method": "POST", "path": "/predict", "status": 200, "tokens": 12}.items() <= next(
        {**line, "tokens": 12} for line in lines if line.get("texts") == 1
    ).items()
    with pytest.raises(ConnectionRefusedError):
        server.connect()


def test_a_planted_leak_of_text_would_be_noticed(classifier: Classifier, capfd: pytest.CaptureFixture[str]) -> None:
    from adapler.serve.logs import to_standard_error

    to_standard_error(texts=True)
    with serving(classifier, log_texts=True) as server:
        server.predict({"inputs": SECRET})
    assert SECRET in capfd.readouterr().err


def test_what_a_server_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from adapler.errors import MissingExtra
    from adapler.serve import run

    monkeypatch.setattr("adapler.serve.run.importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'adapler\[serve\]'"):
        run.check_extra()


def test_memory_is_given_back_now_and_then(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr("adapler.serve.service.give_back", lambda: given.append(1))
    monkeypatch.setattr("adapler.serve.service._GIVE_BACK_TEXTS", 3)
    with serving(classifier) as server:
        for _ in range(6):
            server.predict({"inputs": "a"})
        wait_until(lambda: len(given) == 2)
    assert isinstance(server.service, Service)
