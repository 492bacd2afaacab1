"""What a token costs as texts grow longer, and what a text costs as a stream grows longer; with the memory it takes.

    python -m benchmarks.cost_curves runs/ag_news --data PATH/TO/ag_news --runtime-folder runs/ag_news-onnx

Lengths: texts of exactly 8 to 512 tokens, put together of the data's own words, in lists through `Classifier`; the model at
full length and as trained, and the same model as exported, all lengths taking turns in one race. Texts longer than those of
training are read too, up to the model's positions: that says nothing about answers, but time does not depend on them.

Stream: one iterator over the data's texts, again and again, as trained; time and memory are noted on the way.

Threads are all cores, or OMP_NUM_THREADS, which every runtime reads.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from adapler.bench.contenders import BUDGET
from adapler.classifier import Classifier
from adapler.config import build_config
from adapler.data.load import read_split
from adapler.data.text import Text, TextEncoder
from adapler.errors import BadInput
from adapler.points import FULL, TRAINED, Operating
from adapler.records import Record, write_records
from adapler.timing import REPEATS, Timing, race
from adapler.training.progress import Silent, progress_for
from benchmarks.memory_use import peak_mib, resident_mib

RESULTS = Path(__file__).parent / "results"
LENGTHS = (8, 16, 32, 64, 128, 256, 512)
TOKENS = 24_000  # of one contender's texts: a few full batches
LONGER, SHORTER = 512, 128
FIRST_MARKS, MARK_EVERY = (1, 10, 100, 1_000, 10_000, 50_000), 100_000
SETTLED = 50_000
"""Texts after which memory should have stopped growing."""
SAMPLE_EVERY = 1_000

Mark = tuple[int, float, float]
"""Texts answered, seconds since the start, most MiB seen since the mark before."""


class Part(StrEnum):
    """What there is to measure."""

    lengths = "lengths"
    stream = "stream"


def main(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder.")],
    data: Annotated[str, typer.Option(help="Folder of splits, or a labelled file.")],
    split: Annotated[str, typer.Option(help="Split to take texts from.")] = "test",
    most: Annotated[int, typer.Option(min=1, help="Texts of the stream.")] = 1_000_000,
    runtime_folder: Annotated[list[str] | None, typer.Option(help="The same model as exported; may be repeated.")] = None,
    only: Annotated[Part | None, typer.Option(help="One part; the file keeps the other.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to time lengths; whole rounds only.")] = 600.0,
) -> None:
    """Measure, print, write benchmarks/results/cost-curves-TASK.json."""
    classifier = Classifier.from_pretrained(model, point=TRAINED)
    settings = build_config({"data": {"source": data}}).data
    texts = read_split(settings, split, classifier.labels)[0].texts
    shared = Record(
        kind="curve", task=Path(data).name, split=split, backbone=_backbone(classifier), threads=classifier.runtime.threads
    )
    records = []
    with progress_for(Console(stderr=True), quiet=False) as progress:
        wanted = list(Part) if only is None else [only]
        if Part.stream in wanted:  # first: whatever ran before would count as its memory
            records += stream_records(shared, classifier, texts, most, progress, 1 / len(wanted))
        if Part.lengths in wanted:
            records += length_records(shared, [model, *(runtime_folder or [])], texts, seconds, progress, 1 / len(wanted))
    out = RESULTS / f"cost-curves-{Path(data).name}.json"
    write_records(out, merged(stored(out), records))
    for record in records:
        Console().print(f"{record.variant}: {record.value:.4g} {record.unit}", highlight=False)


def texts_of_length(texts: Sequence[Text], encoder: TextEncoder, tokens: int, count: int) -> list[str]:
    """`count` texts of exactly `tokens` tokens: the words of real texts in their order, but for those that fit no more."""
    words = [word for text in texts for word in (text if isinstance(text, str) else " ".join(text)).split()]
    unlike = sorted(set(words))
    special = len(encoder([""])[0].ids)
    sizes = {word: len(encoded.ids) - special for word, encoded in zip(unlike, encoder(unlike), strict=True)}
    if 1 not in sizes.values():
        raise BadInput("no word of the texts is a single token, so texts of an exact length cannot be made of them")
    made = _filled(cycle(word for word in words if sizes[word] > 0), sizes, tokens - special)
    # Where a tokenizer reads words together otherwise than alone, some texts miss their length.
    exact = (text for text in islice(made, 2 * count) if len(encoder([text])[0].ids) == tokens)
    found = list(islice(exact, count))
    if len(found) < count:
        raise BadInput(f"only {len(found)} of {count} texts of {tokens} tokens could be made")
    return found


def _filled(words: Iterator[str], sizes: dict[str, int], room: int) -> Iterator[str]:
    while True:
        text: list[str] = []
        left = room
        while left > 0:
            word = next(words)
            if sizes[word] <= left:
                text.append(word)
                left -= sizes[word]
        yield " ".join(text)


def length_records(
    shared: Record, models: Sequence[str], texts: Sequence[Text], seconds: float, progress: Silent, share: float
) -> list[Record]:
    """Microseconds a token of every model, point and length, and how full length grows from 128 to 512 tokens."""
    contenders: dict[tuple[str, str, int], Callable[[], object]] = {}
    counts: dict[int, int] = {}
    for model in models:
        # Beyond what it was trained to read, as far as it has positions: the cost of a token is what is asked here.
        longest = min(LENGTHS[-1], Classifier.from_pretrained(model).runtime.longest)
        classifier = Classifier.from_pretrained(model, max_length=longest)
        for length in (length for length in LENGTHS if length <= longest):
            counts[length] = max(1, TOKENS // length)
            given = texts_of_length(texts, TextEncoder(classifier.tokenizer, longest), length, counts[length])
            for point in (FULL, TRAINED) if classifier.cost.predictors else (FULL,):
                contenders[classifier.runtime.name, point, length] = _call(classifier, point, given)
    progress.phase("lengths")
    step = share / (len(contenders) * (REPEATS + 1))

    def counted(work: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            work()
            progress.advance(step)

        return run

    names = {", ".join(map(str, key)): key for key in contenders}
    raced = race({name: counted(contenders[key]) for name, key in names.items()}, seconds=seconds)
    timings = {key: raced[name] for name, key in names.items()}
    peaks = {key: peak_mib(work) for key, work in contenders.items()}
    return [
        *(_length_record(shared, key, timing, counts[key[2]], peaks[key]) for key, timing in timings.items()),
        *growth_records(shared, timings, counts),
    ]


def _call(classifier: Classifier, point: str, texts: list[str]) -> Callable[[], object]:
    def run() -> None:
        classifier.operating = Operating(0.0) if point == FULL else Operating()
        classifier(texts)

    return run


def _length_record(shared: Record, key: tuple[str, str, int], timing: Timing, count: int, peak: float) -> Record:
    runtime, point, length = key
    each = [1e6 * seconds / (length * count) for seconds in timing.seconds]
    return replace(
        shared,
        method="full" if point == FULL else "adapler",
        variant=f"{runtime}, {point}, {length} tokens",
        runtime=runtime,
        point=point,
        n=count,
        value=statistics.median(each),
        unit="us/token",
        spread=max(each) - min(each),
        repeats=len(each),
        batch=BUDGET,
        config={"part": Part.lengths, "tokens": length, "peak_mib": round(peak, 1)},
    )


def growth_records(shared: Record, timings: dict[tuple[str, str, int], Timing], counts: dict[int, int]) -> list[Record]:
    """How much dearer a token of a long text is than one of a shorter text, at full length; one record a runtime."""
    records = []
    for runtime in dict.fromkeys(runtime for runtime, _, _ in timings):
        long, short = (timings.get((runtime, FULL, length)) for length in (LONGER, SHORTER))
        if long is None or short is None:
            continue
        scale = (SHORTER * counts[SHORTER]) / (LONGER * counts[LONGER])
        ratios = [scale * a / b for a, b in zip(long.seconds, short.seconds, strict=True)]
        records.append(
            replace(
                shared,
                method="full",
                variant=f"{runtime}, {FULL}, {LONGER} against {SHORTER} tokens",
                runtime=runtime,
                point=FULL,
                value=statistics.median(ratios),
                unit="ratio",
                spread=max(ratios) - min(ratios),
                repeats=len(ratios),
                config={"part": Part.lengths},
            )
        )
    return records


def stream_records(
    shared: Record, classifier: Classifier, texts: Sequence[Text], most: int, progress: Silent, share: float
) -> list[Record]:
    """Time and memory at growing counts of one stream, at the trained point."""
    progress.phase("stream")
    seen = stream_marks(classifier(islice(cycle(texts), most)), marks(most), lambda done: progress.advance(share * done / most))
    growth = growth_percent(seen)
    records = []
    for count, seconds, memory in seen:
        config: dict[str, Any] = {"part": Part.stream, "peak_rss_mib": round(memory, 1)}
        if count == most and growth is not None:
            config["memory_growth_percent"] = round(growth, 2)
        records.append(
            replace(
                shared,
                method="adapler" if classifier.cost.predictors else "full",
                variant=f"{classifier.runtime.name}, {TRAINED}, stream of {count} texts",
                runtime=classifier.runtime.name,
                point=TRAINED,
                n=count,
                value=seconds,
                unit="s",
                batch=BUDGET,
                config=config,
            )
        )
    return records


def marks(most: int) -> list[int]:
    """The counts at which a stream of `most` texts is looked at."""
    every = chain(FIRST_MARKS, range(MARK_EVERY, most, MARK_EVERY))
    return [*(count for count in every if count < most), most]


def stream_marks(
    answers: Iterator[object], at: Sequence[int], advance: Callable[[int], None], resident: Callable[[], float] | None = None
) -> list[Mark]:
    """Read answers to their end; what was seen at each count."""
    measure = resident_mib if resident is None else resident
    wanted, seen = set(at), []
    peak, started = measure(), time.perf_counter()
    for count, _ in enumerate(answers, start=1):
        if count % SAMPLE_EVERY == 0 or count in wanted:
            peak = max(peak, measure())
        if count in wanted:
            seen.append((count, time.perf_counter() - started, peak))
            peak = 0.0
        if count % SAMPLE_EVERY == 0:
            advance(SAMPLE_EVERY)
    return seen


def growth_percent(seen: Sequence[Mark], settled: int = SETTLED) -> float | None:
    """How far memory rose after the mark at `settled` texts above what it had been there; None for a shorter stream."""
    before = [memory for count, _, memory in seen if count == settled]
    after = [memory for count, _, memory in seen if count > settled]
    return 100 * (max(after) / before[0] - 1) if before and after else None


def stored(path: Path) -> list[Record]:
    """The records of a results file; none, if there is no file."""
    if not path.exists():
        return []
    # A record without a commit stays without one: it is not of the commit that reads it.
    return [Record(**{"commit": None, **row}) for row in json.loads(path.read_text(encoding="utf-8"))]


def merged(before: Sequence[Record], new: Sequence[Record]) -> list[Record]:
    """Parts that were measured anew take the place of the old ones; others stay. Lengths first."""
    replaced = {_part(record) for record in new}
    every = [*(record for record in before if _part(record) not in replaced), *new]
    return sorted(every, key=lambda record: list(Part).index(_part(record)))


def _part(record: Record) -> Part:
    return Part((record.config or {})["part"])


def _backbone(classifier: Classifier) -> str | None:
    return str(classifier.backbone.model.config.model_type) if classifier.runtime.name == "torch" else None


if __name__ == "__main__":
    typer.run(main)
