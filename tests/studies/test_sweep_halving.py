"""Successive halving on planted curves: against a plain loop, from any interruption, and on three whole grids."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from shoestring.studies.sweep.halving import (
    KEEP,
    Mark,
    Next,
    Reached,
    cost,
    judged,
    ladder_for,
    next_at_once,
    next_by_rung,
    next_if_time_is_left,
    shares,
)

Decide = Callable[..., Next | None]
LADDER = shares(3)


def run_all(
    decide: Decide, curves: dict[str, Callable[[float], float]], at_once: int, order: random.Random
) -> tuple[dict[str, Reached], float, list[Next]]:
    """Follow the decisions; runs that are active end in random order. Also the steps taken, in whole runs."""
    reached, active, taken, story = {name: Reached() for name in curves}, dict[str, Next](), 0.0, list[Next]()
    while True:
        while len(active) < at_once:
            found = decide(list(curves), reached, active, LADDER)
            if found is None:
                break
            assert found.name not in active and found.rung == reached[found.name].rung + 1
            active[found.name] = found
            story.append(found)
        if not active:
            return reached, taken, story
        ended = active.pop(order.choice(sorted(active)))
        before = reached[ended.name]
        taken += LADDER[ended.rung] - (LADDER[before.rung] if before.values else 0.0)
        value = curves[ended.name](LADDER[ended.rung])
        reached[ended.name] = Reached(values=(*before.values, value))


def random_curves(count: int, seed: int) -> dict[str, Callable[[float], float]]:
    draw = random.Random(seed)

    def curve(low: float, fall: float) -> Callable[[float], float]:
        return lambda share: low + fall * (share**-0.5 - 1)

    return {f"run{number}": curve(draw.uniform(2, 3), draw.uniform(0.01, 0.05)) for number in range(count)}


@pytest.mark.parametrize("count", [1, 2, 5, 9, 27, 40])
@pytest.mark.parametrize("at_once", [1, 3])
def test_a_rung_keeps_the_best_third_whatever_the_order_of_endings(count: int, at_once: int) -> None:
    curves = random_curves(count, count)
    reached, _, story = run_all(next_by_rung, curves, at_once, random.Random(at_once))
    members = list(curves)
    for rung, share in enumerate(LADDER):
        assert {name for name, found in reached.items() if found.rung >= rung} == set(members)
        members = sorted(members, key=lambda name: curves[name](share))[: max(1, round(len(members) / KEEP))]
    assert all(found.reason for found in story if found.rung), "a promotion has its reason"


def test_a_driver_that_is_killed_decides_the_same() -> None:
    curves = random_curves(12, 3)
    _, _, story = run_all(next_by_rung, curves, 1, random.Random(0))
    reached = {name: Reached() for name in curves}
    for told in story:  # each decision by a new driver, which knows what the folders hold
        assert next_by_rung(list(curves), dict(reached), (), LADDER) == told
        reached[told.name] = Reached(values=(*reached[told.name].values, curves[told.name](LADDER[told.rung])))


@pytest.mark.parametrize("decide", [next_by_rung, next_at_once])
@pytest.mark.parametrize("grid", ["learning rate and width", "early and late", "flat"])
def test_halving_finds_the_best_of_a_grid_in_a_third_of_its_time(decide: Decide, grid: str) -> None:
    curves: dict[str, Callable[[float], float]] = {}
    for x in range(6):
        for y in range(6):
            low = {"learning rate and width": 2 + 0.05 * (x - 3) ** 2 + 0.03 * (y - 4) ** 2,
                   "early and late": 2 + 0.02 * abs(x - 2) + 0.04 * abs(y - 1),
                   "flat": 2 + 0.002 * x + 0.003 * y}[grid]  # fmt: skip
            fall = 0.1 + 0.002 * y
            curves[f"{x},{y}"] = lambda share, low=low, fall=fall: low + fall * (share**-0.3 - 1)  # type: ignore[misc]
    reached, taken, _ = run_all(decide, curves, 2, random.Random(1))
    best = min(curve(1.0) for curve in curves.values())
    found = min(found.values[-1] for found in reached.values() if found.rung == len(LADDER) - 1)
    assert found <= 1.01 * best
    assert taken <= 0.36 * len(curves)


def test_asha_waits_for_nobody_and_ends_with_a_winner() -> None:
    reached = {name: Reached(values=(value,)) for name, value in zip("abcdef", (3.0, 1.0, 2.0, 5.0, 4.0, 6.0))}
    reached["g"] = Reached()
    names = list(reached)
    assert next_at_once(names, reached, (), LADDER) == Next("g", 0, ""), "new ones go first"
    found = next_at_once(names, reached, ("g",), LADDER)
    assert found is not None and (found.name, found.rung) == ("b", 1), "the best of six, while one has not arrived"
    second = next_at_once(names, reached, ("b", "g"), LADDER)
    assert second is not None and second.name == "c"
    assert next_at_once(names, reached, ("b", "c", "g"), LADDER) is None, "no more than a third go on"
    two = {"a": Reached(values=(1.0,)), "b": Reached(values=(2.0,))}
    last = next_at_once(list(two), two, (), LADDER)
    assert last is not None and (last.name, last.rung) == ("a", 1), "too few to compare"


def test_time_that_is_left_goes_to_the_next_best() -> None:
    reached = {
        "a": Reached(values=(1, 1, 1)),
        "b": Reached(values=(2, 3)),
        "c": Reached(values=(2, 2.5)),
        "d": Reached(values=(1.5,)),
    }
    assert next_by_rung(["a"], reached, (), LADDER) is None
    found = next_if_time_is_left(list(reached), reached, (), LADDER)
    assert found is not None and (found.name, found.rung) == ("c", 2)
    assert next_if_time_is_left(["a"], reached, (), LADDER) is None


def test_runs_are_judged_by_forecasts_where_all_have_one() -> None:
    marks = {"a": (Mark(3.0, 2.0), Mark(2.5, None)), "b": (Mark(2.9, 2.1),)}
    found = judged(marks, "forecast")
    assert found["a"].key(0) < found["b"].key(0), "by their forecasts"
    assert judged(marks, "asha")["a"].key(0) > judged(marks, "asha")["b"].key(0), "by their losses"
    assert found["a"].key(1) == (0, 2.5)
    marks["c"] = (Mark(2.8, None),)
    assert judged(marks, "forecast")["a"].key(0) == (0, 3.0), "a forecast is not compared with a loss"


def test_forecasts_are_compared_as_far_as_their_intervals_allow() -> None:
    marks = {
        "best": (Mark(3.2, 2.0, 1.9),),
        "wide": (Mark(3.1, 2.5, 1.5),),
        "surely worse": (Mark(3.0, 2.6, 2.4),),
        "as bad": (Mark(2.9, 2.7, 2.5),),
    }
    found = judged(marks, "forecast")
    assert sorted(marks, key=lambda name: found[name].key(0)) == ["wide", "best", "as bad", "surely worse"]
    assert found["best"].tiers == found["wide"].tiers == (0,), "the wide one may be as good, and has a lower loss"


def test_ladders_end_at_all_steps_and_stop_at_evaluations() -> None:
    assert shares(3) == pytest.approx((0.2, 0.2**0.5, 1))
    assert shares(3, every=0.1) == pytest.approx((0.2, 0.4, 1))
    assert shares(4, every=0.25) == pytest.approx((0.25, 0.5, 1)), "rungs that fall together are one"
    assert shares(1, every=0.1) == (1.0,)


def test_the_ladder_is_the_shortest_that_fits_the_time() -> None:
    seconds = [100.0] * 27
    whole = cost(seconds, (1.0,), 1, 0.0)
    assert whole == 2700
    middle = 0.2**0.5
    assert cost(seconds, LADDER, 1, 0.0) == pytest.approx(100 * (27 * 0.2 + 9 * (middle - 0.2) + 3 * (1 - middle)))
    assert ladder_for(seconds, 1, whole, 0.0, 0.0) == (1.0,)
    assert ladder_for(seconds, 1, 0.6 * whole, 0.0, 0.0) == pytest.approx(shares(2))
    assert ladder_for(seconds, 1, 0.35 * whole, 0.0, 0.0) == pytest.approx(shares(3))
    assert ladder_for(seconds, 1, 1.0, 0.0, 0.0) == pytest.approx(shares(4))
    assert ladder_for(seconds, 1, None, 0.0, 0.0) == pytest.approx(shares(3))
    assert cost([], LADDER, 1, 0.0) == 0
