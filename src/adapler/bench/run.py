"""One benchmark: every contender on the same texts and threads, in turns; a record each."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from adapler import checkpoint
from adapler.bench import peers
from adapler.bench.ceiling import gemm_ceiling, layer_shapes
from adapler.classifier import Classifier
from adapler.data.text import Text, TextEncoder
from adapler.errors import BadModel
from adapler.evaluation.outcome import run as outcome_of
from adapler.export import EXPORTS
from adapler.export.write import export
from adapler.folder import Folder
from adapler.points import Dial, Operating, Point
from adapler.records import Record
from adapler.timing import Timing, race

PADDED = "transformers, padded 32"
OWN = "torch, full"
BUDGET = "token budget"


@dataclass(frozen=True)
class Contender:
    """Something that classifies texts."""

    name: str
    runtime: str
    method: str
    batch: str
    run: Callable[[], object]
    count: int
    """Texts it does in one go."""
    point: str | None = None
    flops_speedup_executed: float | None = None


def bench(
    folder: Folder,
    texts: Sequence[Text],
    *,
    task: str,
    split: str,
    seconds: float,
    singles: int = 64,
    compiled: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> list[Record]:
    """Time transformers, ONNX Runtime and this project's runtimes at full length and at every point of the dial."""
    if folder.reduction is None or folder.reduction.dial is None:
        raise BadModel(f"{folder.path} has no operating points to time; measure them: adapler dial MODEL --data DEV")
    threads = torch.get_num_threads()
    torch.set_flush_denormal(True)
    with tempfile.TemporaryDirectory() as scratch:
        contenders = _contenders(folder, list(texts), Path(scratch), threads, singles, compiled, say)
        say(f"{len(contenders)} contenders, {len(texts)} texts, {threads} threads")
        timings = race({c.name: c.run for c in contenders}, repeats=15, seconds=seconds)
    opened = checkpoint.load(folder)
    encoder = TextEncoder(opened.tokenizer, opened.max_length)
    tokenising = race({"tokenise": lambda: encoder(list(texts))}, repeats=5)["tokenise"].median / len(texts)
    shared = Record(
        kind="bench", task=task, backbone=str(opened.backbone.model.config.model_type), split=split, threads=threads
    )
    ceiling = _ceiling_record(shared, opened, encoder(list(texts)), timings[OWN], tokenising)
    return [*_records(shared, contenders, timings, tokenising), ceiling]


def _contenders(
    folder: Folder, texts: list[Text], scratch: Path, threads: int, singles: int, compiled: bool, say: Callable[[str], None]
) -> list[Contender]:
    opened = checkpoint.load(folder)
    assert folder.reduction is not None and folder.reduction.dial is not None
    few = texts[:singles]
    made = _peers(opened, scratch, threads, compiled, say)
    found = []
    for name, peer in made.items():
        runtime = "transformers" if "transformers" in name else "onnxruntime"
        cells = {"padded 32": (texts, 32, False), "sorted 32": (texts, 32, True), "batch 1": (few, 1, False)}
        for batch, (given, size, by_length) in cells.items():
            work = _partial(peer.run, given, size, by_length)
            found.append(Contender(f"{name}, {batch}", runtime, "full", batch, work, len(given)))
    for runtime, classifier in _own(folder, opened, scratch, threads, say).items():
        found += _points(runtime, classifier, folder.reduction.dial, texts, few)
    return found


def _peers(
    opened: checkpoint.Checkpoint, scratch: Path, threads: int, compiled: bool, say: Callable[[str], None]
) -> dict[str, peers.Peer]:
    model, tokenizer, limit = opened.backbone.model, opened.tokenizer, opened.max_length
    made = {"transformers": peers.in_transformers(model, tokenizer, limit)}
    if compiled:
        made["transformers compiled"] = peers.in_transformers(model, tokenizer, limit, compiled=True)
    try:
        for name, int8 in (("onnxruntime", False), ("onnxruntime int8", True)):
            made[name] = peers.in_onnxruntime(model, tokenizer, limit, scratch, int8=int8, threads=threads)
    except ImportError as error:
        say(f"without ONNX Runtime ({error.name} is not installed: pip install 'adapler[onnx]')")
    return made


def _own(
    folder: Folder, opened: checkpoint.Checkpoint, scratch: Path, threads: int, say: Callable[[str], None]
) -> dict[str, Classifier]:
    made = {"torch": Classifier.from_pretrained(folder, point="trained")}
    for name in EXPORTS:
        try:
            export(opened, scratch / name, to=name)
            made[name] = Classifier.from_pretrained(scratch / name, point="trained")
        except ImportError as error:
            say(f"without {name} ({error.name} is not installed: pip install 'adapler[onnx]')")
    return made


def _points(runtime: str, classifier: Classifier, dial: Dial, texts: list[Text], few: list[Text]) -> list[Contender]:
    """Full length and the points people would choose, under the token budget; the trained one in small batches too."""
    found = []
    chosen = worth_timing(dial)
    points = {"full": (0.0, 1.0)} | {p.name: (p.scale, p.flops_speedup_executed) for p in chosen}
    trained = min(chosen, key=lambda point: abs(point.scale - 1)).name
    for name, (scale, saved) in points.items():
        shared = {"runtime": runtime, "method": "adapler" if scale else "full", "point": name, "flops_speedup_executed": saved}
        for batch, given, size in (
            (BUDGET, texts, len(texts)),
            ("batch 32", texts, 32),
            ("batch 8", few, 8),
            ("batch 1", few, 1),
        ):
            if batch != BUDGET and name not in ("full", trained):
                continue
            label = f"{runtime}, {name}" + ("" if batch == BUDGET else f", {batch}")
            found.append(
                Contender(name=label, batch=batch, run=_ours(classifier, scale, given, size), count=len(given), **shared)  # type: ignore[arg-type]
            )
    return found


def worth_timing(dial: Dial) -> list[Point]:
    """The careful, the trained, the fast and the fastest point that removes something; each once, slowest first."""
    plain = [point for point in dial.points if point.scale and point.escalate is None]
    if not plain:
        raise BadModel("no operating point of the model removes anything, so there is nothing to time")
    named = [point for point in dial.aliases.values() if point in plain]
    wanted = [*named, min(plain, key=lambda point: abs(point.scale - 1)), max(plain, key=lambda point: point.flops_speedup)]
    return sorted({point.name: point for point in wanted}.values(), key=lambda point: point.flops_speedup)


def _ours(classifier: Classifier, scale: float, texts: list[Text], size: int) -> Callable[[], object]:
    def run() -> None:
        for first in range(0, len(texts), size):
            classifier.operating = Operating(scale)
            classifier(texts[first : first + size])

    return run


def _partial(run: Callable[..., object], texts: list[Text], batch: int, by_length: bool) -> Callable[[], object]:
    return lambda: run(texts, batch, by_length=by_length)


def _records(shared: Record, contenders: Sequence[Contender], timings: dict[str, Timing], tokenising: float) -> list[Record]:
    records = []
    for contender in contenders:
        timing = timings[contender.name]
        rates = [contender.count / value for value in timing.seconds]
        # Against the same runtime at full length in the same batches; the peers, against the plain padded one.
        full = f"{contender.runtime}, full" + ("" if contender.batch == BUDGET else f", {contender.batch}")
        other = next((c for c in contenders if c.name == (full if contender.point else PADDED)), None)
        ratios = (
            None
            if other is None
            else [
                (b / other.count) / (a / contender.count)
                for a, b in zip(timing.seconds, timings[other.name].seconds, strict=True)
            ]
        )
        records.append(
            replace(
                shared,
                method=contender.method,
                variant=contender.name,
                runtime=contender.runtime,
                point=contender.point,
                n=contender.count,
                value=statistics.median(rates),
                unit="texts/s",
                spread=max(rates) - min(rates),
                repeats=len(rates),
                batch=contender.batch,
                flops_speedup_executed=contender.flops_speedup_executed,
                wall_speedup=None if ratios is None else statistics.median(ratios),
                wall_vs=None if other is None else other.name,
                config={"texts_per_second_without_tokenising": 1 / max(timing.median / contender.count - tokenising, 1e-9)},
            )
        )
    return records


def _ceiling_record(shared: Record, opened: checkpoint.Checkpoint, texts: Any, full: Timing, tokenising: float) -> Record:
    """The machine's own limit at the model's shapes, and the share of it that full length in torch reaches."""
    config = opened.backbone.model.config
    reached_by = outcome_of(opened.backbone, None, texts)
    cost = opened.backbone.cost
    flops = sum(cost.full(n, executed=True) for n in reached_by.counts)
    ceiling = gemm_ceiling(layer_shapes(config.hidden_size, config.intermediate_size))
    seconds = full.median - tokenising * len(texts)
    return replace(
        shared,
        variant="share of the GEMM ceiling, torch, full",
        value=flops / seconds / ceiling,
        unit="share",
        n=len(texts),
        config={"ceiling_gflops": ceiling / 1e9, "reached_gflops": flops / seconds / 1e9},
    )
