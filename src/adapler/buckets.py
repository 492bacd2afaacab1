"""Rows of a few widths for texts of unlike lengths: attention's cost grows with the square of a row, padding included.

Removal makes texts of one batch unlike in length. The rows of all buckets lie end to end in one flat tensor, so that filling
them is one copy however many buckets there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

VECTOR = 16
"""Floats the widest vector instructions take at once. Fused attention takes up to three times as long on rows that do not
fill them."""
FEWEST_TEXTS = 8
"""A smaller bucket goes into the next wider one: every bucket is a call of its own."""
WORTH = 0.8
"""Share of the places of equally wide rows that several widths may have, to be worth their calls."""


@dataclass(frozen=True)
class Bucket:
    """Texts whose rows are equally wide."""

    texts: slice
    """Among the texts in the order of their buckets."""
    places: slice
    """Among all places of all rows."""
    width: int

    def rows(self, flat: Tensor) -> Tensor:
        """Its part of a flat tensor of places: (texts, width, ...)."""
        part = flat[self.places]
        return part.reshape(-1, self.width, *part.shape[1:])


class Buckets:
    """Where every token stands in the rows of its text's bucket."""

    def __init__(self, counts: Tensor, start: Tensor, text: Tensor) -> None:
        """`counts` and `start` (B,): tokens of each text and where they begin; `text` (T,): whose token it is."""
        widths = _widths(counts.tolist())
        self.buckets = list(_buckets(sorted(widths)))
        self.places = self.buckets[-1].places.stop
        wide = torch.tensor(widths, device=counts.device)
        self.order = torch.argsort(wide, stable=True)
        """(B,): texts in the order of their buckets."""
        self.back = torch.empty_like(self.order).index_copy(0, self.order, torch.arange(len(widths), device=counts.device))
        """(B,): each text's place in that order."""
        ordered = wide[self.order]
        first = (ordered.cumsum(0) - ordered)[self.back]
        everyone = torch.arange(text.numel(), device=text.device)
        self.slot = first[text] + everyone - start[text]
        """(T,): each token's place."""
        filling = start[self.order].repeat_interleave(ordered)
        self.source = filling.index_copy(0, self.slot, everyone)
        """(places,): the token that stands there; on padding the text's own first, so that what is wrong with one text cannot
        reach another."""

    def filled(self, values: Tensor, fill: float) -> Tensor:
        """(places,): values (T,) where their tokens stand, `fill` on padding."""
        return values.new_full((self.places,), fill).index_copy_(0, self.slot, values)


def _widths(counts: list[int]) -> list[int]:
    """How wide each text's row is: full vectors, and in company."""
    widths = [-(-count // VECTOR) * VECTOR for count in counts]
    grown: dict[int, int] = {}
    waiting: list[int] = []
    texts = 0
    for width, group in groupby(sorted(widths)):
        waiting.append(width)
        texts += len(list(group))
        if texts >= FEWEST_TEXTS:
            grown |= dict.fromkeys(waiting, width)
            waiting, texts = [], 0
    widest = max(widths)
    grown |= dict.fromkeys(waiting, widest)
    several = [grown[width] for width in widths]
    return several if sum(several) <= WORTH * widest * len(widths) else [widest] * len(widths)


def _buckets(widths: list[int]) -> Iterator[Bucket]:
    text = place = 0
    for width, group in groupby(widths):
        texts = len(list(group))
        yield Bucket(slice(text, text + texts), slice(place, place + texts * width), width)
        text, place = text + texts, place + texts * width
