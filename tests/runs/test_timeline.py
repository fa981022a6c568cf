"""The parts of a run's time add up to the whole, whatever ends its sessions."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core.clock import Clock
from shoestring.core.recipe_file import load
from shoestring.core.results import Outcome
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.runs.timeline import UNKNOWN, parts_of, rate_of, seconds_of


class Hand(Clock):
    """A clock that a test turns."""

    now = 0.0

    def elapsed(self) -> float:
        return self.now


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 999), st.integers(0, 999))))
def test_the_parts_of_a_clock_add_up(turns: list[tuple[str, int, int]]) -> None:
    clock, expected = Hand(0.0), {"start": 0.0}
    current = "start"
    for number, (part, before, within) in enumerate(turns):
        clock.now += before
        expected[current] = expected.get(current, 0.0) + before
        if number % 2:
            clock.begin(part)
            current = part
            continue
        with clock.during(part):
            clock.now += within
        expected[part] = expected.get(part, 0.0) + within
    found = clock.parts()
    assert sum(found.values()) == pytest.approx(clock.elapsed())
    assert {name: seconds for name, seconds in found.items() if seconds} == pytest.approx(
        {name: seconds for name, seconds in expected.items() if seconds}
    )


def test_an_error_ends_its_part() -> None:
    clock = Hand(0.0)
    with contextlib.suppress(KeyError), clock.during("work"):
        clock.now = 2.0
        raise KeyError
    clock.now = 3.0
    assert clock.parts() == {"start": 1.0, "work": 2.0}


class Busy(Clock):
    """A process that waits for a processor before each look at the clock."""

    waited = 0.0

    def elapsed(self) -> float:
        self.waited += 0.05
        return super().elapsed() + self.waited


def test_the_seconds_of_a_run_are_the_sum_of_its_parts_when_it_waits(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny.parent)
    finished = run(load(tiny), Reporter(), Busy(0.0))
    outcome = Outcome.read(finished.folder.done)
    assert outcome.seconds == pytest.approx(sum(outcome.timeline.values()), rel=1e-9)


LINES: list[dict[str, Any]] = [
    {"elapsed": 5.0, "event": "start", "parts": {"start": 1.0, "set-up": 4.0}},
    {"elapsed": 9.0, "tokens_per_second": 100.0},  # then it was killed
    {"elapsed": 3.0, "event": "start", "parts": {"start": 1.0, "set-up": 2.0}},
    {"elapsed": 6.0, "tokens_per_second": 50.0},
    {"elapsed": 8.0, "event": "end", "parts": {"start": 1.0, "set-up": 2.0, "train": 5.0}},
]


def test_sessions_are_added_and_a_killed_one_is_unknown_from_its_last_line_with_parts() -> None:
    assert seconds_of(LINES) == 17.0
    assert parts_of(LINES) == {"start": 2.0, "set-up": 6.0, UNKNOWN: 4.0, "train": 5.0}
    assert rate_of(LINES) == pytest.approx(2 / (1 / 100 + 1 / 50))


def test_lines_of_an_older_version_are_unknown() -> None:
    old = [{key: value for key, value in line.items() if key != "parts"} for line in LINES]
    assert parts_of(old) == {UNKNOWN: 17.0}
    assert parts_of([]) == {} and seconds_of([]) == 0.0 and rate_of([]) == 0.0
