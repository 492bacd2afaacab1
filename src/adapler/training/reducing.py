"""A phase that trains a method's reducer together with its model: evaluated with real removal, the best epoch kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from adapler.config import PowerSettings, ReduceSettings, TrainConfig, TrBertSettings
from adapler.data.batches import epoch_batches
from adapler.data.text import EncodedText
from adapler.evaluation.metrics import score
from adapler.evaluation.outcome import Outcome, run
from adapler.methods.base import Reducer
from adapler.training import optim
from adapler.training.finetune import MODEL, grouped
from adapler.training.optimizer_state import load_optimizer_tensors, optimizer_tensors, set_rates
from adapler.training.schedule import learning_rate_factor
from adapler.training.selection import Selection
from adapler.training.session import Phase, Session
from adapler.training.setup import Prepared
from adapler.training.snapshot import write_tensors

REDUCER = "reducer."
MethodPasses = ReduceSettings | PowerSettings | TrBertSettings
"""Settings that say how a method's phases go over the data."""
_SEED_OFFSET = 1_000_003  # these phases visit the data in another order than phase 1


@dataclass(frozen=True)
class Given:
    """What every phase of a run is given."""

    config: TrainConfig
    prepared: Prepared
    session: Session
    work: Path
    """Folder for what is kept between phases."""
    class_weights: Tensor | None = None


class Reducing(Phase):
    """Base of a method's phases. A subclass sets `optimizers` and says what a step is."""

    keeps = True
    """Whether the run's model comes out of this phase; one that only prepares keeps no epoch."""
    kept_in = "best.safetensors"

    def __init__(
        self,
        given: Given,
        reducer: Reducer,
        best_finetuned: float,
        settings: MethodPasses,
        *,
        epochs: int,
        unlabelled: Sequence[EncodedText] = (),
    ) -> None:
        """`best_finetuned`: the dev score to hold. `unlabelled`: texts to go over besides those with labels."""
        self.given, self.prepared, self.session, self.reducer = given, given.prepared, given.session, reducer
        self.class_weights, self.run_settings = given.class_weights, given.config.run
        self.epochs, self.batch_size, self.warmup = epochs, settings.batch_size, settings.warmup
        self.model = self.prepared.backbone.model
        self.labels = torch.tensor(self.prepared.dataset.train.labels, device=self.model.device)
        self.texts = [*self.prepared.train, *unlabelled]
        self.lengths = [len(text.ids) for text in self.texts]
        self.total = epochs * len(self.steps(0))
        self.updates = 0
        self.sums: list[float] = []
        """Of the epoch so far, for `figures`; what they are sums of is the subclass' own."""
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.selection = Selection(best_finetuned, margin=given.config.steer.max_loss / 100)
        self.best_score = -math.inf
        self.kept: dict[str, Any] | None = None
        """The history row of the epoch whose weights lie in `best_file`."""

    @property
    def best_file(self) -> Path:
        """Weights of the epoch that is kept so far."""
        return self.given.work / self.kept_in

    def steps(self, epoch: int) -> list[list[list[int]]]:
        order = epoch_batches(self.lengths, self.batch_size, self.run_settings.seed + _SEED_OFFSET, epoch)
        return grouped(order, self.run_settings.accumulate)

    def figures(self, epoch: int) -> dict[str, Any]:
        """What the phase itself tells of an epoch that is over."""
        return {}

    def update(self, *groups: Iterable[Tensor]) -> None:
        """One step of every optimiser on the gradients there are; each group of parameters is clipped together."""
        for group in groups:
            optim.clip_gradients(group)
        factor = learning_rate_factor(self.updates, self.total, self.warmup * self.total)
        for optimizer in self.optimizers.values():
            set_rates(optimizer, factor)
            optimizer.step()
            optimizer.zero_grad()
        self.updates += 1

    def finish_epoch(self, epoch: int) -> None:
        """Evaluate with real removal; keep the fastest epoch within the margin, or, while none is, the best-scoring one."""
        dataset = self.prepared.dataset
        with self.prepared.computing():
            outcome: Outcome = run(self.prepared.backbone, self.reducer, self.prepared.dev)
        reached = score(dataset.metric, dataset.dev.labels, outcome.predictions)
        row: dict[str, Any] = {
            "phase": self.name,
            "epoch": epoch,
            "score": reached,
            **outcome.speedups.to_dict(),
            "lengths": np.mean(outcome.lengths, axis=0).round(3).tolist(),
            **self.figures(epoch),
        }
        speedup = outcome.speedups.flops_speedup
        if self.keeps:
            self._keep_if_best(row, reached, speedup, epoch)
        self.session.history.append(row)
        self.session.progress.note(f"dev {dataset.metric} {100 * reached:.1f} at {speedup:.2f}x")

    def load_best(self) -> None:
        """Put the kept epoch's weights into model and reducer."""
        self._load_weights(load_file(self.best_file))

    def tensors(self) -> dict[str, Tensor]:
        tensors = self._weights()
        for name, optimizer in self.optimizers.items():
            tensors |= optimizer_tensors(name, optimizer)
        return tensors

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self._load_weights(tensors)
        for name, optimizer in self.optimizers.items():
            load_optimizer_tensors(name, optimizer, tensors)

    def state(self) -> dict[str, Any]:
        return {
            "updates": self.updates,
            "sums": self.sums,
            "best_speedup": self.selection.best_speedup,
            "best_score": self.best_score if math.isfinite(self.best_score) else None,
            "kept": self.kept,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.updates, self.sums, self.kept = state["updates"], list(state["sums"]), state["kept"]
        self.selection.best_speedup = state["best_speedup"]
        self.best_score = -math.inf if state["best_score"] is None else state["best_score"]

    def improves(self, reached: float, speedup: float, epoch: int) -> bool:
        """Whether an epoch is to be kept instead of the one that is: the fastest within the margin, and before there is any the
        best-scoring one."""
        # Asked for a speed, the run steers towards it and the longest-trained model is the one wanted; else the fastest is.
        asked = self.given.config.steer.target_speedup
        passed = self.selection.offer(reached, speedup if asked is None else epoch + 1.0)
        return passed or (self.selection.best_speedup == 0 and reached > self.best_score)

    def _keep_if_best(self, row: dict[str, Any], reached: float, speedup: float, epoch: int) -> None:
        if self.improves(reached, speedup, epoch):
            if self.session.processes.leads:
                write_tensors(self.best_file, self._weights())
            self.kept = {**row, "within_margin": reached > self.selection.threshold}
        self.best_score = max(self.best_score, reached)

    def _weights(self) -> dict[str, Tensor]:
        weights = {MODEL + name: tensor for name, tensor in self.model.state_dict().items()}
        return weights | {REDUCER + name: tensor for name, tensor in self.reducer.state_dict().items()}

    def _load_weights(self, tensors: dict[str, Tensor]) -> None:
        self.model.load_state_dict({name[len(MODEL) :]: t for name, t in tensors.items() if name.startswith(MODEL)})
        self.reducer.load_state_dict({name[len(REDUCER) :]: t for name, t in tensors.items() if name.startswith(REDUCER)})
