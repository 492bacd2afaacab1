"""A phase in which the network learns from its labels, and from a teacher where there is one, while tokens leave.

Asked for a speed beyond what was learnt before, thresholds are scaled towards it pass by pass: a network that is thrown there
at once may never learn to read so little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from adapler.data.text import EncodedText
from adapler.engine import encode, pack
from adapler.methods.base import Reducer
from adapler.methods.losses import label_losses
from adapler.training.precision import autocast
from adapler.training.reducing import Given, MethodPasses, Reducing
from adapler.training.steering import reached_speedup, scale_for
from adapler.training.teacher import Teacher

RAMP = 2 / 3
"""Share of the passes over which thresholds move."""


class Labelled(Reducing):
    """Base of such phases. A subclass sets `optimizers` and says what a step is."""

    moves = 0
    """Passes at whose beginning thresholds move towards the target."""
    target: float | None = None
    """The speedup they move to."""

    def __init__(
        self,
        given: Given,
        reducer: Reducer,
        best_finetuned: float,
        settings: MethodPasses,
        teacher: Teacher | None = None,
        *,
        epochs: int,
        unlabelled: Sequence[EncodedText] = (),
    ) -> None:
        """`unlabelled`: texts of which a teacher knows the answers."""
        super().__init__(given, reducer, best_finetuned, settings, epochs=epochs, unlabelled=unlabelled)
        self.teacher = teacher
        self.parameters: dict[str, torch.nn.Parameter] = dict(self.model.named_parameters())
        self.sums = [0.0, 0.0]

    def gradients(self, batches: list[list[int]], soft: float | None) -> float:
        """Add the loss' gradients of an update; returns the loss. `soft` None: tokens really leave."""
        self.model.train()
        backbone, device = self.prepared.backbone, self.model.device
        count, loss = sum(map(len, batches)), 0.0
        for batch in filter(None, map(self.session.processes.own, batches)):
            with autocast(device, self.run_settings.precision):
                tokens, _ = pack(backbone, [self.texts[index] for index in batch], device)
                scale = None if soft is not None else self._scales(len(batch), device)
                logits, trace = encode(backbone, tokens, self.reducer, soft=soft, scale=scale)
                known = [place for place, index in enumerate(batch) if index < len(self.labels)]
                labels = self.labels[[batch[place] for place in known]]
                losses = label_losses(logits[known].float(), labels, self.class_weights)
                if self.teacher is None:
                    part = losses.sum() / len(batch)
                else:
                    part = self.teacher.share_of(losses, batch, logits.float(), trace, self.given.config.steer)
                part = part * (len(batch) / count)
            part.backward()
            loss += float(part.detach())
        return loss

    def _scales(self, count: int, device: torch.device) -> Tensor | None:
        """Of every text's thresholds: half of them as they are, the others log-uniform below. A network that only sees what is
        left at one speed forgets how to read more."""
        low = self.given.config.steer.settle_low
        if low == 1.0:
            return None
        drawn = low ** torch.rand(count, device=device)
        return torch.where(torch.rand(count, device=device) < 0.5, 1.0, drawn)

    def approach(self, target: float | None) -> None:
        """Let thresholds move to a speedup, if there is one to come to."""
        if target is not None:
            self.target, self.moves = target, max(1, round(RAMP * self.epochs))

    def best_of_last(self, reached: float, epoch: int) -> bool:
        """Whether an epoch is the best-scoring of those at the last thresholds, which are all about as fast."""
        return epoch + 1 >= self.moves and (self.kept is None or reached >= self.kept["score"])

    def learn(self, batches: list[list[int]], epoch: int) -> float:
        """One update of the network with tokens really leaving; returns the loss."""
        if epoch < self.moves and self.updates == epoch * len(self.steps(0)):
            self._move(self.moves - epoch)
        loss = self.session.exchange(list(self.parameters.values()), self.gradients(batches, None))
        self.update(self.parameters.values())
        self.observe(loss)
        return loss

    def _move(self, left: int) -> None:
        """Scale all thresholds: of the way to the target, in logarithms, one of the `left` parts."""
        assert self.target is not None
        now = reached_speedup(self.prepared, self.reducer)
        if left == self.moves:
            now = min(now, self.given.config.steer.settle_from or now)
        self.reducer.rescale(scale_for(self.prepared, self.reducer, now * (self.target / now) ** (1 / left)))

    def observe(self, loss: float) -> None:
        """For the history."""
        self.sums = [self.sums[0] + loss, self.sums[1] + 1]

    def figures(self, epoch: int) -> dict[str, Any]:
        mean = self.sums[0] / max(self.sums[1], 1)
        self.sums = [0.0, 0.0]
        return {"label_loss": mean}
