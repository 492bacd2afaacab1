"""The phase-1 model as a teacher of the reduced one: what it answers to each training text, and the vector it answers from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adapler.backbones.base import Backbone
from adapler.config import SteerSettings
from adapler.data.text import EncodedText, budget_batches
from adapler.engine import encode, pack
from adapler.evaluation.outcome import EVALUATION_BUDGET
from adapler.methods.losses import answer_distances
from adapler.problems import Problem
from adapler.tokens import Trace


@dataclass(frozen=True)
class Teacher:
    """Answers to the training texts at full length."""

    logits: Tensor
    """(examples, labels)."""
    problem: Problem
    vectors: Tensor
    """(examples, hidden): what the head read. A few hundred numbers a text, where the answer itself has two or three and is
    near certain on texts it was trained on."""
    spread: float
    """Mean squared distance of a vector from their mean: the unit of `vector_distance`."""
    labelled: int
    """How many of the examples, the first ones, have labels as well."""

    def answer_distance(self, batch: Sequence[int], logits: Tensor) -> Tensor:
        """From the teacher's answers, averaged over the batch."""
        return answer_distances(logits, self.logits[batch].to(logits.device), self.problem).mean()

    def vector_distance(self, batch: Sequence[int], vectors: Tensor) -> Tensor:
        """Mean squared distance from the teacher's vectors: 0 for the same, 1 for a constant in the midst of them."""
        return (vectors - self.vectors[batch].to(vectors.device)).square().sum(dim=-1).mean() / self.spread

    def share_of(self, label: Tensor, batch: Sequence[int], logits: Tensor, trace: Trace, steer: SteerSettings) -> Tensor:
        """The losses of a batch's labels, one a text that has one, with as much of the teacher in them as was asked for,
        averaged over the batch; of texts without a label the teacher's answer alone."""
        assert trace.pooled is not None
        labelled = torch.tensor([index < self.labelled for index in batch], device=logits.device)
        wanted = self.logits[batch].to(logits.device)
        answers = answer_distances(logits, wanted, self.problem) * torch.where(labelled, steer.distill, 1.0)
        vectors = steer.hint * self.vector_distance(batch, trace.pooled.float()) if steer.hint else 0.0
        return ((1 - steer.distill) * label.sum() + answers.sum()) / len(batch) + vectors


@torch.no_grad()
def teach(
    backbone: Backbone,
    labelled: Sequence[EncodedText],
    others: Sequence[EncodedText] = (),
    done: Callable[[int], None] = lambda texts: None,
) -> Teacher:
    """Ask the model as it is now, without dropout and removal; `done` hears how many texts were answered."""
    texts = [*labelled, *others]
    training = backbone.model.training
    backbone.model.eval()
    logits: list[Tensor | None] = [None] * len(texts)
    vectors: list[Tensor | None] = [None] * len(texts)
    for batch in budget_batches([len(text.ids) for text in texts], EVALUATION_BUDGET):
        tokens, _ = pack(backbone, [texts[index] for index in batch], backbone.model.device)
        given, trace = encode(backbone, tokens)
        assert trace.pooled is not None
        for index, answer, vector in zip(batch, given.float().cpu(), trace.pooled.float().cpu(), strict=True):
            logits[index], vectors[index] = answer, vector
        done(len(batch))
    backbone.model.train(training)
    stacked = torch.stack([vector for vector in vectors if vector is not None])
    spread = (stacked - stacked.mean(dim=0)).square().sum(dim=-1).mean()
    answers = torch.stack([row for row in logits if row is not None])
    return Teacher(answers, backbone.problem, stacked, max(float(spread), 1e-12), len(labelled))
