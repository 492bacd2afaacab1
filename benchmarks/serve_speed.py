"""How fast the server is: requests a second beside the same server at full length and beside a plain one, and what it adds.

    python -m benchmarks.serve_speed runs/ag_news --data PATH/TO/ag_news --max-loss 1.0 --exported runs/ag_news-int8

Throughput: closed loops of clients on the data's own texts, one and eight texts a request, the contenders in turns, best of
the numbers of clients tried; each against the same server at full length. The plain server is FastAPI around transformers'
pipeline, one text at a time, as many write it. Overhead: one client, one text after the other, through the server and through
`Classifier` in this process, in turns. Sizing: texts of exact lengths. Writes benchmarks/results/serve-TASK.json. The clients
run on the same cores; the machine should be quiet. --quick: does it work?
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from adapler.classifier import Classifier
from adapler.data.text import Text, TextEncoder
from adapler.records import Record, write_records
from benchmarks.cost_curves import texts_of_length
from benchmarks.serve_load import closed_loop, request, run, running, served
from benchmarks.serve_proof import made_up, texts_of

RESULTS = Path(__file__).parent / "results"
CLIENTS = {1: (64, 256), 8: (16, 64)}
"""By texts a request, how many ask at once."""
LENGTHS = (16, 32, 64, 128, 256)
REPEATS = 3
BLOCK, SKIPPED = 50, 5
"""Lone requests and calls take turns in blocks, whose first few are left out: a process' threads spin for a while after its
work, and would slow the other."""
FULL_LENGTH = ["--point", "full"]
PLAIN_PORT = 18765
SERVED, PLAIN = "adapler serve", "FastAPI and a transformers pipeline"


def main(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder.")],
    data: Annotated[str | None, typer.Option(help="Texts to send: folder of splits, or a labelled file.")] = None,
    split: Annotated[str, typer.Option(help="Split to take texts from.")] = "test",
    max_loss: Annotated[float | None, typer.Option(help="The point MODEL is served at.")] = None,
    exported: Annotated[list[str] | None, typer.Option(help="MODEL as adapler export wrote it; may be repeated.")] = None,
    seconds: Annotated[float, typer.Option(help="Of each measurement.")] = 20.0,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny counts, nothing written.")] = False,
) -> None:
    """Measure, print, write."""
    texts = made_up(400) if data is None else list(texts_of(model, data, split))
    seconds, repeats, clients = (0.5, 1, {1: (4,)}) if quick else (seconds, REPEATS, CLIENTS)
    wish = [] if max_loss is None else ["--max-loss", str(max_loss)]
    ours = served(model, *wish)
    contenders: dict[str, Contender] = {}
    for folder in [model, *(exported or ())]:
        name = SERVED if folder == model else f"{SERVED}, {Classifier.from_pretrained(folder).runtime.name}"
        contenders[name] = (served(folder, *wish), None, '"serving"')
        contenders[f"{name}, full length"] = (served(folder, *FULL_LENGTH), None, '"serving"')
    contenders[PLAIN] = (plain_command(model), PLAIN_PORT, "Uvicorn running")
    shared = Record(kind="serve", task=None if data is None else Path(data).name, n=len(texts), repeats=repeats, commit=None)
    rates = throughput(contenders, texts, seconds, repeats, clients)
    records = []
    for (name, each), found in rates.items():
        faster = statistics.median(rates[SERVED if name == PLAIN else name.removesuffix(", full length"), each])
        value, spread = statistics.median(found), max(found) - min(found)
        records.append(_record(shared, name, value, spread, "texts/s", faster / value))
        records[-1].batch = f"{each} texts a request" if each > 1 else "one text a request"
    records += overhead(shared, ours, model, max_loss, texts, 20 if quick else 1000)
    records += sizing(shared, ours, model, texts, seconds, clients[1], LENGTHS[:1] if quick else LENGTHS)
    for record in records:
        typer.echo(f"{record.variant}: {record.value:.4g} {record.unit}")
    if not quick:
        write_records(RESULTS / f"serve-{shared.task or 'made-up'}.json", records)


Contender = tuple[list[str], int | None, str]
"""Its command, its port where it does not tell one, and what its log says when it is up."""


def throughput(
    contenders: dict[str, Contender],
    texts: Sequence[Text],
    seconds: float,
    repeats: int,
    clients: Mapping[int, Sequence[int]],
) -> dict[tuple[str, int], list[float]]:
    """Texts a second of each, in turns, by texts a request; of the numbers of clients the best."""
    rates: dict[tuple[str, int], list[float]] = {}
    for _ in range(repeats):
        for name, (command, port, says) in contenders.items():
            with running(command, port=port, says=says) as server:
                for each, counts in clients.items():
                    if name == PLAIN and each > 1:
                        continue  # it takes one at a time
                    asked = _asked(texts, each)
                    run(closed_loop(server.port, asked, counts[0], seconds / 4))
                    found = [run(closed_loop(server.port, asked, count, seconds)) for count in counts]
                    assert all(set(one.statuses) == {200} for one in found), [dict(one.statuses) for one in found]
                    rates.setdefault((name, each), []).append(each * max(one.rate for one in found))
    return rates


def _asked(texts: Sequence[Text], each: int) -> list[bytes]:
    """Requests of one text, or of a batch."""
    plain = [text if isinstance(text, str) else list(text) for text in texts]
    if each == 1:
        return [request({"inputs": text}) for text in plain]
    listed = [[text] if isinstance(text, str) else text for text in plain]
    return [request({"inputs": listed[first : first + each]}) for first in range(0, len(listed) - each + 1, each)]


def overhead(
    shared: Record, command: list[str], model: str, max_loss: float | None, texts: Sequence[Text], count: int
) -> list[Record]:
    """Median milliseconds a lone request takes, and a call in this process, text by text in turns."""
    classifier = Classifier.from_pretrained(model, max_loss=max_loss)
    through: list[float] = []
    directly: list[float] = []

    async def in_turns(port: int) -> None:
        for first in range(0, count, BLOCK):
            block = [texts[number % len(texts)] for number in range(first, first + BLOCK)]
            seen = await closed_loop(port, _asked(block, 1), 1, 60, most=BLOCK)  # on one kept connection
            through.extend(seen.seconds[SKIPPED:])
            for number, text in enumerate(block):
                begin = time.perf_counter()
                classifier(text)
                if number >= SKIPPED:
                    directly.append(time.perf_counter() - begin)

    with running(command) as server:
        run(in_turns(server.port))
    both = 1000 * statistics.median(through), 1000 * statistics.median(directly)
    return [
        _record(shared, "a lone request, p50", both[0], None, "ms"),
        _record(shared, "Classifier, p50", both[1], None, "ms"),
        _record(shared, "overhead of the server, p50", both[0] - both[1], None, "ms"),
    ]


def sizing(
    shared: Record,
    command: list[str],
    model: str,
    texts: Sequence[Text],
    seconds: float,
    clients: Sequence[int],
    lengths: Sequence[int],
) -> list[Record]:
    """Requests a second by length of text, for one core."""
    classifier = Classifier.from_pretrained(model)
    encoder = TextEncoder(classifier.tokenizer, classifier.max_length)
    records = []
    with running([*command, "--threads", "1"]) as server:
        for tokens in (length for length in lengths if length <= classifier.max_length):  # more would not be read
            some = texts_of_length(texts, encoder, tokens, 32)
            asked = [request({"inputs": text}) for text in some]
            best = max(run(closed_loop(server.port, asked, count, seconds)).rate for count in clients)
            record = _record(shared, f"one core, {tokens} tokens", best, None, "requests/s")
            record.config = {"tokens": tokens}
            records.append(record)
    return records


def plain_command(model: str) -> list[str]:
    """The server many write."""
    return [sys.executable, "-c", _PLAIN, model, str(PLAIN_PORT)]


_PLAIN = """
import sys
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline

classify = pipeline("text-classification", model=sys.argv[1], top_k=None, truncation=True)
app = FastAPI()

class Body(BaseModel):
    inputs: str

@app.post("/predict")
def predict(body: Body):
    return classify(body.inputs, batch_size=1)

uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), access_log=False)
"""


def _record(
    shared: Record, variant: str, value: float, spread: float | None, unit: str, speedup: float | None = None
) -> Record:
    """`speedup` is of the reduced server over this one, where it is another."""
    given: dict[str, Any] = {"task": shared.task, "n": shared.n, "repeats": shared.repeats}
    if speedup is not None and speedup != 1:
        given |= {"wall_speedup": speedup, "wall_vs": variant}
    return Record(kind="serve", variant=variant, value=value, spread=spread, unit=unit, **given)


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()
