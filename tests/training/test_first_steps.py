"""What the first steps of a run make of its plan, beside the runs of tests/runs/test_counted.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from clocks import Turned

from shoestring.core.records import Plan
from shoestring.runs.first_steps import LEAST_PAGE, FirstSteps
from shoestring.training.checkpoint import State
from shoestring.training.deadline import Deadline
from shoestring.training.schedule import Schedule


@pytest.mark.parametrize(("time", "share"), [(20.0, 0.5), (80.0, 1.0)])
def test_a_schedule_that_fits_the_time_is_planned_to_fit_it(time: float, share: float) -> None:
    """Forty steps of a second are left, and the time."""
    clock = Turned()
    deadline, state = Deadline(clock, time + 5), State(recipe="", data="", schedule=Schedule(total=45), step=5)
    for _ in range(5):
        clock.now += 1.0
        deadline.took_step(1.0)
    given: tuple[Any, ...] = (Plan(binding="time"), None, deadline, SimpleNamespace(quiet=False), None, clock, print)
    assert FirstSteps(*given)._fitting(state) == pytest.approx(share)


def test_the_page_is_drawn_once_for_its_seconds() -> None:
    clock = Turned()

    def page() -> None:
        clock.now += 0.5

    given: tuple[Any, ...] = (Plan(binding="time"), None, None, SimpleNamespace(quiet=False), None, clock, print)
    assert FirstSteps(*given)._page_seconds() is None
    assert FirstSteps(*given, page)._page_seconds() == pytest.approx(1.5)
    assert FirstSteps(*given, lambda: None)._page_seconds() == LEAST_PAGE
