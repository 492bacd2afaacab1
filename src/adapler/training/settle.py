"""After a method's own phases: the network gets used to the tokens that are left.

AdapLeR's soft removal only comes near to real removal, and until its last update `eta` moves; TR-BERT's tokens were drawn. Here
what decides holds still, tokens really leave, and the network alone goes on learning. A pass costs as much less as the model is
faster.
"""

from __future__ import annotations

from collections.abc import Sequence

from adapler.config import ReduceSettings, TrBertSettings
from adapler.data.text import EncodedText
from adapler.methods.base import Reducer
from adapler.training import optim
from adapler.training.labelled import Labelled
from adapler.training.reducing import Given
from adapler.training.teacher import Teacher


class Settle(Labelled):
    """Label loss under the reduction that was learnt, thresholds on their way to the target where there is one."""

    name = "settle"
    kept_in = "settled.safetensors"

    def __init__(
        self,
        given: Given,
        reducer: Reducer,
        best_finetuned: float,
        teacher: Teacher | None,
        settings: ReduceSettings | TrBertSettings,
        *,
        target: float | None,
        weight_decay: float = 0.0,
        unlabelled: Sequence[EncodedText] = (),
    ) -> None:
        """`target`: the speedup to come to; None leaves thresholds where they are."""
        super().__init__(
            given, reducer, best_finetuned, settings, teacher, epochs=settings.settle_epochs, unlabelled=unlabelled
        )
        self.approach(target)
        self.optimizers = {"optimizer": optim.weight_optimizer(self.parameters, settings.settle_lr, weight_decay=weight_decay)}

    def improves(self, reached: float, speedup: float, epoch: int) -> bool:
        return self.best_of_last(reached, epoch)

    def step(self, batches: list[list[int]], epoch: int) -> float:
        return self.learn(batches, epoch)
