"""Averages spaced by the learning rate: their number, their density beside an integral, and the longest space."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from shoestring.core.parallel import MOST_APART
from shoestring.core.train_section import Train
from shoestring.training.schedule import Schedule, Warmup
from shoestring.training.spacing import Spacing

COSINE = Train(lr=4e-3, warmup=0.1)


def met(spacing: Spacing, schedule: Schedule, part: int = 0) -> list[int]:
    return [step for step in range(1, schedule.total + 1) if part in spacing.parts_due(step, schedule)]


@pytest.mark.parametrize(("every", "total"), [(5, 200), (10, 3000), (100, 20000)])
def test_there_are_as_many_averages_and_none_are_far_apart(every: int, total: int) -> None:
    schedule = Schedule(total=total, warmup=Warmup.planned(total, 0.1, 0))
    found = met(Spacing(every, train=COSINE), schedule)
    assert len(found) == pytest.approx(total / every, abs=2)
    assert max(b - a for a, b in pairwise([0, *found])) <= MOST_APART * every + 1
    assert found[-1] == total


def test_their_density_is_the_square_of_the_rate() -> None:
    """Between two places where the rate is high: a sum over the steps, by the cosine itself."""
    total, every = 40_000, 20
    schedule = Schedule(total=total, warmup=Warmup.planned(total, 0.1, 0))
    found = met(Spacing(every, train=COSINE), schedule)

    def count(first: float, last: float) -> int:
        return sum(first * total < step <= last * total for step in found)

    def squares(first: float, last: float) -> float:
        steps = range(int(first * total), int(last * total))
        return sum((0.5 + 0.5 * math.cos(math.pi * ((step + 0.5) / total - 0.1) / 0.9)) ** 2 for step in steps)

    assert count(0.1, 0.3) / count(0.4, 0.5) == pytest.approx(squares(0.1, 0.3) / squares(0.4, 0.5), rel=0.02)


def test_a_constant_rate_spaces_them_evenly() -> None:
    found = met(Spacing(8, train=Train(lr=1e-3, schedule="constant", warmup=0.0)), Schedule(total=160))
    assert {b - a for a, b in pairwise(found)} <= {7, 8, 9}


def test_parts_take_turns_and_all_meet_at_the_end() -> None:
    schedule = Schedule(total=600, warmup=Warmup.planned(600, 0.1, 0))
    spacing = Spacing(10, 2, COSINE)
    first, second = met(spacing, schedule, 0), met(spacing, schedule, 1)
    assert abs(len(first) - len(second)) <= 1
    assert all(sum(a < step <= b for step in second) <= 2 for a, b in pairwise(first))
    assert first[-1] == second[-1] == 600
