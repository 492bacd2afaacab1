"""Who is timed: every contender by name, before anything is built; what it is held against; and the points worth timing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from adapler.bench.peers import Peer
from adapler.classifier import Classifier
from adapler.data.text import Text
from adapler.errors import BadInput, BadModel
from adapler.points import FULL, Dial, Operating, Point

PADDED = "transformers, padded 32"
OWN = "torch, full"
BUDGET = "token budget"


@dataclass(frozen=True)
class Contender:
    """Something that classifies texts, once what its family is made of has been built."""

    family: str
    """What it is one of: all of a family share what is built, and are held against its full length."""
    method: str
    batch: str
    count: int
    """Texts it does in one go."""
    work: Callable[[Any], object]
    """Does them, given what was built."""
    point: str | None = None
    dev_loss: float | None = None
    """Points of dev score that its operating point lost when the dial was measured."""

    @property
    def name(self) -> str:
        """Own ones are named by their point, and by their batches where these are small."""
        parts = [self.family, self.point, None if self.batch == BUDGET else self.batch]
        return ", ".join(part for part in parts if part)

    @property
    def runtime(self) -> str:
        """Its family without what is special about it."""
        return self.family.partition(" ")[0]


def of_peer(family: str, texts: Sequence[Text], few: Sequence[Text]) -> list[Contender]:
    """Padded batches, as people deploy them; a `few` texts one by one."""
    cells = {"padded 32": (texts, 32, False), "sorted 32": (texts, 32, True), "batch 1": (few, 1, False)}
    return [
        Contender(family, "full", batch, len(given), _padded(given, size, by_length))
        for batch, (given, size, by_length) in cells.items()
    ]


def of_own(family: str, dial: Dial, texts: Sequence[Text], few: Sequence[Text]) -> list[Contender]:
    """Full length and the points people would choose, under the token budget; the trained one in small batches too."""
    cells = {BUDGET: (texts, len(texts)), "batch 32": (texts, 32), "batch 8": (few, 8), "batch 1": (few, 1)}
    full = [
        Contender(family, "full", batch, len(given), _packed(given, size, 0.0), FULL) for batch, (given, size) in cells.items()
    ]
    return full + [
        Contender(family, "adapler", batch, len(given), _packed(given, size, point.scale), point.name, point.loss_points)
        for point in worth_timing(dial)
        for batch, (given, size) in cells.items()
        if batch == BUDGET or point == trained(dial)
    ]


def chosen(contenders: Sequence[Contender], only: Sequence[str]) -> list[Contender]:
    """Those whose name holds one of `only`, and what they are held against; all where nothing is asked."""
    wanted = {c.name for c in contenders if any(part in c.name for part in only)}
    if only and not wanted:
        raise BadInput(
            f"no contender has {' or '.join(map(repr, only))} in its name; there are: " + "; ".join(c.name for c in contenders)
        )
    wanted |= {held_against(c) for c in contenders if c.name in wanted} | {PADDED, OWN}
    return [c for c in contenders if not only or c.name in wanted]


def held_against(contender: Contender) -> str:
    """The name of who is timed beside it: the same runtime at full length in the same batches; a peer's is the padded one."""
    if contender.point is None:
        return PADDED
    return f"{contender.family}, {FULL}" + ("" if contender.batch == BUDGET else f", {contender.batch}")


def trained(dial: Dial) -> Point:
    """How the model left training; the nearest point where that was not measured."""
    return dial.trained or min(worth_timing(dial), key=lambda point: abs(point.scale - 1))


def worth_timing(dial: Dial) -> list[Point]:
    """The careful, the trained, the fast and the fastest point that removes something, and the one half-way between the last
    two; each once, slowest first."""
    plain = [point for point in dial.named if point.scale and point.escalate is None]
    if not plain:
        raise BadModel("no operating point of the model removes anything, so there is nothing to time")
    named = [point for point in dial.aliases.values() if point in plain]
    as_trained, fastest = min(plain, key=lambda point: abs(point.scale - 1)), max(plain, key=lambda point: point.flops_speedup)
    middle = math.sqrt(as_trained.flops_speedup * fastest.flops_speedup)
    between = min(plain, key=lambda point: abs(math.log(point.flops_speedup / middle)))
    wanted = [*named, as_trained, between, fastest]
    return sorted({point.name: point for point in wanted}.values(), key=lambda point: point.flops_speedup)


def _padded(texts: Sequence[Text], batch: int, by_length: bool) -> Callable[[Peer], object]:
    return lambda peer: peer.run(texts, batch, by_length=by_length)


def _packed(texts: Sequence[Text], size: int, scale: float) -> Callable[[Classifier], object]:
    def work(classifier: Classifier) -> None:
        for first in range(0, len(texts), size):
            classifier.operating = Operating(scale)
            classifier(texts[first : first + size])

    return work
