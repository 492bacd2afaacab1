"""Which operating point a wish means."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from adapler.errors import BadConfig
from adapler.points import CAREFUL, FAST, Dial, Operating, Point, choose, front, opening, operating, point_name


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


def test_a_loss_of_exactly_so_many_points_is_within_the_limit() -> None:
    exact = point(2.0, 0.0).model_copy(update={"score": 0.89, "loss_points": 100 * (0.90 - 0.89)})
    assert exact.loss_points > 1.0  # by what floats add
    dial = Dial(data="dev", n=100, metric="accuracy", reference="full", reference_score=0.9, points=(exact,))
    assert choose(dial, max_loss=1.0) == dial.aliases[FAST] == exact
    with pytest.raises(BadConfig, match=r"max_loss 0\.999"):
        choose(dial, max_loss=0.999)


def test_what_cannot_be_reached_says_what_can(dial: Dial) -> None:
    for wish in ({"speedup": 20.0}, {"max_loss": -1.0}, {"speedup": 8.0, "max_loss": 1.0}):
        with pytest.raises(BadConfig, match=r"reachable: 2.0x \(2.00x, -0.2 points lost\); 4.0x"):
            choose(dial, **wish)  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match="doctor"):
        choose(dial, max_latency_ms=5)
    with pytest.raises(BadConfig, match=r"2\.0x, 4\.0x, 8\.0x, careful, fast, trained, full$"):
        choose(dial, point="quick")
    with pytest.raises(BadConfig, match="not both"):
        choose(dial, point="fast", speedup=2)


def test_every_model_has_full_length_and_itself_as_trained(dial: Dial) -> None:
    assert operating(dial, point="full") == operating(None, point="full") == Operating(0.0)
    assert operating(dial, point="trained") == operating(None, point="trained") == Operating()
    careful = dial.careful_scale
    assert operating(dial, point="full", escalate=0.9) == Operating(0.0, 0.9, careful)
    assert operating(dial, point="trained", escalate=0.8) == Operating(None, 0.8, careful)
    with pytest.raises(BadConfig, match="adapler dial"):
        operating(None, point="trained", escalate=0.8)  # nobody measured where to answer again


def test_what_is_beaten_keeps_the_names_everyone_knows() -> None:
    measured = [point(1.0, 0.0, 0.0), point(2.0, -0.2, 0.5), point(1.5, 0.3, 1.0), point(4.0, 0.6, 2.0)]
    kept = front(measured)
    beaten = tuple(p for p in measured if p not in kept)
    dial = Dial(data="dev", n=9, metric="accuracy", reference="full", reference_score=0.9, points=kept, beaten=beaten)
    assert [p.name for p in dial.points] == ["2.0x", "4.0x"]
    assert [p.name for p in dial.named] == ["1.0x", "1.5x", "2.0x", "4.0x"]
    assert dial.point("trained").scale == 1.0 and dial.point("full").scale == 0.0
    assert dial.also(measured[2]) == ["trained"] and dial.also(measured[1]) == ["careful"]
    assert choose(dial, max_loss=0.4).name == "2.0x"  # names are all they keep: they are never chosen
    moved = dial.rescaled(2.0)
    assert moved.trained == measured[3].model_copy(update={"scale": 1.0}) and moved.full == measured[0]


def test_a_model_opens_at_what_scores_as_well_and_is_faster_here() -> None:
    def opened(full: float, own: float, faster: float | None = None, rates: dict[str, float] | None = None) -> str | None:
        """Scores of full length, of the model as trained and of a larger scale; the point, if it is not as trained."""
        points = [point(1.0, 90 - 100 * full, 0.0), point(2.0, 90 - 100 * own, 1.0)]
        points += [] if faster is None else [point(3.0, 90 - 100 * faster, 2.0)]
        kept = front(points)
        beaten = tuple(p for p in points if p not in kept)
        dial = Dial(data="dev", n=9, metric="x", reference="x", reference_score=0.9, points=kept, beaten=beaten)
        found = opening(dial, rates)
        return None if found is None else found.name

    assert opened(0.90, 0.89, rates={"1.0x": 100, "2.0x": 200}) is None  # it pays
    assert opened(0.90, 0.89, rates={"1.0x": 300, "2.0x": 200}) == "1.0x"  # it does not pay here
    assert opened(0.88, 0.89, rates={"1.0x": 300, "2.0x": 200}) is None  # never at the price of score
    assert opened(0.90, 0.89, 0.89, {"1.0x": 100, "2.0x": 150, "3.0x": 200}) == "3.0x"  # the model as trained is beaten
    assert opened(0.90, 0.89, 0.89, {"1.0x": 100, "2.0x": 250, "3.0x": 200}) is None  # in FLOPs, but not in time
    assert opened(0.90, 0.89, 0.895, {"1.0x": 300, "2.0x": 250, "3.0x": 200}) == "1.0x"  # full length pays more than either
    assert opened(0.90, 0.89, 0.89, {"1.0x": 300}) is None  # not timed
    assert opened(0.90, 0.89, 0.89) is None  # nobody timed anything


def test_full_length_is_opened_where_the_model_as_trained_takes_more_flops_for_no_better_score() -> None:
    full, own = point(1.0, 0.0, 0.0), point(0.9, 0.5, 1.0)
    dial = Dial(data="dev", n=9, metric="x", reference="x", reference_score=0.9, points=front([full, own]), beaten=(own,))
    assert dial.points == (full,)
    assert opening(dial) == full
    assert opening(dial, {full.name: 100, own.name: 90}) == full
    assert opening(dial, {full.name: 90, own.name: 100}) is None  # timed here, it is the faster one
    better = own.model_copy(update={"score": 0.91})
    assert opening(dial.model_copy(update={"points": (better, full), "beaten": ()})) is None


def test_a_dial_that_kept_no_beaten_points_still_has_what_beat_them() -> None:
    full, above = point(1.0, 0.0, 0.0), point(2.0, 0.5, 1.2)
    dial = Dial(data="dev", n=9, metric="x", reference="x", reference_score=0.9, points=(full,))
    assert opening(dial, {full.name: 100}) == full and opening(dial) is None
    both = dial.model_copy(update={"points": (full, above)})
    assert opening(both, {full.name: 100, above.name: 200}) == above
    assert opening(both, {full.name: 200, above.name: 100}) == full
    below = dial.model_copy(update={"points": (full, point(2.0, 0.5, 0.9))})
    assert opening(below, {full.name: 100, "2.0x": 200}) == below.points[1]  # nothing more left at the scale of 1


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
