"""Phase 3: soft removal that steepens every epoch; predictors follow the saliencies, eta and theta speed and accuracy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from adapler.config import ReduceSettings, RunSettings, SteerSettings
from adapler.data.batches import epoch_batches
from adapler.engine import encode, pack
from adapler.evaluation.outcome import Outcome, run, score
from adapler.methods.adapler import AdapLeR
from adapler.methods.adapler_losses import Losses, objective
from adapler.tokens import Trace
from adapler.training import optim
from adapler.training.finetune import MODEL, autocast, grouped
from adapler.training.optimizer_state import load_optimizer_tensors, optimizer_tensors, set_rates
from adapler.training.schedule import lambda_of_epoch, learning_rate_factor
from adapler.training.selection import Selection
from adapler.training.session import Phase, Session
from adapler.training.setup import Prepared
from adapler.training.snapshot import write_tensors
from adapler.training.teacher import Teacher

REDUCER = "reducer."
STEER_EVERY, STEER_TEXTS = 8, 96
"""While steering: updates between two looks at the speedup really reached, and how many dev texts are looked at."""
_SEED_OFFSET = 1_000_003  # phase 3 visits the data in another order than phase 1


def threshold_rate(updates: int) -> float:
    """Rate of eta and theta by which a run of `updates` lets Adam's steps add up to about 2.5, as the paper's runs of ten
    thousand do at 5e-4; a run of five hundred would otherwise leave eta where it started."""
    return min(max(5.0 / updates, 5e-4), 2e-2)


def threshold_memory(updates_per_epoch: int) -> float:
    """Adam's second beta for eta and theta, by which a tenth of an epoch is remembered; the usual 0.999 for long epochs."""
    return min(max(1 - 10 / updates_per_epoch, 0.9), 0.999)


def predictor_rate(updates: int, lr: float) -> float:
    """Rate of the predictors, which start from nothing: larger the fewer the updates, never below the network's own."""
    return min(max(0.75 / updates, lr), 2e-3)


def steered_phi(phi: float, target: float, speedup: float) -> float:
    """`phi` times how far, and on which side, a run is from its target: the whole of it a quarter below, its negative a
    quarter above. A negative phi pays for tokens instead of charging them, so an overshoot is undone; a small positive one
    could not, because past lambda 100 the label loss hardly reaches eta."""
    return phi * min(max(math.log(target / speedup) / math.log(1.25), -1.0), 1.0)


class Reduce(Phase):
    """Trains network and predictors for `total`, eta and theta for `combined`; keeps the best epoch by the authors' rule."""

    name = "reduce"

    def __init__(
        self,
        prepared: Prepared,
        reducer: AdapLeR,
        saliencies: list[NDArray[np.float32]],
        teacher: Teacher | None,
        best_finetuned: float,
        settings: ReduceSettings,
        steer: SteerSettings,
        run_settings: RunSettings,
        session: Session,
        folder: Path,
        class_weights: Tensor | None,
    ) -> None:
        """`teacher`: the phase-1 model's answers, if it is to be followed; `best_finetuned`: the dev score to hold."""
        self.prepared, self.reducer, self.saliencies, self.teacher = prepared, reducer, saliencies, teacher
        self.settings, self.steer, self.session, self.folder = settings, steer, session, folder
        self.seed, self.accumulate, self.precision = run_settings.seed, run_settings.accumulate, run_settings.precision
        self.class_weights = class_weights
        self.epochs = settings.epochs
        self.model = prepared.backbone.model
        self.labels = torch.tensor(prepared.dataset.train.labels, device=self.model.device)
        self.lengths = [len(text.ids) for text in prepared.train]
        self.parameters = optim.weight_parameters(self.model, reducer)
        self.total = self.epochs * len(self.steps(0))
        self.optimizer = optim.weight_optimizer(
            self.parameters,
            settings.lr,
            predictor_lr=settings.predictor_lr or predictor_rate(self.total, settings.lr),
            weight_decay=settings.weight_decay,
        )
        self.thresholds = optim.threshold_optimizer(
            reducer,
            settings.threshold_lr or threshold_rate(self.total),
            settings.threshold_memory or threshold_memory(len(self.steps(0))),
        )
        self.updates = 0
        self.phi = settings.phi
        self.sums = [0.0] * 4
        self.selection = Selection(best_finetuned, margin=steer.max_loss / 100)
        self.best_score = -math.inf
        self.kept: dict[str, Any] | None = None
        """The history row of the epoch whose weights lie in `best_file`."""

    @property
    def best_file(self) -> Path:
        """Weights of the epoch that is kept so far."""
        return self.folder / "best.safetensors"

    def steps(self, epoch: int) -> list[list[list[int]]]:
        order = epoch_batches(self.lengths, self.settings.batch_size, self.seed + _SEED_OFFSET, epoch)
        return grouped(order, self.accumulate)

    def steepness(self, epoch: int) -> float:
        """lambda of an epoch."""
        return lambda_of_epoch(epoch, self.epochs, self.settings.lambda_base, self.settings.lambda_growth)

    def step(self, batches: list[list[int]], epoch: int) -> float:
        self._steer()
        self.model.train()
        count, loss = sum(map(len, batches)), 0.0
        for batch in filter(None, map(self.session.processes.own, batches)):
            losses, trace = self._losses(batch, epoch)
            optim.backward(self.reducer, trace, losses, self.parameters.values(), share=len(batch) / count)
            loss += float(losses.total.detach()) * len(batch) / count
            self._observe(losses)
        loss = self.session.exchange([*self.parameters.values(), self.reducer.eta, self.reducer.theta], loss)
        optim.clip_gradients(self.parameters.values())
        optim.clip_gradients([self.reducer.eta, self.reducer.theta])
        factor = learning_rate_factor(self.updates, self.total, self.settings.warmup * self.total)
        for optimizer in (self.optimizer, self.thresholds):
            set_rates(optimizer, factor)
            optimizer.step()
            optimizer.zero_grad()
        optim.keep_eta_in_range(self.reducer)
        optim.keep_theta_positive(self.reducer)
        self.updates += 1
        return loss

    def finish_epoch(self, epoch: int) -> None:
        """Evaluate with real removal; keep the fastest epoch within the margin, or, while none is, the best-scoring one."""
        dataset = self.prepared.dataset
        outcome: Outcome = run(self.prepared.backbone, self.reducer, self.prepared.dev)
        reached = score(dataset.metric, dataset.dev.labels, outcome.predictions)
        label, contribution, length, batches = self.sums
        row: dict[str, Any] = {
            "phase": self.name,
            "epoch": epoch,
            "score": reached,
            **outcome.speedups.to_dict(),
            "lengths": np.mean(outcome.lengths, axis=0).round(3).tolist(),
            "lambda": self.steepness(epoch),
            "phi": self.phi,
            "eta": [round(value, 5) for value in self.reducer.eta.tolist()],
            "theta": [round(value, 5) for value in self.reducer.theta.tolist()],
            "label_loss": label / max(batches, 1),
            "contribution_loss": contribution / max(batches, 1),
            "length_loss": length / max(batches, 1),
        }
        self.sums = [0.0] * 4
        speedup = outcome.speedups.flops_speedup
        # Asked for a speed, the run steers towards it and the longest-trained model is the one wanted; else the fastest is.
        passed = self.selection.offer(reached, speedup if self.steer.target_speedup is None else epoch + 1.0)
        if passed or (self.selection.best_speedup == 0 and reached > self.best_score):
            weights = {MODEL + name: tensor for name, tensor in self.model.state_dict().items()}
            if self.session.processes.leads:
                write_tensors(self.best_file, weights | {REDUCER + n: t for n, t in self.reducer.state_dict().items()})
            self.kept = {**row, "within_margin": passed}
        self.best_score = max(self.best_score, reached)
        self.session.history.append(row)
        self.session.progress.note(f"dev {dataset.metric} {100 * reached:.1f} at {speedup:.2f}x")

    def load_best(self) -> None:
        """Put the kept epoch's weights into model and reducer."""
        self._load_weights(load_file(self.best_file))

    def tensors(self) -> dict[str, Tensor]:
        weights = {MODEL + name: tensor for name, tensor in self.model.state_dict().items()}
        weights |= {REDUCER + name: tensor for name, tensor in self.reducer.state_dict().items()}
        return weights | optimizer_tensors("optimizer", self.optimizer) | optimizer_tensors("thresholds", self.thresholds)

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self._load_weights(tensors)
        load_optimizer_tensors("optimizer", self.optimizer, tensors)
        load_optimizer_tensors("thresholds", self.thresholds, tensors)

    def state(self) -> dict[str, Any]:
        return {
            "updates": self.updates,
            "phi": self.phi,
            "sums": self.sums,
            "best_speedup": self.selection.best_speedup,
            "best_score": self.best_score if math.isfinite(self.best_score) else None,
            "kept": self.kept,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.updates, self.phi = state["updates"], state["phi"]
        self.sums, self.kept = list(state["sums"]), state["kept"]
        self.selection.best_speedup = state["best_speedup"]
        self.best_score = -math.inf if state["best_score"] is None else state["best_score"]

    def _losses(self, batch: list[int], epoch: int) -> tuple[Losses, Trace]:
        backbone, device = self.prepared.backbone, self.model.device
        with autocast(device, self.precision):
            tokens, _ = pack(backbone, [self.prepared.train[index] for index in batch], device)
            logits, trace = encode(
                backbone, tokens, self.reducer, soft=self.steepness(epoch), scale=self._scales(len(batch), device)
            )
        saliency = torch.from_numpy(np.concatenate([self.saliencies[index] for index in batch])).to(device)
        losses = objective(
            self.reducer,
            logits.float(),
            trace,
            self.labels[batch],
            saliency,
            gamma=self.settings.gamma,
            phi=self.phi,
            class_weights=self.class_weights,
        )
        if self.teacher is None:
            return losses, trace
        losses = losses.distilled(self.teacher.answer_distance(batch, logits.float()), self.steer.distill)
        assert trace.pooled is not None
        return losses.hinted(self.teacher.vector_distance(batch, trace.pooled.float()), self.steer.hint), trace

    def _scales(self, count: int, device: torch.device) -> Tensor | None:
        """A random scale of the thresholds for every text, log-uniform, so that one model serves many speeds."""
        low, high = self.steer.scale_low, self.steer.scale_high
        if high <= low:
            return None
        return torch.empty(count, device=device).uniform_(math.log(low), math.log(high)).exp()

    def _observe(self, losses: Losses) -> None:
        """Sums for the history."""
        for place, loss in enumerate((losses.label, losses.contribution, losses.length)):
            self.sums[place] += float(loss.detach())
        self.sums[3] += 1

    def _steer(self) -> None:
        """Every few updates, set phi by the speedup with real removal on a sample of dev (its labels are not looked at).

        Training batches would mislead: their lengths may be others than the user's (phrases in train, sentences in dev).
        """
        if self.steer.target_speedup is None or self.updates % STEER_EVERY:
            return
        dev = self.prepared.dev
        sample = dev[:: max(1, len(dev) // STEER_TEXTS)][:STEER_TEXTS]
        reached = run(self.prepared.backbone, self.reducer, sample).speedups.flops_speedup
        self.phi = steered_phi(self.settings.phi, self.steer.target_speedup, reached)

    def _load_weights(self, tensors: dict[str, Tensor]) -> None:
        self.model.load_state_dict({name[len(MODEL) :]: t for name, t in tensors.items() if name.startswith(MODEL)})
        self.reducer.load_state_dict({name[len(REDUCER) :]: t for name, t in tensors.items() if name.startswith(REDUCER)})
