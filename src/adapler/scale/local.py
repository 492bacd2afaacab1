"""The local engine: one process. A part is answered while the next is read and the last is written; at most three are held."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from adapler.scale.job import Job
from adapler.scale.parts import Part
from adapler.scale.plan import Done
from adapler.scale.reading import Rows

if TYPE_CHECKING:
    from adapler.classifier import Classifier


def score_here(
    job: Job, parts: Sequence[Part], classifier: Classifier, told: Callable[[int], None] = lambda _: None
) -> Iterator[Done]:
    """Do these parts in order; each is yielded when it is on the disk. `told` hears of rows as they are answered."""
    labels = classifier.labels
    with ThreadPoolExecutor(1, "adapler-read") as reading, ThreadPoolExecutor(1, "adapler-write") as writing:
        ahead: Future[Rows] = reading.submit(job.read, parts[0])
        behind: Future[Done] | None = None
        try:
            for part, following in zip(parts, [*parts[1:], None], strict=True):
                rows = ahead.result()
                if following is not None:
                    ahead = reading.submit(job.read, following)
                answers = job.answer(classifier, part, rows, told)
                if behind is not None:
                    yield behind.result()
                behind = writing.submit(job.write, part, answers, labels)
                del rows, answers
            if behind is not None:
                yield behind.result()
        finally:
            reading.shutdown(cancel_futures=True)
            job.reader.close()
