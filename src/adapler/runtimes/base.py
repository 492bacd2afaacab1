"""What a runtime is: token ids of a batch in; logits and the account of who was kept out. Knows neither torch nor ONNX."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adapler.cost import ModelCost
from adapler.data.text import EncodedText, budget_batches
from adapler.errors import BadConfig

BATCHES_A_CORE = 4
"""So many at least, so that all cores are done at about the same time."""
FEWEST_TOKENS = 1024
"""A smaller batch is not worth a core of its own."""


@dataclass(frozen=True)
class Answer:
    """Of one batch, texts in the order given."""

    logits: NDArray[np.floating[Any]]
    """(B, labels), float32 unless the model itself is in a wider type."""
    lengths: NDArray[np.int64]
    """(B, layers): how many tokens entered each layer."""
    depths: NDArray[np.int64] | None = None
    """On request, for the batch's tokens end to end: how many layers each entered."""
    scores: tuple[NDArray[np.floating[Any]], ...] | None = None
    """On request, per decision: the score of every token it was about, end to end. Empty without reduction."""
    in_front: tuple[int, ...] = ()
    """Of each decision, in front of which layer l it was made: about the tokens that entered layer l - 1, of which those that
    enter layer l stay."""


class Runtime(ABC):
    """A model ready to run on ragged batches. May be shared between threads."""

    name: ClassVar[str]
    budgets: ClassVar[tuple[int, int]]
    """Tokens a batch should hold at full length, and where tokens leave: there most go early, and what is left must still
    fill the processor."""
    labels: list[str]
    layers: int
    cost: ModelCost
    """FLOPs, the reduction's own work included."""
    longest: int
    """Tokens of the longest text the model's positions reach."""
    thresholds: Sequence[float] | None = None
    """Of a model that gives any number of labels: from which probability on it gives each; None for a half."""

    def budget(self, tokens: int | None = None, *, reduced: bool = True) -> int:
        """Tokens a batch should hold for this model, where there are so many `tokens` to run in all."""
        most = self.budgets[reduced and bool(self.cost.predictors)]
        if tokens is None or self.threads == 1:
            return most
        return min(most, max(tokens // (self.threads * BATCHES_A_CORE), FEWEST_TOKENS))

    @property
    @abstractmethod
    def threads(self) -> int:
        """How many cores one batch may use."""

    @property
    @abstractmethod
    def problem_type(self) -> str | None:
        """What transformers calls so: how logits become scores."""

    def check_keeps(self) -> None:  # noqa: B027 (nothing is wrong with most)
        """Raise where this model cannot keep tokens that a text marks to stay."""

    @abstractmethod
    def __call__(
        self,
        texts: Sequence[EncodedText],
        *,
        scale: NDArray[np.float32] | None = None,
        reduced: bool = True,
        trace: bool = True,
    ) -> Answer:
        """Run one batch of at least one text. `scale` (B,) multiplies each text's thresholds, 0 keeps every token.

        With `reduced=False` all texts run at full length and no predictor is asked. `trace` asks for depths and scores.
        """

    def each(
        self,
        batches: Sequence[Sequence[EncodedText]],
        *,
        scale: float | Sequence[Sequence[float]] | None = None,
        reduced: bool = True,
        trace: bool = True,
    ) -> Iterator[Answer]:
        """Answers of several batches, in their order; side by side, each on one core, where there are several cores.

        `scale` is for all texts, or one a text, batch by batch.
        """
        if isinstance(scale, Sequence):
            factors: list[NDArray[np.float32] | None] = [np.array(each, dtype=np.float32) for each in scale]
        else:
            factors = [None if scale is None else np.full(len(batch), scale, dtype=np.float32) for batch in batches]
        workers = self.workers() if len(batches) > 1 else None
        if workers is None:
            each = zip(batches, factors, strict=True)
            return (self(batch, scale=factor, reduced=reduced, trace=trace) for batch, factor in each)
        return workers.map(
            lambda batch, factor: self.on_one_core(batch, scale=factor, reduced=reduced, trace=trace), batches, factors
        )

    @abstractmethod
    def workers(self) -> Executor | None:
        """Threads for `on_one_core`, one a core; None where batches had better run one after the other."""

    @abstractmethod
    def on_one_core(
        self, texts: Sequence[EncodedText], *, scale: NDArray[np.float32] | None, reduced: bool, trace: bool
    ) -> Answer:
        """As a call, but on a worker."""


def scales(scale: NDArray[np.float32] | None, texts: int) -> NDArray[np.float32]:
    """One factor a text, 1 by default; numbers that are no factors are refused."""
    if scale is None:
        return np.ones(texts, dtype=np.float32)
    given = np.asarray(scale, dtype=np.float32)
    if given.shape != (texts,) or not np.isfinite(given).all() or (given < 0).any():
        raise BadConfig(f"scale must hold {texts} numbers of at least 0, one a text, got an array of shape {given.shape}")
    return given


def all_logits(runtime: Runtime, texts: Sequence[EncodedText], budget: int | None = None) -> NDArray[np.floating[Any]]:
    """Logits of any number of texts, in their order, run in batches under a token budget, by default the runtime's own."""
    counts = [len(text.ids) for text in texts]
    batches = budget_batches(counts, budget or runtime.budget(sum(counts)))
    rows: dict[int, NDArray[np.floating[Any]]] = {}
    for batch, answer in zip(batches, runtime.each([[texts[i] for i in batch] for batch in batches], trace=False), strict=True):
        rows |= zip(batch, answer.logits, strict=True)
    return np.stack([rows[index] for index in range(len(texts))])
