"""Models that remove nothing: fine-tuned at full length with every chance, the measure of all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapler.config import TrainConfig
from adapler.training.finetune import Finetune
from adapler.training.progress import Silent
from adapler.training.session import Progress, Session
from adapler.training.setup import Prepared, prepare
from adapler.training.snapshot import Snapshots


@dataclass(frozen=True)
class FullLength:
    """A model fine-tuned at full length, loaded."""

    prepared: Prepared
    dev: float
    lr: float
    phase: Finetune
    history: list[dict[str, Any]]


def best_full_length(
    config: TrainConfig,
    folder: Path,
    *,
    epochs: int,
    rates: Sequence[float],
    progress: Progress | None = None,
    start: Callable[[], Prepared] | None = None,
    checkpoints: int = 1,
) -> FullLength:
    """The best by dev score of fine-tunings at several rates. Goes on where it stopped.

    `start` gives what each of them begins with, where that is not what the settings describe; `checkpoints` is how many of
    the best epochs keep their weights on disk.
    """
    reached: list[FullLength] = []
    for rate in rates:
        prepared = prepare(config) if start is None else start()
        say = progress or Silent()
        session = Session(Snapshots(folder / f"snapshots-{rate:g}", 1, say.say), say, snapshot_seconds=60)
        settings = config.finetune.model_copy(update={"epochs": epochs, "lr": rate, "checkpoints": checkpoints})
        phase = Finetune(
            prepared, settings, config.run, session, folder / f"weights-{rate:g}", prepared.class_weights(config.data)
        )
        session.total_steps = phase.total * len(rates)
        with session.signals():
            session.run(phase, session.resume())
        say.say(f"rate {rate:g}: dev {[round(100 * score, 2) for score in phase.scores]}")
        reached.append(FullLength(prepared, max(phase.scores), rate, phase, session.history))
    best = max(reached, key=lambda found: found.dev)
    best.phase.load_epoch(best.phase.best()[-1])
    return best
