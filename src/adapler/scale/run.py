"""A corpus scored: the plan settled or found again, unfinished parts done by an engine, all of them summed up."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from adapler.errors import BadConfig, BadInput
from adapler.scale.job import Job, open_classifier, use_threads
from adapler.scale.local import score_here
from adapler.scale.parts import Source, cut
from adapler.scale.plan import Done, Folder, Manifest, Settings, check_same
from adapler.scale.ray_engine import Cluster, score_on_ray
from adapler.scale.writing import carried_names

if TYPE_CHECKING:
    from adapler.classifier import Classifier

ENGINES = ("local", "ray")


class Progress(Protocol):
    """Who is told how far a run is."""

    def begin(self, total: int, done: int) -> None:
        """`total` rows in all, `done` of them by earlier runs."""

    def advance(self, rows: int) -> None:
        """So many more."""

    def note(self, message: str) -> None:
        """A line for people."""


@dataclass
class Summary:
    """What all runs into one folder did together; seconds and rate are of this one."""

    rows: int = 0
    """Texts that were answered."""
    bad: int = 0
    truncated: int = 0
    tokens: int = 0
    tokens_kept: int = 0
    flops: int = 0
    flops_full: int = 0
    parts: int = 0
    parts_before: int = 0
    """Finished by earlier runs."""
    seconds: float = 0.0
    """Of this run, without the first look at the input."""
    start_seconds: float = 0.0
    """Of these, until the first part was begun: a model is opened, Ray is started."""
    rows_per_second: float = 0.0
    """Reading, answering and writing, start aside."""

    @property
    def flops_speedup(self) -> float:
        """How many times fewer FLOPs than at full length, over all texts together."""
        return self.flops_full / self.flops if self.flops else 1.0

    def add(self, done: Done) -> None:
        """Count one more part in."""
        self.parts += 1
        for name in ("rows", "bad", "truncated", "tokens", "tokens_kept", "flops", "flops_full"):
            setattr(self, name, getattr(self, name) + getattr(done, name))

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**asdict(self), "flops_speedup": self.flops_speedup}


def score(
    model: Path,
    sources: list[Source],
    out: Path,
    settings: Settings,
    progress: Progress,
    *,
    engine: str = "local",
    cluster: Cluster | None = None,
    threads: int | None = None,
    device: str = "cpu",
) -> Summary:
    """Answer every row of `sources` into parts under `out`. Run again it goes on where it stopped, with either engine."""
    folder = Folder(out)
    if threads is not None and engine == "local":
        use_threads(threads)
    with folder.locked():
        manifest, classifier = settle(folder, model, sources, settings, progress, device)
        finished = folder.finished(manifest)
        todo = [part for part in manifest.parts if part.number not in finished]
        job = Job.of(manifest, model, out, device)
        summary = Summary()
        for done in finished.values():
            summary.add(done)
        summary.parts_before = len(finished)
        progress.begin(sum(part.rows for part in manifest.parts), sum(done.rows + done.bad for done in finished.values()))
        before, start = summary.rows + summary.bad, time.perf_counter()
        if todo and engine == "ray":
            for done, seconds in score_on_ray(job, todo, cluster or Cluster()):
                if summary.parts == summary.parts_before:
                    summary.start_seconds = time.perf_counter() - start - seconds
                summary.add(done)
                progress.advance(done.rows + done.bad)
        elif todo:
            classifier = classifier or job.classifier()
            summary.start_seconds = time.perf_counter() - start
            for done in score_here(job, todo, classifier, progress.advance):
                summary.add(done)
        summary.seconds = time.perf_counter() - start
        worked = summary.seconds - summary.start_seconds
        summary.rows_per_second = (summary.rows + summary.bad - before) / worked if todo else 0.0
    if summary.bad and not summary.rows:
        raise BadInput(f"none of {summary.bad} rows could be answered; the reasons are in {folder.bad}")
    return summary


def settle(
    folder: Folder,
    model: Path,
    sources: list[Source],
    settings: Settings,
    progress: Progress,
    device: str,
) -> tuple[Manifest, Classifier | None]:
    """The plan that was begun in the folder, if it is this one, with the files where they are now; otherwise a new one, and the
    model that had to be opened for it."""
    before = folder.manifest()
    if before is not None:
        check_same(before, settings, sources, folder.path)
        moved = [known.model_copy(update={"path": found.path}) for known, found in zip(before.sources, sources, strict=True)]
        return before.model_copy(update={"sources": tuple(moved)}), None
    progress.note(f"looking through {len(sources)} {'file' if len(sources) == 1 else 'files'}")
    known, parts = cut(sources, settings.text, settings.pair, settings.part_rows)
    classifier = open_classifier(model, settings, device)
    for source in known:
        carried_names(source, classifier.labels, tokens=settings.tokens, with_text=settings.with_text)  # refuses early
    chosen = classifier.operating
    manifest = Manifest(
        settings=settings,
        scale=chosen.scale,
        escalate=chosen.escalate,
        careful=chosen.careful,
        labels=tuple(classifier.labels),
        sources=tuple(known),
        parts=tuple(parts),
    )
    folder.begin(manifest)
    return manifest, classifier


def check_apart(sources: list[Source], out: Path) -> None:
    """Refuse an output folder whose parts would be read as input by the next run."""
    target = out.resolve()
    for source in sources:
        if Path(source.path).is_relative_to(target):
            raise BadConfig(f"--out {out} holds the input {source.name!r}; choose a folder of its own")


def output_format(sources: list[Source], wanted: str | None) -> str:
    """Parquet for parquet, CSV for CSV and TSV, JSON lines for anything else and for a mixture; unless something is wanted."""
    if wanted is not None:
        return wanted
    kinds = {"csv" if source.format == "tsv" else source.format for source in sources}
    return kinds.pop() if kinds in ({"parquet"}, {"csv"}) else "jsonl"
