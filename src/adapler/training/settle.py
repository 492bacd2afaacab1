"""After phase 3: the network gets used to the tokens that are left.

Soft removal only comes near to real removal, and until its last update `eta` moves. Here the predictors hold still, tokens
really leave, and the network alone goes on learning. A pass costs as much less as the model is faster.
"""

from __future__ import annotations

from adapler.methods.adapler import AdapLeR
from adapler.training import optim
from adapler.training.labelled import Labelled
from adapler.training.reducing import Given
from adapler.training.teacher import Teacher


class Settle(Labelled):
    """Label loss under the reduction that was learnt, thresholds on their way to the target where there is one."""

    name = "settle"
    kept_in = "settled.safetensors"
    reducer: AdapLeR

    def __init__(self, given: Given, reducer: AdapLeR, best_finetuned: float, teacher: Teacher | None) -> None:
        settings = given.config.reduce
        unlabelled = given.prepared.unlabelled
        super().__init__(
            given, reducer, best_finetuned, settings, teacher, epochs=settings.settle_epochs, unlabelled=unlabelled
        )
        self.approach_target()
        self.optimizers = {
            "optimizer": optim.weight_optimizer(self.parameters, settings.settle_lr, weight_decay=settings.weight_decay)
        }

    def improves(self, reached: float, speedup: float, epoch: int) -> bool:
        return self.best_of_last(reached, epoch)

    def step(self, batches: list[list[int]], epoch: int) -> float:
        return self.learn(batches, epoch)
