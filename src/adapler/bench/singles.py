"""One text at a time: reduced against full length, by length. Where a text is short, removal has the least to gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from adapler.cost import ModelCost, speedups
from adapler.data.text import EncodedText
from adapler.records import Record
from adapler.runtimes.base import Runtime
from adapler.timing import race

GROUPS = 10
SETTLE = 0.02
LONG = 64
"""Tokens above which a text counts as long, in the record over all of those."""


@dataclass(frozen=True)
class Group:
    """Texts of like length."""

    name: str
    texts: list[EncodedText]

    @property
    def counts(self) -> list[int]:
        """Tokens of each."""
        return [len(text.ids) for text in self.texts]


def singles_by_length(
    shared: Record, runtimes: Mapping[str, Runtime], texts: Sequence[EncodedText], scale: float, *, each: int, seconds: float
) -> list[Record]:
    """A record a runtime and decile of length, and one for all long texts: `scale` against full length, text by text.

    `each` is how many texts are timed of a decile; `seconds` is for all of it.
    """
    groups = [group for group in (*deciles(texts, each), long_ones(texts, each)) if group.texts]
    factor = np.full(1, scale, dtype=np.float32)
    records = []
    for family, runtime in runtimes.items():
        work: dict[str, Callable[[], object]] = {}
        for group in groups:
            work[f"{group.name}, full"] = _one_by_one(runtime, group, None)
            work[f"{group.name}, reduced"] = _one_by_one(runtime, group, factor)
        timings = race(work, repeats=9, seconds=seconds / len(runtimes), settle=SETTLE)
        for group in groups:
            full, reduced = (timings[f"{group.name}, {how}"].seconds for how in ("full", "reduced"))
            ratios = [a / b for a, b in zip(full, reduced, strict=True)]
            per_text = [1000 * value / len(group.texts) for value in reduced]
            records.append(
                replace(
                    shared,
                    variant=f"{family}, batch 1, {group.name}",
                    method="adapler",
                    runtime=runtime.name,
                    batch="batch 1",
                    n=len(group.texts),
                    value=float(np.median(per_text)),
                    unit="ms/text",
                    spread=max(per_text) - min(per_text),
                    repeats=len(ratios),
                    flops_speedup_executed=_saved(runtime, group, factor),
                    wall_speedup=float(np.median(ratios)),
                    wall_vs=f"{family}, full, batch 1",
                    config={"shortest": min(group.counts), "longest": max(group.counts), "scale": scale},
                )
            )
    return records


def deciles(texts: Sequence[EncodedText], each: int) -> list[Group]:
    """Texts in ten groups from short to long, the same number of each, evenly out of the group."""
    order = sorted(texts, key=lambda text: len(text.ids))
    cuts = [len(order) * group // GROUPS for group in range(GROUPS + 1)]
    found = []
    for number, (first, last) in enumerate(pairwise(cuts)):
        chosen = _evenly(order[first:last], each)
        found.append(Group(f"length decile {number + 1}", chosen))
    return found


def long_ones(texts: Sequence[EncodedText], each: int) -> Group:
    """Texts over 64 tokens; twice as many as of a decile."""
    return Group(f"over {LONG} tokens", _evenly([text for text in texts if len(text.ids) > LONG], 2 * each))


def _evenly(texts: Sequence[EncodedText], count: int) -> list[EncodedText]:
    places = np.linspace(0, len(texts) - 1, min(count, len(texts))).round().astype(int)
    return [texts[place] for place in places]


def _one_by_one(runtime: Runtime, group: Group, factor: NDArray[np.float32] | None) -> Callable[[], object]:
    return lambda: [runtime([text], scale=factor, reduced=factor is not None) for text in group.texts]


def _saved(runtime: Runtime, group: Group, factor: NDArray[np.float32]) -> float:
    cost: ModelCost = runtime.cost
    lengths = [runtime([text], scale=factor, trace=False).lengths[0].tolist() for text in group.texts]
    return speedups(cost, group.counts, lengths).flops_speedup_executed
