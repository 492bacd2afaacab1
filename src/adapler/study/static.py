"""Models that remove nothing: fine-tuned at full length with every chance, the measure of all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from adapler.config import FinetuneSettings, TrainConfig
from adapler.training.finetune import Finetune
from adapler.training.progress import Silent
from adapler.training.session import Progress, Session
from adapler.training.setup import Prepared, prepare
from adapler.training.snapshot import Snapshots


def best_full_length(
    config: TrainConfig,
    folder: Path,
    *,
    epochs: int,
    rates: Sequence[float],
    progress: Progress | None = None,
    start: Callable[[], Prepared] | None = None,
) -> tuple[Prepared, float, float]:
    """The best by dev score of fine-tunings at several rates, loaded; its dev score and its rate. Goes on where it stopped.

    `start` gives what each of them begins with, where that is not what the settings describe.
    """
    reached: list[tuple[float, float, Callable[[], Prepared]]] = []
    for rate in rates:
        prepared = prepare(config) if start is None else start()
        say = progress or Silent()
        session = Session(Snapshots(folder / f"snapshots-{rate:g}", 1, say.say), say, snapshot_seconds=60)
        settings = FinetuneSettings(epochs=epochs, lr=rate, batch_size=config.finetune.batch_size, checkpoints=1)
        phase = Finetune(prepared, settings, config.run, session, folder / f"weights-{rate:g}", None)
        session.total_steps = phase.total * len(rates)
        with session.signals():
            session.run(phase, session.resume())
        say.say(f"rate {rate:g}: dev {[round(100 * score, 2) for score in phase.scores]}")
        reached.append((max(phase.scores), rate, _loader(prepared, phase)))
    dev, rate, load = max(reached, key=lambda found: found[0])
    return load(), dev, rate


def _loader(prepared: Prepared, phase: Finetune) -> Callable[[], Prepared]:
    def load() -> Prepared:
        phase.load_epoch(phase.best()[-1])
        return prepared

    return load
