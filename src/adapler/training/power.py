"""PoWER-BERT's recipe: search a retention configuration with soft extraction, then train again with the real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from adapler.config import TrainConfig
from adapler.data.text import EncodedText
from adapler.methods.power import Power
from adapler.methods.settings import PowerSettings
from adapler.training import optim
from adapler.training.finetune import Finetune
from adapler.training.labelled import Labelled
from adapler.training.recipes import Recipe, updates
from adapler.training.reducing import Given, Reducing
from adapler.training.snapshot import Snapshot
from adapler.training.teacher import Teacher, teach

SOFT = 1.0
"""There is no steepness here: any number asks the method for soft extraction."""


class PowerRecipe(Recipe):
    """Phases 2 and 3 of the paper."""

    phases = ("search", "retrain")

    def steps(self, config: TrainConfig, examples: int, unlabelled: int) -> int:
        passes, size = config.power, config.power.batch_size
        again = updates(config, examples + unlabelled, passes.retrain_epochs or passes.epochs, size)
        return updates(config, examples, passes.epochs, size) + again

    def run(self, given: Given, finetune: Finetune, snapshot: Snapshot | None) -> Reducing:
        prepared, session = given.prepared, given.session
        finetune.load_epoch(finetune.best()[-1])
        torch.manual_seed(given.config.run.seed)
        settings = PowerSettings(ranks=prepared.max_length)
        reducer = Power(settings, len(prepared.backbone.blocks)).to(prepared.backbone.model.device)
        session.processes.part_ways()
        search = Search(given, reducer, max(finetune.scores))
        teacher = None
        if given.config.steer.taught or prepared.unlabelled:
            with prepared.computing():
                teacher = teach(prepared.backbone, prepared.train, prepared.unlabelled, lambda texts: session.stop_if_asked())
        if not self.passed(search.name, snapshot):
            session.run(search, snapshot)
        retrain = Retrain(given, reducer, max(finetune.scores), teacher)
        session.run(retrain, snapshot)
        return retrain


class _PowerPhase(Labelled):
    """A phase with PoWER-BERT's settings."""

    reducer: Power

    def __init__(
        self,
        given: Given,
        reducer: Power,
        best_finetuned: float,
        epochs: int,
        teacher: Teacher | None = None,
        unlabelled: Sequence[EncodedText] = (),
    ) -> None:
        self.settings = given.config.power
        super().__init__(given, reducer, best_finetuned, self.settings, teacher, epochs=epochs, unlabelled=unlabelled)
        self.optimizers = {"optimizer": optim.weight_optimizer(self.parameters, self.settings.lr, weight_decay=0.0, eps=1e-8)}

    def figures(self, epoch: int) -> dict[str, Any]:
        return {**super().figures(epoch), "retained": [int(count) for count in self.reducer.lengths()]}


class Search(_PowerPhase):
    """Label loss plus `penalty` times the retention, deep layers charged more; the last weights go on."""

    name = "search"
    keeps = False

    def __init__(self, given: Given, reducer: Power, best_finetuned: float) -> None:
        super().__init__(given, reducer, best_finetuned, given.config.power.epochs)
        rate = self.settings.retention_lr or retention_rate(self.total)
        self.optimizers["retention"] = torch.optim.Adam([{"params": [reducer.retention], "peak": rate}], lr=rate)
        depth = len(reducer.retention)
        self.charge = torch.arange(1, depth + 1, device=reducer.retention.device).unsqueeze(-1)

    def step(self, batches: list[list[int]], epoch: int) -> float:
        label = self.gradients(batches, SOFT)
        processes = self.session.processes
        if processes.leads:  # once, whatever the number of processes: their gradients are summed
            (self.settings.penalty * (self.charge * self.reducer.retention.abs()).sum()).backward()
        retention = self.reducer.retention
        loss = self.session.exchange([*self.parameters.values(), retention], label)
        self.update(self.parameters.values())
        with torch.no_grad():
            retention.clamp_(0.0, 1.0)
        self.observe(loss)
        return loss


class Retrain(_PowerPhase):
    """Label loss under the configuration found, tokens really leaving; it is on its way to the target where there is one. What
    is retained does not depend on the weights, so that all epochs there are equally fast and the best-scoring one is kept."""

    name = "retrain"

    def __init__(self, given: Given, reducer: Power, best_finetuned: float, teacher: Teacher | None) -> None:
        settings = given.config.power
        epochs = settings.retrain_epochs or settings.epochs
        super().__init__(given, reducer, best_finetuned, epochs, teacher, given.prepared.unlabelled)
        self.approach(given.config.steer.target_speedup)

    def improves(self, reached: float, speedup: float, epoch: int) -> bool:
        return self.best_of_last(reached, epoch)

    def step(self, batches: list[list[int]], epoch: int) -> float:
        return self.learn(batches, epoch)


def retention_rate(total: int) -> float:
    """Rate of the retention by which Adam's steps of a run add up to 1.5, so that what nothing holds reaches 0."""
    return min(max(3.0 / total, 1e-4), 3e-2)
