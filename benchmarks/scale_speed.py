"""How fast is a corpus scored, files in and files out? The local engine beside the bare classifier, Ray beside the local one.

All get the same texts and the same number of cores, in turns. The bare classifier has its texts in memory and keeps no answer.
Rates are without start-up: opening the model, starting Ray. Then many short texts once, from end to end, with the memory that
the process held on the way.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from adapler.records import Record, write_records
from adapler.scale.job import open_classifier, use_threads
from adapler.scale.parts import cut, find
from adapler.scale.plan import Folder, Manifest, Settings, model_digest
from adapler.scale.ray_engine import Cluster
from adapler.scale.run import score
from benchmarks.packed import sentences

OUT = Path(__file__).parent / "results" / "scale-speed.json"
BARE, LOCAL, RAY, FULL = "bare classifier", "local", "ray", "local, full length"
AGAINST = {LOCAL: BARE, RAY: LOCAL, FULL: LOCAL}
MILLION = "local, short texts end to end"
SHORT_WORDS = 8
PARTS_A_CORE = 8
SETTLED = 0.1
"""Share of a run after which memory should not grow any more."""


class Silent:
    """Nobody is told."""

    def begin(self, total: int, done: int) -> None: ...

    def advance(self, rows: int) -> None: ...

    def note(self, message: str) -> None: ...


def write_corpus(path: Path, texts: Iterator[str]) -> None:
    """A parquet file with numbered rows; memory does not grow with it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema({"id": pa.int64(), "text": pa.string()})
    numbered = enumerate(texts)
    with pq.ParquetWriter(path, schema) as writer:
        while some := list(itertools.islice(numbered, 10_000)):
            ids, rows = zip(*some, strict=True)
            writer.write_table(pa.table({"id": ids, "text": rows}, schema=schema))


def rate(variant: str, model: Path, corpus: Path, texts: list[str], threads: int, folder: Path) -> float:
    """Texts a second of one contender, once."""
    settings = Settings(model=model_digest(model), to="parquet", part_rows=max(1, len(texts) // (threads * PARTS_A_CORE)))
    if variant == BARE:
        classifier = open_classifier(model, settings, "cpu")
        start = time.perf_counter()
        for _ in classifier(iter(texts)):
            pass
        return len(texts) / (time.perf_counter() - start)
    out = Folder(folder / f"out-{time.time_ns()}")
    sources = find(str(corpus))[0]
    with out.locked():  # the plan of a run, its operating point set: 0 removes nothing
        known, parts = cut(sources, None, None, settings.part_rows)
        labels = tuple(open_classifier(model, settings, "cpu").labels)
        scale = 0.0 if variant == FULL else None
        out.begin(Manifest(settings=settings, scale=scale, labels=labels, sources=tuple(known), parts=tuple(parts)))
    engine, cluster = ("ray", Cluster(workers=threads)) if variant == RAY else ("local", None)
    return score(model, sources, out.path, settings, Silent(), engine=engine, cluster=cluster).rows_per_second


def rates(model: Path, count: int, repeats: int, threads: int, folder: Path) -> list[Record]:
    """One record a contender: the median, beside what it is held against."""
    use_threads(threads)
    texts = list(itertools.islice(itertools.cycle(sentences(min(count, 4096))), count))
    write_corpus(folder / "corpus.parquet", iter(texts))
    names = [BARE, LOCAL, RAY, FULL]
    found: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            found[name].append(rate(name, model, folder / "corpus.parquet", texts, threads, folder))
    medians = {name: statistics.median(values) for name, values in found.items()}
    return [
        Record(
            kind="bench",
            task="movie-reviews, one-sentence reviews",
            variant=name,
            backbone=model.name,
            n=count,
            value=medians[name],
            unit="texts/s",
            spread=max(found[name]) - min(found[name]),
            repeats=repeats,
            threads=threads,
            wall_speedup=medians[name] / medians[AGAINST[name]] if name in AGAINST else None,
            wall_vs=AGAINST.get(name),
            config={"rates": [round(each, 1) for each in found[name]]},
        )
        for name in names
    ]


def end_to_end(model: Path, count: int, threads: int, folder: Path) -> Record:
    """Short texts through the command itself, and what it held in memory."""
    import psutil

    short = (" ".join(text.split()[:SHORT_WORDS]) for text in itertools.cycle(sentences(4096)))
    write_corpus(folder / "short.parquet", itertools.islice(short, count))
    command = [sys.executable, "-m", "adapler", "predict", str(model), str(folder / "short.parquet"), "--json", "--quiet"]
    start = time.perf_counter()
    options = ["--out", f"{folder / 'short'}/", "--threads", str(threads)]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    held: list[tuple[int, float]] = []
    watched = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            parts = len(list((folder / "short" / "_adapler" / "done").glob("part-*")))
            held.append((parts, watched.memory_info().rss / 2**20))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.5)
    stdout, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}: {stdout}")
    summary = json.loads(stdout)
    settled = [memory for parts, memory in held if parts >= max(1, SETTLED * summary["parts"])]
    half = settled[: max(1, len(settled) // 2)]
    growth = round(100 * (max(settled) / max(half) - 1), 1) if settled else None
    return Record(
        kind="bench",
        task=f"movie-reviews, first {SHORT_WORDS} words",
        variant=MILLION,
        backbone=model.name,
        n=count,
        value=summary["rows_per_second"],
        unit="texts/s",
        threads=threads,
        config={
            "seconds_from_start_to_end": round(time.perf_counter() - start, 1),
            "rows": summary["rows"],
            "bad": summary["bad"],
            "parts": summary["parts"],
            "peak_rss_mib": round(max(memory for _, memory in held), 1),
            "memory_growth_percent": growth,
        },
    )


def main() -> None:
    said = __doc__.splitlines()[0] if __doc__ else ""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_speed", description=said)
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--texts", type=int, default=50_000, help="timed in each repeat")
    parser.add_argument("--short", type=int, default=1_000_000, help="short texts from end to end; 0 leaves that out")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="cores of every contender")
    parser.add_argument("--out", type=Path, default=OUT, help="the results file")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        records = rates(chosen.model, chosen.texts, chosen.repeats, chosen.threads, folder)
        if chosen.short:
            records.append(end_to_end(chosen.model, chosen.short, chosen.threads, folder))
    write_records(chosen.out, records)
    for record in records:
        against = "" if record.wall_vs is None else f"  {record.wall_speedup:.2f} of {record.wall_vs}"
        sys.stdout.write(f"{record.variant:32} {record.value:8.1f} texts/s{against}\n")
    sys.stdout.write(f"{chosen.out}\n")


if __name__ == "__main__":
    main()
