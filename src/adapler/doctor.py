"""What a model's operating points cost on this machine, in time; and which of them is worth running here.

Fewer FLOPs are not always less time: a few tokens cannot fill many cores, and predictors have to be asked. A probe times
every point once, in batches and text by text. It is kept outside the model folder, which may be anyone's, by model, machine,
runtime and threads. Which point a model opens at for it is in `points.py`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adapler.answering import Answering
from adapler.cost import ModelCost
from adapler.data.text import EncodedText
from adapler.errors import BadConfig
from adapler.folder import EXPORT_JSON, REDUCTION_JSON
from adapler.points import Operating, Point
from adapler.records import machine
from adapler.runtimes.base import Runtime
from adapler.timing import race

CACHE_VARIABLE = "ADAPLER_CACHE"
PROBE_TEXTS, SINGLE_TEXTS = 48, 12
SECONDS = 2.0
_HALVINGS = 8
_SCALES = (0.05, 20.0)

T = TypeVar("T")


class Cost(BaseModel):
    """A point's time here."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    texts_per_second: float = Field(gt=0)
    latency_ms: float = Field(gt=0)
    """Of one text alone, median."""


class Diagnosis(BaseModel):
    """A probe of one model on one machine."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    machine: str
    runtime: str
    threads: int
    texts: str
    """What was timed: the user's texts, or made-up ones."""
    points: dict[str, Cost]

    @property
    def latencies(self) -> dict[str, float]:
        """Milliseconds a text, by point."""
        return {name: cost.latency_ms for name, cost in self.points.items()}

    @property
    def rates(self) -> dict[str, float]:
        """Texts a second, by point."""
        return {name: cost.texts_per_second for name, cost in self.points.items()}

    def __str__(self) -> str:
        return f"{self.texts}, {self.runtime}, {self.threads} threads, {self.machine}"


def examine(
    runtime: Runtime,
    points: Sequence[Point],
    *,
    budget: int | None = None,
    vocabulary: int,
    texts: Sequence[EncodedText] | None = None,
    seconds: float = SECONDS,
) -> Diagnosis:
    """Time points in turns, answering as a call does but for the tokenising.

    Without `texts`, on made-up ones that save as much as dev texts did; how sure a model is of those means nothing, so points
    that escalate are left out.
    """
    made_up = texts is None
    sample = list(texts) if texts is not None else _made_up(runtime, vocabulary)
    if not sample:
        raise BadConfig("no texts to time the operating points on; give at least one, or none of your own")
    few = spaced(sample, SINGLE_TEXTS)
    hows = {
        point.name: Operating(
            _scale_for(runtime, few, point.flops_speedup) if made_up and point.scale else point.scale,
            point.escalate,
            point.careful or 0.0,
        )
        for point in points
        if point.escalate is None or not made_up
    }
    answering = Answering(runtime, budget)
    batches = {name: _in_batches(answering, sample, how) for name, how in hows.items()}
    singles = {name: _one_by_one(answering, few, how) for name, how in hows.items()}
    together, alone = race(batches, seconds=seconds / 2), race(singles, seconds=seconds / 2)
    return Diagnosis(
        machine=machine(),
        runtime=runtime.name,
        threads=runtime.threads,
        texts="made-up texts" if made_up else f"{len(sample)} given texts",
        points={
            name: Cost(texts_per_second=together[name].rate(len(sample)), latency_ms=1000 * alone[name].median / len(few))
            for name in hows
        },
    )


def spaced(texts: Sequence[T], count: int) -> list[T]:
    """At most `count` of them at even distances: files are often sorted."""
    return [texts[index * len(texts) // count] for index in range(count)] if len(texts) > count else list(texts)


def remember(digest: str, diagnosis: Diagnosis) -> Path:
    """Keep a diagnosis for the next time this model is opened here."""
    file = _file(digest, diagnosis.runtime, diagnosis.threads)
    file.parent.mkdir(parents=True, exist_ok=True)
    staging = file.with_suffix(f".{os.getpid()}.tmp")
    staging.write_text(diagnosis.model_dump_json(indent=1) + "\n", encoding="utf-8")
    staging.replace(file)
    return file


def recall(digest: str, runtime: str, threads: int) -> Diagnosis | None:
    """What was measured here before, if it was; a file that cannot be read counts as none."""
    try:
        return Diagnosis.model_validate(json.loads(_file(digest, runtime, threads).read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError):
        return None


def recall_latest(digest: str, runtime: str) -> Diagnosis | None:
    """The same for whatever number of threads was measured last: how many a runtime will have only its library knows."""
    kept = _file(digest, runtime, "[0-9]*")
    newest_first = sorted(kept.parent.glob(kept.name), key=lambda file: file.stat().st_mtime, reverse=True)
    threads = [file.stem.rpartition("-")[2] for file in newest_first]
    found = (recall(digest, runtime, int(number)) for number in threads if number.isdecimal())
    return next((diagnosis for diagnosis in found if diagnosis is not None), None)


def digest_of(folder: Path) -> str | None:
    """What tells a model's folder from every other, once it has been checked; None for one without reduction."""
    for manifest in (folder / REDUCTION_JSON, folder / EXPORT_JSON):
        if manifest.is_file():
            return str(json.loads(manifest.read_text(encoding="utf-8"))["digest"])
    return None


def _file(digest: str, runtime: str, threads: int | str) -> Path:
    root = os.environ.get(CACHE_VARIABLE) or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / ("doctor" if os.environ.get(CACHE_VARIABLE) else "adapler/doctor")
    here = hashlib.sha256(machine().encode()).hexdigest()[:12]
    return folder / f"{digest[:32]}-{here}-{runtime}-{threads}.json"


def _made_up(runtime: Runtime, vocabulary: int) -> list[EncodedText]:
    """Random token ids in texts of 16 to 112 tokens, the same every time."""
    random = np.random.default_rng(0)
    texts = []
    for count in np.linspace(16, min(112, runtime.longest), PROBE_TEXTS).astype(int):
        ids = random.integers(vocabulary // 2, vocabulary, int(count))
        texts.append(EncodedText(ids=ids, types=np.zeros_like(ids), tokens=[], truncated=False))
    random.shuffle(texts)
    return texts


def _scale_for(runtime: Runtime, texts: Sequence[EncodedText], speedup: float) -> float:
    """The scale of thresholds at which these texts save as much as a point saved on dev: time depends on lengths alone."""
    low, high = _SCALES
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        answer = runtime(texts, scale=np.full(len(texts), middle, dtype=np.float32), trace=False)
        reached = _speedup(runtime.cost, texts, answer.lengths)
        low, high = (middle, high) if reached < speedup else (low, middle)
    return math.sqrt(low * high)


def _speedup(cost: ModelCost, texts: Sequence[EncodedText], lengths: Any) -> float:
    full = sum(cost.full(len(text.ids)) for text in texts)
    return full / sum(cost.reduced(len(text.ids), row) for text, row in zip(texts, lengths.tolist(), strict=True))


def _in_batches(answering: Answering, texts: Sequence[EncodedText], how: Operating) -> Callable[[], object]:
    return lambda: answering([[text] for text in texts], [how] * len(texts))


def _one_by_one(answering: Answering, texts: Sequence[EncodedText], how: Operating) -> Callable[[], object]:
    return lambda: [answering([[text]], [how]) for text in texts]
