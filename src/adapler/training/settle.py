"""After phase 3: the network gets used to the tokens that are left.

Soft removal only comes near to real removal, and until its last update `eta` moves. Here the predictors hold still, tokens
really leave, and the network alone goes on learning. A pass costs as much less as the model is faster. Asked for a speed,
thresholds are scaled towards it pass by pass: a network that is thrown there at once may never learn to read so little.
"""

from __future__ import annotations

from adapler.methods.adapler import AdapLeR
from adapler.training import optim
from adapler.training.labelled import Labelled
from adapler.training.reducing import Given
from adapler.training.steering import reached_speedup, scale_for
from adapler.training.teacher import Teacher

RAMP = 2 / 3
"""Share of the passes over which thresholds move."""


class Settle(Labelled):
    """Label loss under the reduction that was learnt; of the passes at the last thresholds the best-scoring one is kept."""

    name = "settle"
    kept_in = "settled.safetensors"
    reducer: AdapLeR

    def __init__(self, given: Given, reducer: AdapLeR, best_finetuned: float, teacher: Teacher | None) -> None:
        settings = given.config.reduce
        unlabelled = given.prepared.unlabelled
        super().__init__(
            given, reducer, best_finetuned, settings, teacher, epochs=settings.settle_epochs, unlabelled=unlabelled
        )
        self.target = given.config.steer.target_speedup
        self.moves = 0 if self.target is None else max(1, round(RAMP * self.epochs))
        self.optimizers = {
            "optimizer": optim.weight_optimizer(self.parameters, settings.settle_lr, weight_decay=settings.weight_decay)
        }

    def improves(self, reached: float, speedup: float, epoch: int) -> bool:
        return epoch + 1 >= self.moves and (self.kept is None or reached >= self.kept["score"])

    def step(self, batches: list[list[int]], epoch: int) -> float:
        if self.updates == epoch * len(self.steps(0)) and epoch < self.moves:
            self._move(self.moves - epoch)
        return self.learn(batches)

    def _move(self, left: int) -> None:
        """Scale all thresholds: of the way to the target, in logarithms, one of the `left` parts."""
        assert self.target is not None
        now = reached_speedup(self.prepared, self.reducer)
        self.reducer.rescale(scale_for(self.prepared, self.reducer, now * (self.target / now) ** (1 / left)))
