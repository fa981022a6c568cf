"""Low and high: against runs that are drawn at random."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from test_make import DENSITY, PROFILE, make

from shoestring.core.records import Point
from shoestring.planning.make import seconds_ends, text_ends

POINT = Point(batch=4, seconds=0.2, slowest_seconds=0.32, peak_bytes=None, fastest_seconds=0.12)
"""A standard deviation of 0.05 a pass."""


@pytest.mark.parametrize(("passes", "spread"), [(4, 0.0), (1000, 0.0), (100, 0.05), (1000, 0.2)])
def test_as_many_runs_lie_within_as_it_says(passes: int, spread: float) -> None:
    """Passes drawn one by one around the median, and a machine that is a little slower or faster as a whole."""
    parts = {"set-up": 5.0, "train": passes * POINT.seconds}
    low, high = seconds_ends(parts, PROFILE, POINT, passes, spread)
    draw = random.Random(1)
    inside = 0
    for _ in range(1000):
        machine = draw.gauss(1.0, spread)
        train = draw.gauss(passes * POINT.seconds, 0.05 * math.sqrt(passes))
        inside += low <= machine * (train + 5.0) <= high
    assert 930 <= inside <= 970


def test_what_is_spent_is_certain_and_compiled_code_may_be_there() -> None:
    parts = {"spent so far": 100.0, "set-up": 30.0, "train": 0.0}
    assert seconds_ends(parts, PROFILE, POINT, 0, 0.0) == (130.0, 130.0)
    compiled = replace(PROFILE, compile_seconds=20.0)
    assert seconds_ends(parts, compiled, POINT, 0, 0.0) == (110.0, 130.0)
    assert seconds_ends(parts, PROFILE, POINT, 0, 0.1) == pytest.approx((130 - 5.88, 130 + 5.88)), "of 30 s, not of 130"
    low, _ = seconds_ends(parts, compiled, POINT, 0, 10.0)
    assert low == 100.0, "nothing is done in less than no time"


def test_documents_that_are_estimated_take_more_or_less_time() -> None:
    parts = {"prepare": 100.0}
    assert seconds_ends(parts, PROFILE, POINT, 0, 0.0, documents_error=0.1) == pytest.approx((80.4, 119.6))


def test_text_varies_with_the_density_it_was_estimated_by() -> None:
    density = replace(DENSITY, tokens_per_gb_error=DENSITY.tokens_per_gb * 0.03, entries_per_gb_error=0.0)
    assert text_ends(density, 1000, 2.0, as_needed=True) == {
        "entries": pytest.approx((941.2, 1058.8)),
        "gigabytes": pytest.approx((1.8824, 2.1176)),
    }
    assert text_ends(density, 1000, 2.0, as_needed=False) == {}, "a given number of documents has the tokens it has"
    density = replace(density, entries_per_gb_error=DENSITY.entries_per_gb * 0.04)
    assert text_ends(density, 1000, 2.0, as_needed=True)["entries"] == pytest.approx((902, 1098)), "3 and 4 make 5"
    assert text_ends(DENSITY, 1000, 2.0, as_needed=True) == {}, "unverified"


@pytest.mark.parametrize("budget", [{"time": "100s"}, {"steps": 1000}])
def test_a_plan_gives_its_seconds_with_both_ends(budget: dict[str, Any]) -> None:
    made = make(budget)
    low, high = made.intervals["seconds"]
    assert made.seconds is not None
    assert low < made.seconds < high
    (line,) = [line for line in made.lines if line.quantity == "seconds"]
    assert " – " in line.value


def test_the_text_of_a_plan_has_the_ends_of_its_density() -> None:
    sampled = replace(
        DENSITY,
        tokens_per_gb_error=DENSITY.tokens_per_gb * 0.01,
        entries_per_gb_error=DENSITY.entries_per_gb * 0.01,
    )
    made = make({"steps": 1000}, replace(PROFILE, density=sampled))
    assert made.gigabytes is not None and made.entries is not None
    assert made.intervals["gigabytes"] == pytest.approx((made.gigabytes * 0.9804, made.gigabytes * 1.0196))
    assert made.intervals["entries"][1] == pytest.approx(made.entries * (1 + 1.96 * math.hypot(0.01, 0.01)))
