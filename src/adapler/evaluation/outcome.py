"""A model run over labelled texts, really removing tokens: predictions, who was kept, what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adapler.backbones.base import Backbone
from adapler.cost import Speedups, authors_lengths, authors_speedup, speedups
from adapler.data.text import EncodedText, budget_batches
from adapler.engine import encode, model_cost, pack
from adapler.methods.base import Reducer
from adapler.problems import Problem, answers
from adapler.tokens import Trace

EVALUATION_BUDGET = 4096


@dataclass(frozen=True)
class Outcome:
    """Per text, in the order given."""

    logits: NDArray[np.float32]
    counts: list[int]
    """Tokens that came in."""
    lengths: list[list[int]]
    """Per layer, tokens that entered it."""
    speedups: Speedups
    problem: Problem
    thresholds: tuple[float, ...] | None
    """Of a model that gives several labels: from which probability on each."""

    @property
    def predictions(self) -> NDArray[Any]:
        """What the model answers: label numbers, 0 and 1 for every label, or quantities."""
        return answers(self.logits, self.problem, self.thresholds)


@torch.no_grad()
def run(backbone: Backbone, reducer: Reducer | None, texts: Sequence[EncodedText], *, scale: float | None = None) -> Outcome:
    """Evaluate in packed batches; `scale` multiplies every threshold."""
    training = backbone.model.training
    backbone.model.eval()
    device = backbone.model.device
    counts = [len(text.ids) for text in texts]
    logits: list[NDArray[np.float32] | None] = [None] * len(texts)
    lengths: list[list[int]] = [[] for _ in texts]
    fed: list[list[int]] = [[] for _ in texts]
    authors: list[list[int]] = [[] for _ in texts]
    for batch in budget_batches(counts, EVALUATION_BUDGET):
        tokens, _ = pack(backbone, [texts[index] for index in batch], device)
        scales = None if scale is None else torch.full((len(batch),), scale, device=device)
        answer, trace = encode(backbone, tokens, reducer, scale=scales)
        rows = answer.float().cpu().numpy()
        entered, through = (torch.stack(n, dim=1).round().int().tolist() for n in (trace.lengths, trace.feed_forward_lengths))
        eta = getattr(reducer, "eta", None)
        counted = None if eta is None else _authors_rows(trace, float(eta[-1]) * (scale or 1.0))
        for place, index in enumerate(batch):
            logits[index] = rows[place]
            lengths[index], fed[index] = entered[place], through[place]
            if counted is not None:
                authors[index] = counted[place]
    backbone.model.train(training)
    stacked = np.stack([row for row in logits if row is not None])
    by_authors = authors_speedup(authors, stacked.argmax(-1).tolist()) if authors[0] else None
    saved = speedups(model_cost(backbone, reducer), counts, lengths, fed, by_authors)
    return Outcome(stacked, counts, lengths, saved, backbone.problem, backbone.thresholds)


def _authors_rows(trace: Trace, last_eta: float) -> list[list[int]]:
    """The authors' bookkeeping of every text of a batch."""
    scores: list[list[list[float]]] = [[] for _ in range(trace.steps[0].layout.texts)]
    for step in trace.steps:
        rows = step.layout.per_text(step.decision.score)
        for text, row in enumerate(rows):
            scores[text].append(row.tolist())
    return [authors_lengths(per_layer, last_eta) for per_layer in scores]
