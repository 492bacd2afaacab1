"""One benchmark: every contender on the same texts and threads, in turns; a record each."""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from adapler import checkpoint
from adapler.bench import peers
from adapler.bench.ceiling import gemm_ceiling, layer_shapes
from adapler.bench.singles import singles_by_length
from adapler.classifier import Classifier
from adapler.data.text import EncodedText, Text, TextEncoder
from adapler.errors import BadInput, BadModel
from adapler.evaluation.outcome import run as outcome_of
from adapler.export import EXPORTS
from adapler.export.write import export
from adapler.folder import Folder, report_beside
from adapler.points import Dial, Operating, Point
from adapler.records import Record
from adapler.runtimes import RUNTIMES
from adapler.timing import Timing, race

PADDED = "transformers, padded 32"
OWN = "torch, full"
BUDGET = "token budget"
SETTLE = 0.1
MOST_ROUNDS = 15


@dataclass(frozen=True)
class Contender:
    """Something that classifies texts."""

    name: str
    family: str
    """What it is one of: all of a family are held against its full length."""
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
    calibrate: Sequence[Text] = (),
    singles: int = 64,
    compiled: bool = False,
    only: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> list[Record]:
    """Time transformers, ONNX Runtime and this project's runtimes at full length and at every point of the dial.

    `calibrate` are texts for an 8-bit graph with fixed ranges, beside the one that takes them token by token. A fifth of
    the time goes to texts one by one, by length. `only` takes the contenders in whose name one of these stands, and those
    they are held against, for more rounds in the same time; the texts one by one are then left out.
    """
    if folder.reduction is None or folder.reduction.dial is None:
        raise BadModel(f"{folder.path} has no operating points to time; measure them: adapler dial MODEL --data DEV")
    threads = torch.get_num_threads()
    torch.set_flush_denormal(True)
    opened = checkpoint.load(folder)
    encoder = TextEncoder(opened.tokenizer, opened.max_length)
    encoded = encoder(list(texts))
    shared = Record(kind="bench", task=task, backbone=_backbone(folder, opened), split=split, threads=threads)
    with tempfile.TemporaryDirectory() as scratch:
        own = _own(folder, opened, Path(scratch), threads, encoder(list(calibrate)), say)
        contenders = _contenders(folder, own, list(texts), encoded, Path(scratch), threads, singles, compiled, say)
        contenders = chosen(contenders, only)
        say(f"{len(contenders)} contenders, {len(texts)} texts, {threads} threads")
        share = 1.0 if only else 0.8
        timings = race({c.name: c.run for c in contenders}, repeats=MOST_ROUNDS, seconds=share * seconds, settle=SETTLE)
        runtimes = {family: classifier.runtime for family, classifier in own.items()}
        trained = _trained(folder.reduction.dial)
        alone = (
            []
            if only
            else singles_by_length(shared, runtimes, encoded, trained.scale, each=singles // 8, seconds=0.2 * seconds)
        )
    tokenising = race({"tokenise": lambda: encoder(list(texts))}, repeats=5)["tokenise"].median / len(texts)
    ceiling = _ceiling_record(shared, opened, encoded, timings[OWN], tokenising)
    return [*_records(shared, contenders, timings, tokenising), *alone, ceiling]


def _backbone(folder: Folder, opened: checkpoint.Checkpoint) -> str:
    """What the model was made from, where its run says so; else its family."""
    report = report_beside(folder.path) or {}
    made_from = report.get("config", {}).get("model")
    return Path(made_from).name if made_from else str(opened.backbone.model.config.model_type)


def chosen(contenders: Sequence[Contender], only: Sequence[str]) -> list[Contender]:
    """Those whose name holds one of `only`, and what they are held against; all where nothing is asked."""
    wanted = {c.name for c in contenders if any(part in c.name for part in only)}
    if only and not wanted:
        raise BadInput(
            f"no contender has {' or '.join(map(repr, only))} in its name; there are: " + "; ".join(c.name for c in contenders)
        )
    wanted |= {held_against(c) for c in contenders if c.name in wanted} | {PADDED, OWN}
    return [c for c in contenders if not only or c.name in wanted]


def held_against(contender: Contender) -> str:
    """The name of who is timed beside it: the same runtime at full length in the same batches; a peer's is the padded one."""
    if contender.point is None:
        return PADDED
    return f"{contender.family}, full" + ("" if contender.batch == BUDGET else f", {contender.batch}")


def _contenders(
    folder: Folder,
    own: dict[str, Classifier],
    texts: list[Text],
    encoded: Sequence[EncodedText],
    scratch: Path,
    threads: int,
    singles: int,
    compiled: bool,
    say: Callable[[str], None],
) -> list[Contender]:
    opened = checkpoint.load(folder)
    assert folder.reduction is not None and folder.reduction.dial is not None
    few = texts[:singles]
    made = _peers(opened, scratch, threads, compiled, say)
    found = []
    for name, peer in made.items():
        runtime = name.partition(" ")[0]
        cells = {"padded 32": (texts, 32, False), "sorted 32": (texts, 32, True), "batch 1": (few, 1, False)}
        for batch, (given, size, by_length) in cells.items():
            work = _partial(peer.run, given, size, by_length)
            found.append(Contender(f"{name}, {batch}", name, runtime, "full", batch, work, len(given)))
    dial = folder.reduction.dial
    saved = {
        point.name: outcome_of(opened.backbone, opened.reducer, encoded, scale=point.scale).speedups.flops_speedup_executed
        for point in worth_timing(dial)
    }
    for family, classifier in own.items():
        found += _points(family, classifier, dial, saved, texts, few)
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
    else:
        with contextlib.suppress(ImportError):  # one more contender for those who have it
            made["openvino"] = peers.in_openvino(model, tokenizer, limit, scratch, threads=threads)
    return made


def _own(
    folder: Folder,
    opened: checkpoint.Checkpoint,
    scratch: Path,
    threads: int,
    calibrate: Sequence[EncodedText],
    say: Callable[[str], None],
) -> dict[str, Classifier]:
    made = {"torch": Classifier.from_pretrained(folder, point="trained")}
    wanted: dict[str, tuple[str, Sequence[EncodedText] | None]] = {name: (name, None) for name in EXPORTS}
    if calibrate:
        wanted["onnx-int8 calibrated"] = ("onnx-int8", calibrate)
    for family, (name, seen) in wanted.items():
        try:
            export(opened, scratch / family, to=name, texts=seen)
            runtime = RUNTIMES[name].open(scratch / family, threads=threads)
            made[family] = Classifier(runtime, opened.tokenizer, max_length=opened.max_length)
        except ImportError as error:
            say(f"without {family} ({error.name} is not installed: pip install 'adapler[onnx]')")
        except BadModel as error:  # a method or family that has no such form
            say(f"without {family}: {error}")
    return made


def _points(
    family: str, classifier: Classifier, dial: Dial, saved: dict[str, float], texts: list[Text], few: list[Text]
) -> list[Contender]:
    """Full length and the points people would choose, under the token budget; the trained one in small batches too.

    `saved` are the FLOPs speedups as executed, by point, on these texts.
    """
    found = []
    scales = {"full": 0.0} | {point.name: point.scale for point in worth_timing(dial)}
    for name, scale in scales.items():
        for batch, given, size in (
            (BUDGET, texts, len(texts)),
            ("batch 32", texts, 32),
            ("batch 8", few, 8),
            ("batch 1", few, 1),
        ):
            if batch != BUDGET and name not in ("full", _trained(dial).name):
                continue
            found.append(
                Contender(
                    name=f"{family}, {name}" + ("" if batch == BUDGET else f", {batch}"),
                    family=family,
                    runtime=classifier.runtime.name,
                    method="adapler" if scale else "full",
                    batch=batch,
                    run=_ours(classifier, scale, given, size),
                    count=len(given),
                    point=name,
                    flops_speedup_executed=saved.get(name, 1.0),
                )
            )
    return found


def _trained(dial: Dial) -> Point:
    """The point nearest to how the model left training."""
    return min(worth_timing(dial), key=lambda point: abs(point.scale - 1))


def worth_timing(dial: Dial) -> list[Point]:
    """The careful, the trained, the fast and the fastest point that removes something, and the one half-way between the last
    two; each once, slowest first."""
    plain = [point for point in dial.points if point.scale and point.escalate is None]
    if not plain:
        raise BadModel("no operating point of the model removes anything, so there is nothing to time")
    named = [point for point in dial.aliases.values() if point in plain]
    trained, fastest = min(plain, key=lambda point: abs(point.scale - 1)), max(plain, key=lambda point: point.flops_speedup)
    middle = math.sqrt(trained.flops_speedup * fastest.flops_speedup)
    between = min(plain, key=lambda point: abs(math.log(point.flops_speedup / middle)))
    wanted = [*named, trained, between, fastest]
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
        other = next((c for c in contenders if c.name == held_against(contender)), None)
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


def _ceiling_record(
    shared: Record, opened: checkpoint.Checkpoint, texts: Sequence[EncodedText], full: Timing, tokenising: float
) -> Record:
    """The machine's own limit at the model's shapes, and the share of it that full length in torch reaches."""
    config = opened.backbone.model.config
    cost = opened.backbone.cost
    flops = sum(cost.full(len(text.ids), executed=True) for text in texts)
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
