"""A method's stages after fine-tuning, in order: one recipe a method, one line here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from adapler.config import TrainConfig
from adapler.registry import Registry
from adapler.training.finetune import Finetune
from adapler.training.reducing import Given, Reducing
from adapler.training.snapshot import Snapshot

RECIPES = Registry(
    "method",
    {
        "adapler": "adapler.training.adapler:AdapLeRRecipe",
        "power": "adapler.training.power:PowerRecipe",
        "trbert": "adapler.training.trbert:TrBertRecipe",
    },
)


class Recipe(ABC):
    """Everything between the fine-tuned model and the phase whose best epoch is the run's model."""

    phases: ClassVar[tuple[str, ...]]
    """Names of the phases after fine-tuning, in order."""

    @abstractmethod
    def steps(self, config: TrainConfig, examples: int, unlabelled: int) -> int:
        """What it counts on the progress bar, in updates."""

    @abstractmethod
    def run(self, given: Given, finetune: Finetune, snapshot: Snapshot | None) -> Reducing:
        """Run every phase, or what is left of them after `snapshot`; returns the last, whose best epoch is kept."""

    def passed(self, phase: str, snapshot: Snapshot | None) -> bool:
        """Whether the run had left this phase behind when the snapshot was written."""
        order = ("finetune", *self.phases)
        return snapshot is not None and order.index(snapshot.state["phase"]) > order.index(phase)


def updates(config: TrainConfig, examples: int, epochs: int, batch_size: int) -> int:
    """Updates of a phase."""
    return epochs * -(-examples // (batch_size * config.run.accumulate))
