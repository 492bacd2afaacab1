"""Operating points: one trained model, many speeds. What each was measured at, and which one a wish means. No torch."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from adapler.errors import BadConfig

CAREFUL, FAST = "careful", "fast"
"""The best-scoring point, and the fastest within `FAST_LOSS` points of the model's reference."""
FAST_LOSS = 1.0
_ROUNDING = 1e-9
"""In points: far above what floats add to a loss, far below the answer of one text."""
TRAINED = "trained"
"""The model as it left training, whether or not another point beats it. Every model has it, measured or not."""
FULL = "full"
"""Nothing removed, whether or not that is on the front: what the others are held against. Every model has it too."""


class Point(BaseModel):
    """All thresholds times `scale`, as measured on dev texts. A scale of 0 removes nothing and asks no predictor."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(min_length=1, max_length=40)
    scale: float = Field(ge=0, le=1e9)
    escalate: float | None = Field(None, ge=0, le=1)
    """Answers less sure than this are given again, at the scale `careful`."""
    careful: float | None = Field(None, ge=0, le=1e9)
    score: float = Field(ge=-1, le=1)
    loss_points: float
    """Points below the reference score; negative where it is above."""
    flops_speedup: float = Field(gt=0)
    flops_speedup_executed: float = Field(gt=0)


class Dial(BaseModel):
    """A model's points, slowest first, with what they were measured on."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    data: str
    n: int = Field(ge=1)
    metric: str
    reference: str
    """What `reference_score` is the score of."""
    reference_score: float = Field(ge=-1, le=1)
    points: tuple[Point, ...] = Field(min_length=1, max_length=200)
    beaten: tuple[Point, ...] = Field((), max_length=200)
    """Single passes that lose in both score and FLOPs to one of `points`. Not offered, but the model as trained may be among
    them, and so may full length."""

    def point(self, name: str) -> Point:
        """The point of a name, be it its own or what people call it."""
        found = {point.name: point for point in self.points} | self.aliases
        found |= {name: point for name, point in ((TRAINED, self.trained), (FULL, self.full)) if point is not None}
        if name not in found:
            names = dict.fromkeys([*found, TRAINED, FULL])
            raise BadConfig(f"no operating point {name!r}; there are: {', '.join(names)}")
        return found[name]

    def also(self, point: Point) -> list[str]:
        """What a point is called beside its own name."""
        called = {**self.aliases, TRAINED: self.trained, FULL: self.full}
        return [name for name, meant in called.items() if meant == point and name != point.name]

    @property
    def trained(self) -> Point | None:
        """The model as it left training; None where that was not measured."""
        return self._single_pass(1.0)

    @property
    def full(self) -> Point | None:
        """Nothing removed; None where that was not measured."""
        return self._single_pass(0.0)

    @property
    def named(self) -> tuple[Point, ...]:
        """Every point that can be asked for, slowest first: those of the front, the model as trained and full length."""
        found = [*self.points, *(point for point in (self.trained, self.full) if point in self.beaten)]
        return tuple(sorted(found, key=lambda point: point.flops_speedup))

    @property
    def beats_trained(self) -> Point | None:
        """What beats the model as trained where that was measured and not kept, as dials once had it. More leaves the larger
        the scale, so it is the next scale above, or, where there is none, the largest below, which then leaves as much."""
        single = [point for point in self.points if point.escalate is None]
        below = max(single, key=lambda point: point.scale, default=None)
        return min((point for point in single if point.scale > 1), key=lambda point: point.scale, default=below)

    def measured(self, how: Operating) -> Point | None:
        """The point that what runs so was measured as; None where nobody has."""
        scale = 1.0 if how.scale is None else how.scale
        careful = None if how.escalate is None else how.careful
        for point in self.named:
            if (point.scale, point.escalate) == (scale, how.escalate) and (careful is None or point.careful == careful):
                return point
        return None

    def rescaled(self, factor: float) -> Dial:
        """The same points of a model whose thresholds were all multiplied by `factor`."""

        def moved(point: Point) -> Point:
            careful = None if point.careful is None else point.careful / factor
            return point.model_copy(update={"scale": point.scale / factor, "careful": careful})

        return self.model_copy(update={"points": tuple(map(moved, self.points)), "beaten": tuple(map(moved, self.beaten))})

    @property
    def careful_scale(self) -> float:
        """Where answers are given again that nobody measured with an escalation: the best point of a single pass."""
        single = [point for point in self.points if point.escalate is None]
        return max(single, key=lambda point: point.score).scale if single else 0.0

    @property
    def aliases(self) -> dict[str, Point]:
        """Names for what people mean."""
        careful = max(self.points, key=lambda point: (point.score, point.flops_speedup))
        near = [point for point in self.points if within(point.loss_points, FAST_LOSS)]
        return {CAREFUL: careful, **({FAST: max(near, key=lambda point: point.flops_speedup)} if near else {})}

    def _single_pass(self, scale: float) -> Point | None:
        found = (point for point in (*self.points, *self.beaten) if point.escalate is None and point.scale == scale)
        return next(found, None)


@dataclass(frozen=True)
class Operating:
    """How a call runs."""

    scale: float | None = None
    """Of all thresholds; None as trained."""
    escalate: float | None = None
    """Answers less sure than this are given again at `careful`."""
    careful: float = 0.0


def operating(
    dial: Dial | None,
    *,
    point: str | None = None,
    max_loss: float | None = None,
    speedup: float | None = None,
    max_latency_ms: float | None = None,
    escalate: float | None = None,
    latencies: dict[str, float] | None = None,
) -> Operating:
    """What a user's wishes mean for a model with this dial; without wishes the model runs as trained."""
    if all(wish is None for wish in (point, max_loss, speedup, max_latency_ms, escalate)):
        return Operating()
    by_name = point in (TRAINED, FULL)
    if by_name:
        _check_named_alone(max_loss, speedup, max_latency_ms)
        if escalate is None:
            return Operating(0.0 if point == FULL else None)
    if dial is None:
        raise BadConfig("the model has no operating points to choose from; measure them: adapler dial MODEL --data DEV")
    if escalate is not None and not 0 <= escalate <= 1:
        raise BadConfig(f"escalate must be a probability between 0 and 1, got {escalate}")
    if by_name:
        return Operating(0.0 if point == FULL else None, escalate, dial.careful_scale)
    chosen: Point | None = None
    if any(wish is not None for wish in (point, max_loss, speedup, max_latency_ms)):
        chosen = choose(
            dial, point=point, max_loss=max_loss, speedup=speedup, max_latency_ms=max_latency_ms, latencies=latencies
        )
    scale = None if chosen is None else chosen.scale
    if escalate is None and chosen is not None and chosen.careful is not None:
        return Operating(scale, chosen.escalate, chosen.careful)  # as it was measured
    return Operating(scale, escalate, dial.careful_scale)


def opening(dial: Dial, rates: Mapping[str, float] | None = None) -> Point | None:
    """The point a model opens at unasked; None where it opens as trained.

    `rates` are texts a second by point, timed on this machine: the fastest is taken of what scores at least as well as the
    model as trained. Where nobody timed them, FLOPs stand for time, and full length alone is held against it.
    """
    trained, full = dial.trained, dial.full
    if rates is None:
        if trained is None or full is None:
            return None
        better = full.score >= trained.score and full.flops_speedup_executed > trained.flops_speedup_executed
        return full if better else None
    least = trained or dial.beats_trained
    if least is None or (trained is not None and trained.name not in rates):
        return None
    single = [point for point in dial.named if point.escalate is None and point.name in rates]
    as_good = [point for point in single if point.score >= least.score]
    fastest = max(as_good, key=lambda point: (rates[point.name], point == trained), default=None)
    return None if fastest == trained else fastest


def within(loss_points: float, limit: float) -> bool:
    """Whether a loss is one that a user allows. What is lost between 0.90 and 0.89 comes out as a little more than 1 point."""
    return loss_points <= limit + _ROUNDING


def front(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points that no other beats in score and speed at once, slowest first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (-point.flops_speedup, -point.score)):
        if not kept or point.score > kept[-1].score:
            kept.append(point)
    return tuple(reversed(kept))


def choose(
    dial: Dial,
    *,
    point: str | None = None,
    max_loss: float | None = None,
    speedup: float | None = None,
    max_latency_ms: float | None = None,
    latencies: dict[str, float] | None = None,
) -> Point:
    """The point a wish means: by name, else of those that satisfy every wish the fastest, or the best-scoring where a speed
    was asked for. `latencies` are milliseconds a text by point, measured on this machine."""
    if point is not None:
        _check_named_alone(max_loss, speedup, max_latency_ms)
        return dial.point(point)
    if max_latency_ms is not None and not latencies:
        raise BadConfig(
            "max_latency_ms needs times measured on this machine, with as many threads: run `adapler doctor MODEL` first"
        )
    reaching = [
        candidate
        for candidate in dial.points
        if (max_loss is None or within(candidate.loss_points, max_loss))
        and (speedup is None or candidate.flops_speedup >= speedup)
        and (max_latency_ms is None or (latencies or {}).get(candidate.name, float("inf")) <= max_latency_ms)
    ]
    if not reaching:
        wishes = {"max_loss": max_loss, "speedup": speedup, "max_latency_ms": max_latency_ms}
        asked = ", ".join(f"{name} {value:g}" for name, value in wishes.items() if value is not None)
        raise BadConfig(f"no operating point reaches {asked}; reachable: {reachable(dial, latencies)}")
    if speedup is None and max_latency_ms is None:
        return max(reaching, key=lambda candidate: candidate.flops_speedup)
    return max(reaching, key=lambda candidate: (candidate.score, candidate.flops_speedup))


def reachable(dial: Dial, latencies: dict[str, float] | None = None) -> str:
    """Every point in one line."""
    shown = []
    for point in dial.points:
        time = f", {latencies[point.name]:.3g} ms" if latencies and point.name in latencies else ""
        shown.append(f"{point.name} ({point.flops_speedup:.2f}x, {point.loss_points:+.1f} points lost{time})")
    return "; ".join(shown)


def point_name(scale: float, flops_speedup: float, taken: Container[str], escalate: float | None = None) -> str:
    """A name of its own: what the point saves, as `2.4x`; `full` where nothing is removed; `2.4x+0.9` where it escalates."""
    end = "" if escalate is None else f"+{escalate:g}"
    names = [FULL] if scale == 0 else [f"{flops_speedup:.1f}x", f"{flops_speedup:.2f}x", f"scale {scale:g}"]
    return next((name + end for name in names if name + end not in taken), names[-1] + end)


def _check_named_alone(*wishes: float | None) -> None:
    """Beside a name no other wish can be granted; one that is dropped unsaid would look granted."""
    if any(wish is not None for wish in wishes):
        raise BadConfig("give an operating point by name or say what it must reach, not both")
