"""What a step of training costs: fine-tuning against transformers' Trainer, phase 3 and saliency against fine-tuning.

    python -m benchmarks.training_speed --data PATH/TO/ag_news

Every contender sees the same texts of the same model on the same threads, and they take turns within each repeat. The
Trainer is as people start it: dynamic padding, random order, its own defaults. Texts are tokenised beforehand for both.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console

from adapler.checkpoint import quiet
from adapler.config import TrainConfig, build_config
from adapler.data.text import budget_batches
from adapler.engine import encode, pack
from adapler.methods.adapler import AdapLeR
from adapler.records import Record, write_records
from adapler.training.finetune import Finetune
from adapler.training.progress import Silent
from adapler.training.reduce import Reduce
from adapler.training.reducing import Given
from adapler.training.saliency import BATCH_TOKENS, saliency
from adapler.training.session import Phase, Session
from adapler.training.setup import Prepared, load_backbone, prepare
from adapler.training.snapshot import Snapshots

OUT = Path(__file__).parent / "results" / "training-speed.json"
TEXTS = 640
TRAINER, FINETUNE, REDUCE = "transformers Trainer", "fine-tune", "phase 3"
BACKWARD, SALIENCY = "forward and backward", "saliency"

Contender = Callable[[], float]
"""Seconds for all texts once."""


def main(
    data: Annotated[str, typer.Option(help="Folder of splits.")],
    repeats: Annotated[int, typer.Option(help="Turns of every contender.")] = 5,
) -> None:
    """Time all contenders, print, write benchmarks/results/training-speed.json."""
    torch.set_flush_denormal(True)
    with tempfile.TemporaryDirectory() as folder:
        config = build_config(
            {
                "data": {"source": data, "train_limit": TEXTS},
                "finetune": {"epochs": repeats + 1},
                "reduce": {"epochs": repeats + 1},
            }
        )
        prepared = prepare(config)
        contenders = _contenders(config, prepared, Path(folder))
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for contender in contenders.values():
            contender()  # warm-up
        for _ in range(repeats):
            for name, contender in contenders.items():
                seconds[name].append(contender())
    write_records(OUT, _records(prepared.dataset.name, config, seconds))
    for name, found in seconds.items():
        Console().print(f"{name}: {TEXTS / statistics.median(found):.1f} texts/s")


def _contenders(config: TrainConfig, prepared: Prepared, folder: Path) -> dict[str, Contender]:
    silent = Silent()
    session = Session(Snapshots(folder / "snapshots", 1, silent.say), silent, snapshot_seconds=1e9)
    finetune = Finetune(prepared, config.finetune, config.run, session, folder, None)
    reducer = AdapLeR.for_backbone(prepared.backbone)
    uniform = [np.full(len(text.ids), 1 / len(text.ids), dtype=np.float32) for text in prepared.train]
    reduce = Reduce(Given(config, prepared, session, folder / "reduce"), reducer, 0.0, uniform, None)
    return {
        TRAINER: _trainer(config, prepared, folder),
        FINETUNE: _phase(finetune),
        REDUCE: _phase(reduce),
        BACKWARD: _backward(prepared),
        SALIENCY: _saliency(prepared),
    }


def _phase(phase: Phase) -> Contender:
    epochs = iter(range(phase.epochs))

    def epoch() -> float:
        number = next(epochs)
        begin = time.perf_counter()
        for batches in phase.steps(number):
            phase.step(batches, 0)
        return time.perf_counter() - begin

    return epoch


def _trainer(config: TrainConfig, prepared: Prepared, folder: Path) -> Contender:
    """One epoch of `Trainer.train`, without its start-up."""
    from transformers import DataCollatorWithPadding, Trainer, TrainerCallback, TrainingArguments
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    backbone, tokenizer = load_backbone(config.model, prepared.dataset.labels, config.run.seed)
    rows = [
        {"input_ids": text.ids.tolist(), "token_type_ids": text.types.tolist(), "labels": label}
        for text, label in zip(prepared.train, prepared.dataset.train.labels, strict=True)
    ]

    class Clock(TrainerCallback):  # type: ignore[misc]
        seconds = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.begin = time.perf_counter()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.seconds = time.perf_counter() - self.begin

    def epoch() -> float:
        clock = Clock()
        arguments = TrainingArguments(
            output_dir=str(folder / "trainer"),
            per_device_train_batch_size=config.finetune.batch_size,
            num_train_epochs=1,
            learning_rate=config.finetune.lr,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        with quiet():
            trainer = Trainer(
                model=backbone.model,
                args=arguments,
                train_dataset=rows,
                data_collator=DataCollatorWithPadding(tokenizer),
                callbacks=[clock],
            )
            trainer.train()
        return clock.seconds

    return epoch


def _backward(prepared: Prepared) -> Contender:
    """What a saliency batch is held against: the same batches forward, and backward to the weights."""
    backbone = prepared.backbone

    def batch(tokens: Any, labels: torch.Tensor) -> None:
        logits, _ = encode(backbone, tokens)
        torch.nn.functional.cross_entropy(logits, labels).backward()
        backbone.model.zero_grad()

    return _timed_batches(prepared, batch)


def _saliency(prepared: Prepared) -> Contender:
    return _timed_batches(prepared, lambda tokens, labels: saliency(prepared.backbone, tokens, labels))


def _timed_batches(prepared: Prepared, work: Callable[[Any, torch.Tensor], Any]) -> Contender:
    counts = [len(text.ids) for text in prepared.train]
    labels = torch.tensor(prepared.dataset.train.labels)

    def all_batches() -> float:
        prepared.backbone.model.eval()
        begin = time.perf_counter()
        for batch in budget_batches(counts, BATCH_TOKENS):
            tokens, _ = pack(prepared.backbone, [prepared.train[index] for index in batch], torch.device("cpu"))
            work(tokens, labels[batch])
        return time.perf_counter() - begin

    return all_batches


def _records(task: str, config: TrainConfig, seconds: dict[str, list[float]]) -> list[Record]:
    against = {FINETUNE: TRAINER, REDUCE: FINETUNE, SALIENCY: BACKWARD}
    records = []
    for name, found in seconds.items():
        rates = [TEXTS / value for value in found]
        other = against.get(name)
        records.append(
            Record(
                kind="bench",
                task=task,
                variant=f"training, {name}",
                backbone=config.model,
                split="train",
                n=TEXTS,
                value=statistics.median(rates),
                unit="texts/s",
                spread=max(rates) - min(rates),
                repeats=len(rates),
                batch=str(config.finetune.batch_size) if name in (TRAINER, FINETUNE, REDUCE) else f"{BATCH_TOKENS} tokens",
                threads=torch.get_num_threads(),
                wall_speedup=None
                if other is None
                else statistics.median(b / a for a, b in zip(found, seconds[other], strict=True)),
                wall_vs=other,
            )
        )
    return records


if __name__ == "__main__":
    typer.run(main)
