"""One benchmark: every contender on the same texts and threads, in turns; a record each."""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from adapler import checkpoint
from adapler.bench import peers
from adapler.bench.ceiling import gemm_ceiling, layer_shapes
from adapler.bench.contenders import OWN, Contender, chosen, held_against, of_own, of_peer, trained, worth_timing
from adapler.bench.singles import singles_by_length
from adapler.classifier import Classifier
from adapler.data.text import EncodedText, Text, TextEncoder
from adapler.errors import BadModel
from adapler.evaluation.outcome import run as outcome_of
from adapler.export import EXPORTS
from adapler.export.write import export
from adapler.folder import Folder, report_beside
from adapler.points import Dial
from adapler.records import Record, model_name
from adapler.runtimes import RUNTIMES
from adapler.timing import Timing, race

SETTLE = 0.1
MOST_ROUNDS = 15

Makers = Mapping[str, Callable[[], Any]]
"""By family, what builds it."""


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
    dial = folder.reduction.dial
    threads = torch.get_num_threads()
    torch.set_flush_denormal(True)
    opened = checkpoint.load(folder)
    encoder = TextEncoder(opened.tokenizer, opened.max_length)
    encoded = encoder(list(texts))
    shared = Record(kind="bench", task=task, backbone=_backbone(folder, opened), split=split, threads=threads)
    with tempfile.TemporaryDirectory() as scratch:
        others = peer_makers(opened, Path(scratch), threads, compiled)
        own = own_makers(folder, opened, Path(scratch), threads, encoder(list(calibrate)))
        few = texts[:singles]
        contenders = [c for family in others for c in of_peer(family, texts, few)]
        contenders += [c for family in own for c in of_own(family, dial, texts, few)]
        contenders = chosen(contenders, only)
        made = built({**others, **own}, [c.family for c in contenders], say)
        contenders = [c for c in contenders if c.family in made]
        say(f"{len(contenders)} contenders, {len(texts)} texts, {threads} threads")
        work = {c.name: partial(c.work, made[c.family]) for c in contenders}
        timings = race(work, repeats=MOST_ROUNDS, seconds=(1.0 if only else 0.8) * seconds, settle=SETTLE)
        alone = []
        if not only:
            runtimes = {family: made[family].runtime for family in own if family in made}
            scale = trained(dial).scale
            alone = singles_by_length(shared, runtimes, encoded, scale, each=singles // 8, seconds=0.2 * seconds)
    tokenising = race({"tokenise": lambda: encoder(list(texts))}, repeats=5)["tokenise"].median / len(texts)
    ceiling = _ceiling_record(shared, opened, encoded, timings[OWN], tokenising)
    saved = _saved(opened, dial, encoded, contenders)
    return [*_records(shared, contenders, timings, saved, tokenising), *alone, ceiling]


def _backbone(folder: Folder, opened: checkpoint.Checkpoint) -> str:
    """What the model was made from, where its run says so; else its family."""
    report = report_beside(folder.path) or {}
    made_from = report.get("config", {}).get("model")
    return model_name(made_from) if made_from else str(opened.backbone.model.config.model_type)


def peer_makers(opened: checkpoint.Checkpoint, scratch: Path, threads: int, compiled: bool) -> Makers:
    """What people would use instead."""
    model, tokenizer, limit = opened.backbone.model, opened.tokenizer, opened.max_length
    makers: dict[str, Callable[[], Any]] = {"transformers": lambda: peers.in_transformers(model, tokenizer, limit)}
    if compiled:
        makers["transformers compiled"] = lambda: peers.in_transformers(model, tokenizer, limit, compiled=True)
    for name, int8 in (("onnxruntime", False), ("onnxruntime int8", True)):
        makers[name] = partial(peers.in_onnxruntime, model, tokenizer, limit, scratch, int8=int8, threads=threads)
    if importlib.util.find_spec("openvino") is not None:  # one more for those who have it
        makers["openvino"] = lambda: peers.in_openvino(model, tokenizer, limit, scratch, threads=threads)
    return makers


def own_makers(
    folder: Folder, opened: checkpoint.Checkpoint, scratch: Path, threads: int, calibrate: Sequence[EncodedText]
) -> Makers:
    """This project's runtimes."""

    def exported(family: str, name: str, seen: Sequence[EncodedText] | None) -> Classifier:
        export(opened, scratch / family, to=name, texts=seen)
        runtime = RUNTIMES[name].open(scratch / family, threads=threads)
        return Classifier(runtime, opened.tokenizer, max_length=opened.max_length)

    makers: dict[str, Callable[[], Any]] = {"torch": lambda: Classifier.from_pretrained(folder, point="trained")}
    makers |= {name: partial(exported, name, name, None) for name in EXPORTS}
    if calibrate:
        makers["onnx-int8 calibrated"] = partial(exported, "onnx-int8 calibrated", "onnx-int8", calibrate)
    return makers


def built(makers: Makers, families: Sequence[str], say: Callable[[str], None]) -> dict[str, Any]:
    """Each of these families once; those that cannot be built here are said and left out."""
    made = {}
    for family in dict.fromkeys(families):
        try:
            made[family] = makers[family]()
        except ImportError as error:
            say(f"without {family} ({error.name} is not installed: pip install 'adapler[onnx]')")
        except BadModel as error:  # a method or a backbone that has no such form
            say(f"without {family}: {error}")
    return made


def _saved(
    opened: checkpoint.Checkpoint, dial: Dial, encoded: Sequence[EncodedText], contenders: Sequence[Contender]
) -> dict[str, float]:
    """FLOPs speedups as executed on these texts, by point."""
    timed = {contender.point for contender in contenders}
    return {
        point.name: outcome_of(opened.backbone, opened.reducer, encoded, scale=point.scale).speedups.flops_speedup_executed
        for point in worth_timing(dial)
        if point.name in timed
    }


def _records(
    shared: Record,
    contenders: Sequence[Contender],
    timings: Mapping[str, Timing],
    saved: Mapping[str, float],
    tokenising: float,
) -> list[Record]:
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
                flops_speedup_executed=None if contender.point is None else saved.get(contender.point, 1.0),
                wall_speedup=None if ratios is None else statistics.median(ratios),
                wall_vs=None if other is None else other.name,
                config={
                    "texts_per_second_without_tokenising": 1 / max(timing.median / contender.count - tokenising, 1e-9),
                    **({} if contender.dev_loss is None else {"dev_loss_points": contender.dev_loss}),
                },
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
