"""What the server bears, at the stated counts; writes benchmarks/results/prove-serve-PART.json.

    python -m benchmarks.serve_proof runs/ag_news --data PATH/TO/ag_news        (about half an hour; --quick: a minute)
    python -m benchmarks.serve_proof runs/ag_news --data PATH/TO/ag_news --only soak

A part that does not hold raises, and writes nothing.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from threading import Event, Thread
from typing import Annotated

import typer

from adapler.classifier import Classifier
from adapler.client import Client
from adapler.config import build_config
from adapler.data.load import read_split
from adapler.data.text import Text
from adapler.records import Record, write_records
from benchmarks.serve_fuzz import described_cases, heavy_bodies, mutated_bodies
from benchmarks.serve_load import Connection, Running, closed_loop, open_loop, request, run, running, served

RESULTS = Path(__file__).parent / "results"
TEXTS_A_REQUEST = 8
CONCURRENT = 64
MEMORY = 1.05
"""How much of what it had settled at a server may take."""


class Part(StrEnum):
    """What there is to prove."""

    fuzz = "fuzz"
    overload = "overload"
    clients = "clients"
    kill = "kill"
    equality = "equality"
    soak = "soak"


def main(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder.")],
    data: Annotated[str | None, typer.Option(help="Texts to send: folder of splits, or a labelled file.")] = None,
    split: Annotated[str, typer.Option(help="Split to take texts from.")] = "test",
    only: Annotated[Part | None, typer.Option(help="One part; by default all but the soak.")] = None,
    seconds: Annotated[float, typer.Option(help="Of the soak.")] = 1800.0,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny counts, nothing written: does it work?")] = False,
) -> None:
    """Prove, print, write."""
    texts = made_up(2000) if data is None else texts_of(model, data, split)
    share = 0.01 if quick else 1.0
    parts: dict[Part, Callable[[], list[Record]]] = {
        Part.fuzz: lambda: fuzz(model, round(20_000 * share), round(5_000 * share)),
        Part.overload: lambda: overload(model, texts, 4.0 if quick else 120.0),
        Part.clients: lambda: clients(model, round(1_000 * share)),
        Part.kill: lambda: kill(model, texts, 2 if quick else 10),
        Part.equality: lambda: equality(model, texts[: max(40, round(1_000 * share))]),
        Part.soak: lambda: soak(model, texts, 4.0 if quick else seconds),
    }
    for part in [only] if only else [each for each in Part if each is not Part.soak or quick]:
        records = parts[part]()
        for record in records:
            typer.echo(f"{record.variant}: {record.n} cases, {record.value:g} {record.unit} {json.dumps(record.config)}")
        if not quick:
            write_records(RESULTS / f"prove-serve-{part}.json", records)


def texts_of(model: str, data: str, split: str) -> Sequence[Text]:
    """A data set's."""
    labels = Classifier.from_pretrained(model).labels
    return read_split(build_config({"data": {"source": data}}).data, split, labels)[0].texts


def made_up(count: int) -> list[Text]:
    """Texts of common words."""
    draw = random.Random(0)
    words = [
        "the",
        "a",
        "film",
        "story",
        "good",
        "bad",
        "of",
        "and",
        "in",
        "people",
        "world",
        "new",
        "market",
        "game",
        "team",
        "science",
        "price",
        "week",
        "year",
        "most",
    ]
    return [" ".join(draw.choices(words, k=draw.randint(3, 60))) for _ in range(count)]


def fuzz(model: str, cases: int, mutations: int) -> list[Record]:
    """No server error but a provoked 504, no hang, every answer as described."""
    with running(served(model)) as server:
        seen = described_cases(server.url, cases)
        changed = mutated_bodies(server.url, mutations)
        heavy, slowest = heavy_bodies(server.url)
    made = sum(seen[kind] for kind in ("well-formed", "malformed", "other routes"))
    must(made >= cases and seen["well-formed"] >= cases / 2, f"only {made} of {cases} cases were made: {seen}")
    return [
        proof("server: cases from its description", made, 0, "server errors", dict(seen)),
        proof("server: mutated bodies", sum(changed.values()), 0, "server errors", dict(changed)),
        proof(
            "server: large bodies of very many small things",
            sum(heavy.values()),
            0,
            "server errors",
            {**heavy, "health_meanwhile_ms": round(1000 * slowest)},
        ),
    ]


def overload(model: str, texts: Sequence[Text], seconds: float) -> list[Record]:
    """Ten times what it can do: only 200 and 429, bounded waiting, flat memory, and at once well again."""
    asked = requests_of(texts)
    with running(served(model, "--max-concurrent-requests", str(CONCURRENT))) as server:
        run(closed_loop(server.port, asked, 8, seconds / 8))  # warm
        capacity = run(closed_loop(server.port, asked, CONCURRENT, seconds / 6)).rate
        memory = Memory(server)
        seen, sent = run(open_loop(server.port, asked, 10 * capacity, seconds))
        most = memory.stop()
        begin = time.monotonic()
        with Client(server.url, retries=0) as client:
            client.predict("a lone text")
        recovery = time.monotonic() - begin
    bound, worst = CONCURRENT / capacity, seen.quantile(0.99)
    must(set(seen.statuses) == {200, 429}, f"statuses {dict(seen.statuses)}")
    must(seen.without_retry_after == 0, f"{seen.without_retry_after} refusals without Retry-After")
    must(worst <= 2 * bound, f"p99 {worst:.2f} s is over twice the bound {bound:.2f} s")
    must(most.growth <= MEMORY or seconds < 60, f"memory grew {most.growth:.3f}x")
    must(recovery < 1.0, f"recovery took {recovery:.2f} s")
    told = {
        "answered": seen.statuses[200],
        "refused": seen.statuses[429],
        "capacity_per_second": round(capacity, 1),
        "offered": round(sent / seen.elapsed / capacity, 1),
        "p99_ms": round(1000 * worst),
        "queue_bound_ms": round(1000 * bound),
        "memory_growth": round(most.growth, 4),
        "recovery_ms": round(1000 * recovery),
    }
    return [proof("server: ten times its capacity", sent, 0, "answers but 200 and 429", told)]


def clients(model: str, count: int) -> list[Record]:
    """Clients that abort, and clients that say half of what they want: nothing of them stays."""
    with running(served(model, "--client-timeout", "2")) as server:
        with Client(server.url) as client:
            client.predict(["a text"] * 64)
            files, memory = server.files(), server.mebibytes()
            whole = request({"inputs": "a text that nobody waits for"})
            for _ in range(count):
                with socket.create_connection(("127.0.0.1", server.port), timeout=10) as gone:
                    gone.sendall(whole)
            half = []
            for _ in range(count):
                half.append(socket.create_connection(("127.0.0.1", server.port), timeout=10))
                half[-1].sendall(whole[:40])
            begin = time.monotonic()
            client.predict("meanwhile")
            meanwhile = time.monotonic() - begin
            end = time.monotonic() + 60
            while server.files() > files + 2 and time.monotonic() < end:
                time.sleep(0.1)
            left = server.files() - files
            for each in half:
                each.close()
            must(left <= 2, f"{left} files stayed open")
            must(client.predict("afterwards").label != "", "no answer afterwards")
        growth = server.mebibytes() / memory
    told = {"files_left": max(0, left), "answer_meanwhile_ms": round(1000 * meanwhile), "memory_growth": round(growth, 4)}
    return [proof("server: aborted and half-open connections", 2 * count, 0, "connections left", told)]


def kill(model: str, texts: Sequence[Text], times: int) -> list[Record]:
    """kill -9: what was answered was whole, only what was under way is lost, and the next process answers."""
    asked, concurrent = requests_of(texts), 8
    lost = answered = 0
    for _ in range(times):
        with running(served(model)) as server:

            async def until_killed(server: Running) -> tuple[int, int]:
                whole = cut = 0

                async def client(number: int) -> None:
                    nonlocal whole, cut
                    connection = Connection(server.port)
                    with suppress(ConnectionError):
                        while True:
                            try:
                                status, _, body = await connection.ask(asked[number % len(asked)])
                            except asyncio.IncompleteReadError:
                                cut += 1
                                return
                            must(status == 200 and len(json.loads(body)) == TEXTS_A_REQUEST, "an answer was not whole")
                            whole += 1
                    cut += 1

                started = [asyncio.create_task(client(number)) for number in range(concurrent)]
                await asyncio.sleep(1.0)
                server.process.send_signal(signal.SIGKILL)
                await asyncio.gather(*started)
                return whole, cut

            whole, cut = run(until_killed(server))
            answered, lost = answered + whole, lost + cut
            must(cut <= concurrent, f"{cut} lost, {concurrent} were under way")
    told = {"answered": answered, "under_way_and_lost": lost}
    return [proof("server: kill -9", times, 0, "answered requests lost", told)]


def equality(model: str, texts: Sequence[Text]) -> list[Record]:
    """The same label as `Classifier` gives, whatever batch a text travelled in, at every operating point."""
    classifier = Classifier.from_pretrained(model)
    points = [None, *(point.name for point in (classifier.dial.points if classifier.dial else ()))]
    draw = random.Random(1)
    groups, rest = [], list(texts)
    while rest:
        size = draw.randint(1, 16)
        groups.append((rest[:size], draw.choice(points)))
        rest = rest[size:]
    bodies = [
        request({"inputs": [[t] if isinstance(t, str) else list(t) for t in some], **({"point": name} if name else {})})
        for some, name in groups
    ]

    async def asked(port: int) -> list[bytes]:
        room = asyncio.Semaphore(32)

        async def one(raw: bytes) -> bytes:
            async with room:
                connection = Connection(port)
                _, _, body = await connection.ask(raw)
                connection.close()
                return body

        return await asyncio.gather(*map(one, bodies))

    with running(served(model)) as server:
        answers = [json.loads(body) for body in run(asked(server.port))]
    same, furthest = 0, 0.0
    for (some, name), rows in zip(groups, answers, strict=True):
        for row, expected in zip(rows, classifier(some, point=name), strict=True):
            same += row[0]["label"] == expected.label
            furthest = max(furthest, *(abs(each["score"] - expected.scores[each["label"]]) for each in row))
    must(same == len(texts), f"{len(texts) - same} labels differ")
    told = {"requests": len(groups), "points": len(points), "furthest_score": furthest}
    return [proof("server: answers as Classifier's", len(texts), 100 * same / len(texts), "% of labels the same", told)]


def soak(model: str, texts: Sequence[Text], seconds: float) -> list[Record]:
    """A long time under steady load: memory and files as they were."""
    asked = requests_of(texts)
    with running(served(model)) as server:
        run(closed_loop(server.port, asked, 4, seconds / 10))
        files, memory = server.files(), Memory(server)
        seen = run(closed_loop(server.port, asked, 4, seconds))
        most = memory.stop()
        time.sleep(0.2)
        left = server.files() - files
    must(set(seen.statuses) == {200}, f"statuses {dict(seen.statuses)}")
    must(left <= 0, f"{left} files stayed open")
    must(most.growth <= MEMORY or seconds < 60, f"memory grew {most.growth:.3f}x: {most.tenths()} MiB")
    told = {
        "requests": seen.statuses[200],
        "minutes": round(seconds / 60, 1),
        "p50_ms": round(1000 * seen.quantile(0.5), 1),
        "p99_ms": round(1000 * seen.quantile(0.99), 1),
        "memory_mib": round(most.settled),
        "memory_growth": round(most.growth, 4),
        "memory_mib_by_tenth": most.tenths(),
    }
    return [proof("server: soak", seen.statuses[200], 0, "failures", told)]


class Memory(Thread):
    """Watches a server's memory; `settled` is what it had after the first fifth of the samples."""

    def __init__(self, server: Running) -> None:
        super().__init__(daemon=True)
        self._server, self._over, self._samples = server, Event(), [server.mebibytes()]
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.25):
            with suppress(OSError):
                self._samples.append(self._server.mebibytes())

    def stop(self) -> Memory:
        """End; the figures are then final."""
        self._over.set()
        self.join()
        return self

    @property
    def settled(self) -> float:
        return max(self._samples[: max(1, len(self._samples) // 5)])

    @property
    def growth(self) -> float:
        """The most seen after, over it."""
        return max(self._samples) / self.settled

    def tenths(self) -> list[int]:
        """The most seen in each tenth of the time: where it rises to the end, it would go on."""
        size = max(1, len(self._samples) // 10)
        return [round(max(self._samples[first : first + size])) for first in range(0, len(self._samples), size)][:10]


def requests_of(texts: Sequence[Text]) -> list[bytes]:
    """Batches of texts in their order, as requests."""
    items = [[text] if isinstance(text, str) else list(text) for text in texts]
    whole = len(items) - len(items) % TEXTS_A_REQUEST
    return [request({"inputs": items[first : first + TEXTS_A_REQUEST]}) for first in range(0, whole, TEXTS_A_REQUEST)]


def proof(variant: str, n: int, value: float, unit: str, told: Mapping[str, object]) -> Record:
    return Record(kind="prove", variant=variant, n=n, value=value, unit=unit, config=dict(told))


def must(holds: bool, otherwise: str) -> None:
    """The point of it all."""
    if not holds:
        raise AssertionError(otherwise)


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()
