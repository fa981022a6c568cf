"""The time of a whole sweep: with a clock that ticks as it is told, and processes that only answer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoestring.core.records import Plan
from shoestring.core.units import Interval
from shoestring.studies.sweep import crowd as module
from shoestring.studies.sweep.crowd import Crowd, crowd, measure, of_plan, shown
from shoestring.studies.sweep.pace import Pace
from shoestring.studies.sweep.plans import Forecast, schedule

PARTS = {"spent so far": 2.0, "set-up": 3.0, "prepare": 4.0, "train": 80.0, "finish": 1.0}
PLAN = Plan(binding="steps", steps=10, seconds=90.0, parts=PARTS, intervals={"seconds": (80.0, 110.0)})
BESIDE = Crowd(start=5.0, end=0.5, slower=1.5)


def driven(actual: dict[str, float], expected: dict[str, float], at_once: int) -> list[float]:
    """What the sweep is said to take in all: before it starts, then after each run; last, what it took."""
    clock = [0.0]
    pace, waiting, ends, said = Pace(expected, at_once, lambda: clock[0]), list(actual), dict[str, float](), []
    said.append(pace.total())
    while waiting or ends:
        while waiting and len(ends) < at_once:
            name = waiting.pop(0)
            pace.started(name)
            ends[name] = clock[0] + actual[name]
        first = min(ends, key=lambda name: ends[name])
        clock[0] = ends.pop(first)
        pace.ended(first, finished=True)
        if waiting or ends:
            said.append(pace.total())
    return [*said, clock[0]]


@given(st.lists(st.floats(1, 100), min_size=1, max_size=20), st.integers(1, 5))
def test_where_forecasts_are_right_the_total_is(seconds: list[float], at_once: int) -> None:
    runs = {str(number): each for number, each in enumerate(seconds)}
    *said, took = driven(runs, runs, at_once)
    # one that starts in the instant in which another ends is counted when it has started
    assert said[0] == pytest.approx(took) == pytest.approx(max(schedule(seconds, at_once)))
    assert all(each == pytest.approx(took) for each in said)


def test_what_the_first_runs_take_corrects_the_others() -> None:
    draw = random.Random(0)
    expected = {str(number): 10.0 for number in range(12)}
    actual = {name: 13.1 * draw.uniform(0.98, 1.02) for name in expected}
    *said, took = driven(actual, expected, 2)
    assert said[0] == 60.0 and took == pytest.approx(12 / 2 * 13.1, rel=0.02)
    off = [abs(each / took - 1) for each in said]
    assert off[0] > 0.2 and off[1] < 0.1, "one run says most of it"
    assert all(each < 0.05 for each in off[4:])


def test_a_run_that_fails_says_nothing_about_the_others() -> None:
    clock = [0.0]
    pace = Pace({"a": 10.0, "b": 10.0, "c": 10.0}, 1, lambda: clock[0])
    pace.started("a")
    clock[0] = 0.1
    pace.ended("a", finished=False)
    assert pace.factor == 1.0 and pace.total() == pytest.approx(20.1)
    pace.started("b")
    clock[0] = 50.1
    assert pace.left() == pytest.approx(10.0), "one that takes longer than it should may end now"


def test_processes_start_end_and_slow_each_other() -> None:
    assert BESIDE.seconds(PLAN) == pytest.approx(Interval(5 + 78 * 1.5 + 0.5, 5 + 88 * 1.5 + 0.5, 5 + 108 * 1.5 + 0.5))
    again = 5 + 3 * 1.5 + 0.5  # a run that is resumed starts and sets up anew
    whole = 5 + 88 * 1.5 + 0.5
    assert BESIDE.seconds(PLAN, 0.25).expected == pytest.approx(again + 0.25 * (whole - again))
    timed = Plan(binding="time", steps=10, seconds=90.0, parts=PARTS)
    assert BESIDE.seconds(timed).expected == 90.5, "it takes its time, with fewer steps"
    assert of_plan(PLAN).seconds(PLAN) == Interval(80.0, 90.0, 110.0)


def test_a_text_is_prepared_once() -> None:
    made = Forecast(plan=PLAN, how="counted")
    assert made.seconds_left(1.0, ready=True).expected == made.seconds.expected - 4
    assert made.seconds_left(0.5, ready=True) == made.seconds_left(0.5)


ANSWERS = """
import sys
print("ready", flush=True)
for rate, _ in zip(("1", "100", "50"), sys.stdin):
    print(rate, flush=True)
"""


def test_what_is_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROCESS", ANSWERS)
    found = measure(2, 1)
    assert found.slower == pytest.approx(100 / 75) and 0 < found.end < 60 and found.start > 0
    assert measure(1, 1).slower == 1
    assert "2 at a time take 33% longer" in shown(found, 2) and "at a time" not in shown(found, 1)
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path)
    quiet = Crowd(start=1.0, end=2.0, slower=1.5, measured=found.measured, others=0.0)
    monkeypatch.setattr(module, "measure", lambda *_: quiet)
    assert crowd(2, 1, "machine") == quiet
    monkeypatch.setattr(module, "measure", lambda *_: found)
    assert crowd(2, 1, "machine") == quiet
    (file,) = (tmp_path / "crowds").iterdir()
    file.write_text("{")
    assert crowd(2, 1, "machine") == found, "measured again"


def test_what_was_measured_while_others_worked_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path)
    busy = Crowd(start=1.0, end=2.0, slower=1.5, others=1e6)
    monkeypatch.setattr(module, "measure", lambda *_: busy)
    assert crowd(2, 1, "machine") == busy and not (tmp_path / "crowds").exists()
    assert "busy" in shown(busy, 2)


def test_a_process_that_cannot_be_started_is_no_reason_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(module, "PROCESS", "raise SystemExit(3)")
    assert crowd(2, 1, "machine") is None
