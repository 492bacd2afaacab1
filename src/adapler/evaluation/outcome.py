"""A model run over labelled texts, really removing tokens: predictions, who was kept, what it cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adapler.backbones.base import Backbone
from adapler.cost import Speedups, authors_lengths, authors_speedup, speedups
from adapler.data.text import EncodedText, budget_batches
from adapler.engine import encode, model_cost, pack
from adapler.errors import UnknownName
from adapler.methods.base import Reducer
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

    @property
    def predictions(self) -> NDArray[np.int64]:
        """The likeliest label of each text."""
        return np.asarray(self.logits.argmax(axis=-1), dtype=np.int64)


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
    return Outcome(stacked, counts, lengths, speedups(model_cost(backbone, reducer), counts, lengths, fed, by_authors))


def _authors_rows(trace: Trace, last_eta: float) -> list[list[int]]:
    """The authors' bookkeeping of every text of a batch."""
    scores: list[list[list[float]]] = [[] for _ in range(trace.steps[0].layout.texts)]
    for step in trace.steps:
        rows = step.layout.per_text(step.decision.score)
        for text, row in enumerate(rows):
            scores[text].append(row.tolist())
    return [authors_lengths(per_layer, last_eta) for per_layer in scores]


def accuracy(labels: NDArray[np.int64], predictions: NDArray[np.int64]) -> float:
    """Share of right answers."""
    return float((labels == predictions).mean())


def f1(labels: NDArray[np.int64], predictions: NDArray[np.int64]) -> float:
    """F1 of label 1 for two labels, else the mean over labels."""
    from sklearn.metrics import f1_score

    binary = int(labels.max(initial=0)) <= 1 and int(predictions.max(initial=0)) <= 1
    return float(f1_score(labels, predictions, average="binary" if binary else "macro", zero_division=0))


def matthews(labels: NDArray[np.int64], predictions: NDArray[np.int64]) -> float:
    """Matthews correlation."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions))


METRICS: dict[str, Callable[[NDArray[np.int64], NDArray[np.int64]], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
}


def score(metric: str, labels: Sequence[int] | NDArray[np.int64], predictions: NDArray[np.int64]) -> float:
    """A metric by name, between -1 and 1."""
    if metric not in METRICS:
        raise UnknownName(f"no metric {metric!r}; known: {', '.join(METRICS)}")
    return METRICS[metric](np.asarray(labels, dtype=np.int64), predictions)


def class_weights(labels: Sequence[int], count: int) -> Tensor:
    """Inverse class frequencies, 1 on average over the examples."""
    found = np.bincount(np.asarray(labels), minlength=count).astype(np.float64)
    return torch.tensor(len(labels) / (count * np.maximum(found, 1)), dtype=torch.float32)
