"""Phase 3: soft removal that steepens every epoch; predictors follow the saliencies, eta and theta speed and accuracy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adapler.engine import encode, pack
from adapler.methods.adapler import AdapLeR
from adapler.methods.adapler_losses import Losses, objective
from adapler.tokens import Trace
from adapler.training import optim
from adapler.training.precision import autocast
from adapler.training.reducing import Given, Reducing
from adapler.training.schedule import lambda_of_epoch
from adapler.training.steering import EVERY, reached_speedup, steered
from adapler.training.teacher import Teacher


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


class Reduce(Reducing):
    """Trains network and predictors for `total`, eta and theta for `combined`; keeps the best epoch by the authors' rule."""

    name = "reduce"
    reducer: AdapLeR

    def __init__(
        self,
        given: Given,
        reducer: AdapLeR,
        best_finetuned: float,
        saliencies: list[NDArray[np.float32]],
        teacher: Teacher | None,
    ) -> None:
        """`teacher`: the phase-1 model's answers, if it is to be followed."""
        settings = given.config.reduce
        super().__init__(given, reducer, best_finetuned, settings, epochs=settings.epochs)
        self.saliencies, self.teacher = saliencies, teacher
        reducer.apart = settings.apart
        self.settings, self.steer = settings, given.config.steer
        self.parameters = optim.weight_parameters(self.model, reducer)
        self.optimizers = {
            "optimizer": optim.weight_optimizer(
                self.parameters,
                settings.lr,
                predictor_lr=settings.predictor_lr or predictor_rate(self.total, settings.lr),
                weight_decay=settings.weight_decay,
            ),
            "thresholds": optim.threshold_optimizer(
                reducer,
                settings.threshold_lr or threshold_rate(self.total),
                settings.threshold_memory or threshold_memory(len(self.steps(0))),
            ),
        }
        self.phi = settings.phi
        self.sums = [0.0] * 4

    def steepness(self, epoch: int) -> float:
        """lambda of an epoch."""
        return lambda_of_epoch(epoch, self.epochs, self.settings.lambda_base, self.settings.lambda_growth)

    def step(self, batches: list[list[int]], epoch: int) -> float:
        self._steer()
        self.model.train()
        count = sum(map(len, batches))
        seen = [0.0] * 4
        for batch in filter(None, map(self.session.processes.own, batches)):
            losses, trace = self._losses(batch, epoch)
            share = len(batch) / count
            optim.backward(self.reducer, trace, losses, self.parameters.values(), share=share)
            for place, part in enumerate((losses.label, losses.contribution, losses.length, losses.total)):
                seen[place] += float(part.detach()) * share
        thresholds = [self.reducer.eta, self.reducer.theta]
        if not self.settings.learn_theta and self.reducer.theta.grad is not None:
            self.reducer.theta.grad.zero_()
        *observed, loss = self.session.exchange_all([*self.parameters.values(), *thresholds], seen)
        self.sums = [before + new for before, new in zip(self.sums, (*observed, 1.0), strict=True)]
        self.update(self.parameters.values(), thresholds)
        optim.keep_eta_in_range(self.reducer)
        optim.keep_theta_positive(self.reducer)
        return loss

    def figures(self, epoch: int) -> dict[str, Any]:
        label, contribution, length, updates = self.sums
        self.sums = [0.0] * 4
        return {
            "lambda": self.steepness(epoch),
            "phi": self.phi,
            "eta": [round(value, 5) for value in self.reducer.eta.tolist()],
            "theta": [round(value, 5) for value in self.reducer.theta.tolist()],
            "label_loss": label / max(updates, 1),
            "contribution_loss": contribution / max(updates, 1),
            "length_loss": length / max(updates, 1),
        }

    def state(self) -> dict[str, Any]:
        return {**super().state(), "phi": self.phi}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.phi = state["phi"]

    def _losses(self, batch: list[int], epoch: int) -> tuple[Losses, Trace]:
        backbone, device = self.prepared.backbone, self.model.device
        with autocast(device, self.run_settings.precision):
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
            divergence=self.settings.divergence,
            merged=self.settings.merged,
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

    def _steer(self) -> None:
        """Every few updates, set phi by how far the run is from the speedup that was asked for."""
        if self.steer.target_speedup is not None and self.updates % EVERY == 0:
            self.phi = steered(self.settings.phi, self.steer.target_speedup, reached_speedup(self.prepared, self.reducer))
