"""Which operating point a wish means."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from adapler.errors import BadConfig
from adapler.points import CAREFUL, FAST, Dial, Operating, Point, choose, front, operating, point_name


def point(speedup: float, loss: float, scale: float = 1.0) -> Point:
    return Point(
        name=f"{speedup:.1f}x",
        scale=scale,
        score=0.9 - loss / 100,
        loss_points=loss,
        flops_speedup=speedup,
        flops_speedup_executed=speedup,
    )


@pytest.fixture
def dial() -> Dial:
    points = front([point(1.0, 0.5), point(2.0, -0.2), point(4.0, 0.6), point(3.9, 0.8), point(8.0, 3.0)])
    return Dial(data="dev", n=100, metric="accuracy", reference="full", reference_score=0.9, points=points)


def test_the_front_has_no_point_that_another_beats_in_both(dial: Dial) -> None:
    assert [p.name for p in dial.points] == ["2.0x", "4.0x", "8.0x"]  # full length is beaten here: it is not assumed careful


def test_wishes(dial: Dial) -> None:
    assert choose(dial, max_loss=1.0).name == "4.0x"
    assert choose(dial, max_loss=5.0).name == "8.0x"
    assert choose(dial, speedup=3).name == "4.0x"  # the best-scoring that is fast enough
    assert choose(dial, speedup=1).name == "2.0x"
    assert choose(dial, speedup=3, max_loss=5).name == "4.0x"
    assert choose(dial, max_latency_ms=5, latencies={"2.0x": 9, "4.0x": 4, "8.0x": 3}).name == "4.0x"
    assert choose(dial, point=CAREFUL).name == "2.0x" and choose(dial, point=FAST).name == "4.0x"
    assert choose(dial, point="8.0x").loss_points == 3.0


def test_what_cannot_be_reached_says_what_can(dial: Dial) -> None:
    for wish in ({"speedup": 20.0}, {"max_loss": -1.0}, {"speedup": 8.0, "max_loss": 1.0}):
        with pytest.raises(BadConfig, match=r"reachable: 2.0x \(2.00x, -0.2 points lost\); 4.0x"):
            choose(dial, **wish)  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match="doctor"):
        choose(dial, max_latency_ms=5)
    with pytest.raises(BadConfig, match=r"2\.0x, 4\.0x, 8\.0x, careful, fast"):
        choose(dial, point="quick")
    with pytest.raises(BadConfig, match="not both"):
        choose(dial, point="fast", speedup=2)


def test_full_length_needs_no_point_of_its_own(dial: Dial) -> None:
    assert operating(dial, point="full") == operating(None, point="full") == Operating(0.0)
    with pytest.raises(BadConfig, match="no operating point 'full'"):
        operating(dial, point="full", escalate=0.9)


@pytest.mark.parametrize("name", ["trained", "full", "fast"])
@pytest.mark.parametrize("wish", ["max_loss", "speedup", "max_latency_ms"])
def test_no_wish_beside_a_name_is_dropped(dial: Dial, name: str, wish: str) -> None:
    for made in (dial, None) if name != "fast" else (dial,):
        with pytest.raises(BadConfig, match="not both"):
            operating(made, point=name, **{wish: 1.0})  # type: ignore[arg-type]
    assert operating(None, point="trained") == Operating()


def test_names_are_told_apart() -> None:
    taken: list[str] = []
    for scale in (0.0, 0.5, 0.6, 0.7):
        taken.append(point_name(scale, 2.0 + 0.001 * scale, taken))
    assert taken == ["full", "2.0x", "2.00x", "scale 0.7"]


def test_a_point_that_makes_no_sense_is_refused() -> None:
    for wrong in ({"scale": -1.0}, {"score": 2.0}, {"flops_speedup": 0.0}, {"scale": float("nan")}):
        with pytest.raises(ValidationError):
            Point(**{**point(2.0, 0.0).model_dump(), **wrong})


def test_an_escalating_point_runs_as_it_was_measured() -> None:
    slow = point(2.0, 0.0, scale=0.5)
    both = point(3.0, -0.1).model_copy(update={"name": "both", "escalate": 0.8, "careful": 0.7})  # best of all, and two passes
    made = Dial(data="dev", n=9, metric="accuracy", reference="full", reference_score=0.9, points=(slow, both))
    assert operating(made, point="both") == Operating(1.0, 0.8, 0.7)
    assert operating(made, point="careful") == Operating(1.0, 0.8, 0.7)
    assert operating(made, point="2.0x") == Operating(0.5, None, 0.5)
    assert operating(made, escalate=0.6) == Operating(None, 0.6, 0.5)  # again by a single pass, never by two
    assert made.measured(operating(made, point="both")) == both
    assert made.measured(operating(made, point="2.0x")) == slow
    for unmeasured in (Operating(), Operating(1.0, 0.9, 0.7), Operating(1.0, 0.8, 0.5), Operating(0.5, 0.8, 0.7)):
        assert made.measured(unmeasured) is None
    moved = made.rescaled(0.5).point("both")
    assert (moved.scale, moved.careful) == (2.0, 1.4)
