"""FLOPs of a run, from the lengths a `Trace` holds and the sizes of a model. Plain arithmetic: needs neither torch nor a model.

A multiplication and its addition count as two; only matrix products count; padding never does, unless a name says so.
Four speedups are used everywhere, always as the sum over texts of full-length FLOPs over the sum of reduced FLOPs:

- `flops_speedup`: every layer complete on both sides; predictors charged on the tokens entering them.
- `flops_speedup_executed`: the last layer runs on the pooled token alone, on both sides, as the engine really does.
- `flops_speedup_padded`: the full model is charged with padding to the longest of 32 texts in file order.
- `flops_speedup_authors`: the counter published with the paper, slips included, for comparison with the paper only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

PADDED_BATCH = 32


@dataclass(frozen=True)
class LayerCost:
    """FLOPs of one encoder layer's parts, each per token but for `pair`."""

    query: int
    key_value: int
    merge: int
    feed_forward: int
    pair: int
    """Per pair of an asking and an attended token: the score and its share of the context."""

    def of(self, asking: float, attended: float, fed: float) -> float:
        """`asking` tokens look at `attended` tokens; `fed` tokens go through the feed-forward part."""
        return (
            self.query * asking
            + self.key_value * attended
            + self.pair * asking * attended
            + self.merge * asking
            + self.feed_forward * fed
        )


@dataclass(frozen=True)
class ModelCost:
    """What a model's matrix products cost."""

    layers: tuple[LayerCost, ...]
    head: int
    """Per text: pooler and classifier."""
    embedding: int = 0
    """Per token: a projection of the embeddings, where a family has one."""
    predictors: tuple[int, ...] = ()
    """Per token that each layer's predictor looks at; empty for a model without reduction."""
    pooling: str = "first"
    early: bool = False
    """Whether tokens leave between attention and feed-forward, so that feed-forward parts run on what enters the next layer.
    Predictors have then looked at all that attended."""
    fed_last: int | None = None
    """How many tokens at most go through the last feed-forward part, where that is fewer than attended."""

    def full(self, n: int, *, executed: bool = False) -> int:
        """FLOPs of a text of `n` tokens that keeps them all, without predictors."""
        depth = len(self.layers)
        return self._run(n, [n] * depth, [n] * depth, predictors=(), executed=executed)

    def reduced(self, n: int, lengths: Sequence[int], fed: Sequence[int] | None = None, *, executed: bool = False) -> int:
        """FLOPs of a text of `n` tokens of which `lengths[l]` enter layer l and `fed[l]` its feed-forward part."""
        if fed is None:
            fed = self._fed(lengths)
        return self._run(n, lengths, fed, predictors=self.predictors, executed=executed)

    def _fed(self, lengths: Sequence[int]) -> Sequence[int]:
        """How many tokens go through each feed-forward part, from how many enter each layer."""
        if not self.early:
            return lengths
        return [*lengths[1:], lengths[-1] if self.fed_last is None else min(lengths[-1], self.fed_last)]

    def _run(self, n: int, lengths: Sequence[int], fed: Sequence[int], *, predictors: Sequence[int], executed: bool) -> int:
        total = float(self.embedding * n + self.head)
        entering = n
        for index, (layer, length, through) in enumerate(zip(self.layers, lengths, fed, strict=True)):
            if predictors:
                total += predictors[index] * entering
            only_pooled = executed and self.pooling == "first" and index == len(self.layers) - 1
            total += layer.of(1, length, 1) if only_pooled else layer.of(length, length, through)
            entering = length if self.early else through
        return int(total)


@dataclass(frozen=True)
class Speedups:
    """The four FLOPs speedups of a set of texts."""

    flops_speedup: float
    flops_speedup_executed: float
    flops_speedup_padded: float
    flops_speedup_authors: float | None = None

    def to_dict(self) -> dict[str, float]:
        """Only the ones that apply."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def speedups(
    cost: ModelCost,
    counts: Sequence[int],
    lengths: Sequence[Sequence[int]],
    fed: Sequence[Sequence[int]] | None = None,
    authors: float | None = None,
) -> Speedups:
    """Speedups over texts in file order: `counts[i]` tokens came in, `lengths[i][l]` entered layer l."""
    through: Sequence[Sequence[int] | None] = [None] * len(counts) if fed is None else fed
    reduced = sum(map(cost.reduced, counts, lengths, through))
    executed = sum(cost.reduced(n, ls, fs, executed=True) for n, ls, fs in zip(counts, lengths, through, strict=True))
    padded = 0
    for first in range(0, len(counts), PADDED_BATCH):
        batch = counts[first : first + PADDED_BATCH]
        padded += len(batch) * cost.full(max(batch))
    return Speedups(
        flops_speedup=sum(map(cost.full, counts)) / reduced,
        flops_speedup_executed=sum(cost.full(n, executed=True) for n in counts) / executed,
        flops_speedup_padded=padded / reduced,
        flops_speedup_authors=authors,
    )


# The authors' counter: constants fitted to BERT-base by its profiler, whatever the model. Twelve layers in the original;
# other depths take the same cost per layer, which the original cannot express.
_AUTHORS_DEPTH = 12
_AUTHORS_SEEN = 1e-6  # a token with a smaller score is not counted
_AUTHORS_EMBEDDING = 6152


def authors_full_flops(n: int, labels: int, depth: int = _AUTHORS_DEPTH) -> int:
    """Their FLOPs of BERT-base on `n` tokens."""
    linear = _AUTHORS_EMBEDDING + (170216500 - _AUTHORS_EMBEDDING) * depth / _AUTHORS_DEPTH
    return round(3156 * depth * n * n + linear * n) + 1181953 + 1537 * labels


def authors_reduced_flops(lengths: Sequence[int], labels: int) -> int:
    """Their FLOPs of AdapLeR with `lengths[l]` tokens in layer l; predictors and embeddings are charged after removal."""
    layers = sum(3156 * n * n + 14233554 * n for n in lengths)
    return 1183537 + 1537 * (labels - 1) + _AUTHORS_EMBEDDING * lengths[0] + layers


def authors_lengths(scores: Sequence[Sequence[float]], last_eta: float) -> list[int]:
    """Their bookkeeping for one text from the scores each predictor gave: depth + 1 numbers, the first for the full model.

    The last number compares scores, whose mean is 1/n, with eta itself instead of eta/n; the last layer thus counts as
    almost free. Kept because the paper's speedups were computed so.
    """
    return [sum(score > _AUTHORS_SEEN for score in layer) for layer in scores] + [sum(score > last_eta for score in scores[-1])]


def authors_speedup(lengths: Sequence[Sequence[int]], predictions: Sequence[int]) -> float:
    """Their speedup over texts from `authors_lengths`; the label count is the largest predicted class plus one."""
    labels = max(predictions) + 1
    depth = len(lengths[0]) - 1
    full = sum(authors_full_flops(row[0], labels, depth) for row in lengths)
    return full / sum(authors_reduced_flops(row[1:], labels) for row in lengths)
