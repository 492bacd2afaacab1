"""The timer: every contender warmed up, in turn, as often as the others."""

from __future__ import annotations

import time

from adapler.timing import FEWEST_REPEATS, Timing, race


def test_contenders_take_turns_after_a_warm_up() -> None:
    calls: list[str] = []
    timings = race({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=4)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab" + "ba"
    assert [len(timing.seconds) for timing in timings.values()] == [4, 4]


def test_a_long_race_stops_after_a_whole_repeat() -> None:
    timings = race({"a": lambda: time.sleep(0.01), "b": lambda: None}, repeats=50, seconds=0.0)
    assert [len(timing.seconds) for timing in timings.values()] == [FEWEST_REPEATS] * 2
    assert timings["a"].median >= 0.01 > timings["b"].median


def test_one_slow_moment_moves_the_spread_and_not_the_median() -> None:
    timing = Timing((1.0, 1.0, 5.0))
    assert (timing.median, timing.spread, timing.rate(100)) == (1.0, 4.0, 100.0)
