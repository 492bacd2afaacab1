"""AdapLeR's recipe: saliencies of the best fine-tuned checkpoints, then soft removal that steepens."""

from __future__ import annotations

import torch

from adapler.config import TrainConfig
from adapler.methods.adapler import AdapLeR
from adapler.methods.settings import AdapLeRSettings
from adapler.training.finetune import Finetune
from adapler.training.recipes import Recipe, updates
from adapler.training.reduce import Reduce
from adapler.training.reducing import Given, Reducing
from adapler.training.saliency import PART_TEXTS, extract
from adapler.training.settle import Settle
from adapler.training.setup import load_backbone
from adapler.training.snapshot import Snapshot
from adapler.training.teacher import teach

_ANSWERED_TEXTS = 96
"""Texts a teacher answers in the time of a step of training: it only goes forward."""
_PART_STEPS = 3 * PART_TEXTS // 64
"""What a part of the saliencies counts on the progress bar, in steps of training."""


class AdapLeRRecipe(Recipe):
    """Phases 2 and 3 of the paper; then, if asked, the network settles."""

    phases = (Reduce.name, Settle.name)

    def steps(self, config: TrainConfig, examples: int, unlabelled: int) -> int:
        parts = -(-examples // PART_TEXTS)
        answered = (examples + unlabelled) // _ANSWERED_TEXTS if config.steer.taught or unlabelled else 0
        passes, size = config.reduce, config.reduce.batch_size
        return (
            parts * _PART_STEPS
            + answered
            + updates(config, examples, passes.epochs, size)
            + updates(config, examples + unlabelled, passes.settle_epochs, size)
        )

    def run(self, given: Given, finetune: Finetune, snapshot: Snapshot | None) -> Reducing:
        config, prepared, session = given.config, given.prepared, given.session
        backbone, processes, device = prepared.backbone, session.processes, str(prepared.backbone.model.device)

        def part_done(parts: int) -> None:
            session.progress.advance(parts * _PART_STEPS / session.total_steps)
            session.stop_if_asked()

        def answered(texts: int) -> None:
            session.progress.advance(texts / _ANSWERED_TEXTS / session.total_steps)
            session.stop_if_asked()  # many texts take minutes

        session.progress.phase("saliency")
        best = finetune.best()
        saliencies = extract(
            backbone,
            prepared.train,
            prepared.dataset.train.labels,
            [lambda epoch=epoch: finetune.load_epoch(epoch) for epoch in best],  # type: ignore[misc]
            given.work / "saliency",
            part_done,
            processes,
            config.reduce.target,
        )
        finetune.load_epoch(best[-1])
        teacher = None
        if config.steer.taught or prepared.unlabelled:
            session.progress.phase("teacher")
            with prepared.computing():
                teacher = teach(backbone, prepared.train, prepared.unlabelled, answered)
        if config.reduce.start == "pretrained":
            problem = prepared.dataset.problem
            fresh, _ = load_backbone(config.model, prepared.dataset.labels, config.run.seed, device, problem)
            backbone.model.load_state_dict(fresh.model.state_dict())
        torch.manual_seed(config.run.seed)
        reducer = AdapLeR.for_backbone(backbone, AdapLeRSettings(site=config.reduce.site)).to(device)
        processes.part_ways()
        reduce = Reduce(given, reducer, max(finetune.scores), saliencies, teacher)
        if not config.reduce.settle_epochs:
            session.run(reduce, snapshot)
            return reduce
        if not self.passed(reduce.name, snapshot):
            session.run(reduce, snapshot)
            reduce.load_best()
        settle = Settle(
            given,
            reducer,
            max(finetune.scores),
            teacher,
            config.reduce,
            target=config.steer.target_speedup,
            weight_decay=config.reduce.weight_decay,
            unlabelled=prepared.unlabelled,
        )
        session.run(settle, snapshot)
        return settle
