"""What is done with one part, whoever does it: read, answer, write. Can be sent to another machine that sees the same files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from adapler.scale.answers import Answers, answer
from adapler.scale.parts import Part, Source
from adapler.scale.plan import WISHES, Done, Folder, Manifest, Settings
from adapler.scale.reading import Reader, Rows, Wanted
from adapler.scale.writing import carried_names, write_answers, write_bad

if TYPE_CHECKING:
    from adapler.classifier import Classifier
    from adapler.points import Operating


@dataclass
class Job:
    """All that is needed to do any part of a run."""

    model: str
    """Its folder's path."""
    out: str
    settings: Settings
    sources: tuple[Source, ...]
    operating: Operating
    device: str = "cpu"

    @classmethod
    def of(cls, manifest: Manifest, model: Path, out: Path, device: str) -> Job:
        """Of a run, without its parts."""
        where = str(model.resolve()), str(out.resolve())
        return cls(*where, manifest.settings, manifest.sources, manifest.operating, device)

    @cached_property
    def reader(self) -> Reader:
        """Keeps the last file open; for one thread."""
        return Reader(Wanted(with_text=self.settings.with_text, fixed=self.settings.to != "jsonl"))

    def classifier(self, threads: int | None = None) -> Classifier:
        """The model as the run uses it, on so many threads, or as many as the process is given."""
        if threads is not None:
            use_threads(threads)
        # The point was chosen where the run began, by what was timed there; here it need not have been.
        settled = self.settings.model_copy(update=dict.fromkeys(WISHES))
        opened = open_classifier(Path(self.model), settled, self.device)
        opened.operating = self.operating
        return opened

    def read(self, part: Part) -> Rows:
        """A part's rows."""
        return self.reader(self.sources[part.source], part)

    def answer(self, classifier: Classifier, part: Part, rows: Rows, told: Callable[[int], None] = lambda _: None) -> Answers:
        """Their answers."""
        return answer(classifier, self.sources[part.source].name, rows, tokens=self.settings.tokens, told=told)

    def write(self, part: Part, answers: Answers, labels: list[str]) -> Done:
        """A part's files; the note that it is finished comes last."""
        folder, source = Folder(Path(self.out)), self.sources[part.source]
        names = carried_names(source, labels, tokens=self.settings.tokens, with_text=self.settings.with_text)
        if answers.bad:
            write_bad(folder.bad_file(part), source.name, answers)
        size = write_answers(folder.file(part, self.settings.to), self.settings.to, answers, names)
        done = Done(
            part=part.number,
            rows=answers.rows,
            bad=len(answers.bad),
            tokens=answers.total("n_tokens"),
            tokens_kept=answers.total("tokens_kept_last"),
            truncated=answers.total("truncated"),
            flops=answers.total("flops"),
            flops_full=answers.total("flops_full"),
            bytes=size,
        )
        folder.finish(part, done)
        return done


def open_classifier(model: Path, settings: Settings, device: str) -> Classifier:
    """The model under a run's settings; an operating point that was not asked for is this machine's choice."""
    from adapler.classifier import Classifier
    from adapler.data.keep import read_always_keep

    return Classifier.from_pretrained(
        model,
        max_length=settings.max_length,
        token_budget=settings.token_budget,
        device=device,
        point=settings.point,
        max_loss=settings.max_loss,
        speedup=settings.speedup,
        max_latency_ms=settings.max_latency_ms,
        escalate=settings.escalate,
        always_keep=read_always_keep(list(settings.always_keep)),
        stride=settings.stride,
    )


def use_threads(threads: int) -> None:
    """So many threads for everything in this process. The variables are read when the libraries first need threads."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[variable] = str(threads)
    import torch

    torch.set_num_threads(threads)
