"""Keeping the deadline, on a clock that the test turns."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from clocks import Turned
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoestring.training.schedule import Deadline

checked = settings(max_examples=100, deadline=None)


@dataclass
class Drive:
    steps: int = 0
    end: float = 0.0
    totals: list[int] = field(default_factory=list)


def drive(total: int, until: float, seconds: Callable[[int], float], planned: float = 0.0) -> Drive:
    """Steps with a deadline; evaluations come after each of them, and take what was planned."""
    clock = Turned()
    return driven(clock, Deadline(clock, until, planned), total, seconds, lambda _: planned)


def driven(
    clock: Turned, deadline: Deadline, total: int, seconds: Callable[[int], float], stop: Callable[[int], float | None]
) -> Drive:
    """Take steps until the schedule, which the deadline may change, is through; a step may have a stop of seconds."""
    done = Drive(totals=[total])
    while done.steps < total:
        clock.now += seconds(done.steps)
        deadline.took_step(seconds(done.steps))
        if (waited := stop(done.steps)) is not None:
            clock.now += waited
            deadline.took_overhead(waited, "evaluation")
        done.steps += 1
        left = total - done.steps
        fits = deadline.must_shorten_to(left)
        assert fits is None or 0 <= fits < left
        if fits is None:
            fits = deadline.may_lengthen_to(left)
            assert fits is None or fits > left
        if fits is not None:
            total = done.steps + fits
            done.totals.append(total)
    done.end = clock.now
    return done


@checked
@given(st.integers(1, 500), st.floats(0.001, 30), st.floats(0, 5), st.floats(1.001, 3))
def test_steady_steps_that_fit_are_left_alone(total: int, seconds: float, overhead: float, room: float) -> None:
    done = drive(total, total * (seconds + overhead) * room, lambda _: seconds, overhead)
    assert done.totals == [total]
    assert done.steps == total


@checked
@given(st.integers(2, 500), st.floats(0.01, 10), st.floats(1.05, 20), st.floats(0, 1))
def test_a_slower_machine_gets_a_total_that_fits(total: int, planned: float, slower: float, overhead: float) -> None:
    seconds = planned * slower
    until = max(total * planned, seconds + overhead)
    done = drive(total, until, lambda _: seconds, overhead)
    assert done.end <= until * (1 + 1e-9), "in time"
    assert done.end >= 0.97 * min(until, total * (seconds + overhead)) - 2 * (seconds + overhead), "and no earlier"
    assert done.totals == sorted(done.totals, reverse=True)


@checked
@given(st.integers(1, 200), st.floats(0.5, 200), st.lists(st.floats(0.01, 5), min_size=1, max_size=20))
def test_no_machine_runs_more_than_a_step_past_the_deadline(total: int, until: float, seconds: list[float]) -> None:
    done = drive(total, until, lambda step: seconds[step % len(seconds)])
    assert done.steps >= 1
    assert done.end <= until + max(seconds) * (1 + 1e-9)


def test_a_machine_that_becomes_slower_half_way_still_ends_in_time() -> None:
    done = drive(200, 220.0, lambda step: 1.0 if step < 100 else 3.0)
    assert done.end <= 220
    assert done.end > 210
    assert 130 <= done.steps <= 145
    assert 1 < len(done.totals) < 30


def test_a_machine_that_becomes_faster_keeps_what_was_left() -> None:
    done = drive(100, 60.0, lambda step: 1.0 if step < 20 else 0.1)
    assert done.steps == done.totals[-1] <= 100
    assert done.end < 60


def test_a_slow_start_is_waited_out() -> None:
    done = drive(1000, 120.0, lambda step: 1.0 if step == 0 else 0.1)
    assert done.totals == [1000], "the first step compiles, warms up and says nothing about the others"


def test_nothing_is_known_before_the_first_step() -> None:
    deadline = Deadline(Turned(100.0), 1.0, 0.0)
    assert deadline.seconds_per_step is None
    assert deadline.seconds_left(10) is None
    assert deadline.must_shorten_to(10) is None
    assert deadline.time_left() == -99.0


@pytest.mark.parametrize("now", [10.0, 10.5, 99.0])
def test_no_step_is_left_when_the_time_is_up(now: float) -> None:
    clock = Turned()
    deadline = Deadline(clock, 10.0, 0.0)
    deadline.took_step(1.0)
    clock.now = now
    assert deadline.must_shorten_to(5) == 0
    assert deadline.must_shorten_to(1) == 0
    assert deadline.must_shorten_to(0) is None, "a run that is through needs no shortening"


def test_without_a_deadline_nothing_is_ever_shortened() -> None:
    assert drive(300, math.inf, lambda step: 1.0 + step).totals == [300]


def test_evaluations_and_checkpoints_count() -> None:
    deadline = Deadline(Turned(), 1000.0, 0.5)
    for _ in range(10):
        deadline.took_step(2.0)
    assert deadline.seconds_left(10) == pytest.approx(25), "as planned, as long as nothing is known"
    for _ in range(3):
        deadline.took_overhead(2.5, "evaluation")
    assert deadline.seconds_left(10) == pytest.approx(10 * (2 + (2 * 2.5 + 2 * 0.5) / 4)), "two of three as seen"
    assert deadline.step_seconds == pytest.approx(20)


def test_seconds_per_step_are_those_of_the_later_half() -> None:
    deadline = Deadline(Turned(), 1000.0, 0.0)
    for _ in range(10):
        deadline.took_step(1.0)
    assert deadline.seconds_per_step == pytest.approx(1)
    for _ in range(20):
        deadline.took_step(3.0)
    assert deadline.seconds_per_step == pytest.approx(3)


def test_a_slower_machine_keeps_more_time_for_the_finish() -> None:
    clock = Turned()
    deadline = Deadline(clock, 100.0, 0.0, planned_step_seconds=1.0, finish_seconds=4.0)
    assert deadline.time_left() == 100.0
    for _ in range(10):
        clock.now += 3.0
        deadline.took_step(3.0)
    assert deadline.time_left() == pytest.approx(100.0 - 30.0 - 2 * 4.0)


def test_a_slow_moment_does_not_end_the_run() -> None:
    """Steps that take eight times as long for three seconds near the end: the finish is not taken to be as slow."""
    clock = Turned()
    deadline = Deadline(clock, 33.5, 0.0, planned_step_seconds=0.1, finish_seconds=4.0)

    def seconds(step: int) -> float:
        return 0.8 if 220 <= step < 224 else 0.1

    done = driven(clock, deadline, 300, seconds, lambda _: None)
    assert done.steps > 280
    assert done.end <= 33.5


def test_a_finish_that_is_known_better_moves_the_deadline() -> None:
    deadline = Deadline(Turned(), 100.0, 0.0, finish_seconds=4.0)
    deadline.finish_takes(1.5)
    assert deadline.time_left() == 102.5
    deadline.finish_takes(6.0)
    assert deadline.time_left() == 98.0


def test_a_first_step_that_compiles_does_not_end_the_run() -> None:
    """Sixty times as long as planned: the finish is not taken to be sixty times as long."""
    clock = Turned()
    deadline = Deadline(clock, 90.0, 0.0, planned_step_seconds=0.065, finish_seconds=3.0)
    clock.now += 4.0
    deadline.took_step(4.0)
    assert deadline.must_shorten_to(300) is None
    for left in range(299, 0, -1):
        clock.now += 0.065
        deadline.took_step(0.065)
        assert deadline.must_shorten_to(left) is None


def lengthened(total: int, until: float, seconds: float, stop: float) -> Drive:
    """With a schedule that the deadline may also make longer; every tenth step has a stop."""
    clock = Turned()
    deadline = Deadline(clock, until, 0.1, stops_per_step=0.1, idle_seconds=0.03 * until)
    return driven(clock, deadline, total, lambda _: seconds, lambda step: None if step % 10 else stop)


@checked
@given(st.integers(100, 2000), st.floats(0.02, 3), st.floats(0.3, 1.3), st.floats(0, 1))
def test_time_that_would_be_left_is_used(total: int, planned: float, share: float, stop: float) -> None:
    """A machine whose step takes `share` of the planned seconds, and whose stops take what they take."""
    assume(total * share * planned > 20)  # seconds: less is over before the time of a step is known
    until = total * (planned + 0.1)
    done = lengthened(total, until, share * planned, stop)
    tail = 2 * (share * planned + stop) + 0.5
    assert done.end <= until + tail
    assert done.end >= 0.96 * until - tail, "not much earlier"


@checked
@given(st.integers(0, 10**6), st.sampled_from([0.9, 1.0, 1.15]))
def test_uneven_steps_do_not_change_the_schedule_again_and_again(seed: int, share: float) -> None:
    """Steps of a tenth of a second, five percent up or down each, and as much again for a while."""
    random = np.random.default_rng(seed)
    drift = np.convolve(random.normal(0, 0.05, 3020), np.full(20, 20**-0.5), "valid") * 0.5
    seconds = 0.1 * np.clip(1 + random.normal(0, 0.05, len(drift)) + drift, 0.5, 2)
    clock = Turned()
    deadline = Deadline(clock, 100.0, 0.0, idle_seconds=2.0)
    done = driven(clock, deadline, int(1000 / share), lambda step: float(seconds[step]), lambda _: None)
    assert len(done.totals) <= 9
    assert 96 <= done.end <= 100.5


def test_what_is_as_planned_is_not_lengthened() -> None:
    done = lengthened(500, 500 * 1.1 * 1.02, 1.0, 1.0)
    assert done.totals == [500]


def test_stops_that_come_often_at_first_are_not_taken_for_many() -> None:
    """Two in the first five steps; a hundred steps have ten of them."""
    deadline = Deadline(Turned(), 1000.0, 0.05, stops_per_step=0.1)
    for _ in range(5):
        deadline.took_step(1.0)
    deadline.took_overhead(0.3, "evaluation")
    for seconds in (1.0, 2.0):
        deadline.took_overhead(seconds, "evaluation")
    assert deadline.seconds_left(100) == pytest.approx(100 * (1 + 0.1 * (1 + 2 + 2 * 0.5) / 4)), (
        "two, and two as planned"
    )
    for _ in range(96):
        deadline.took_overhead(0.1, "evaluation")
    assert deadline.seconds_left(100) == pytest.approx(100 * (1 + 0.1 * (3 + 9.6 + 1) / 100)), "less than planned, too"


def test_the_first_stops_of_a_kind_are_not_taken_for_the_others() -> None:
    """An evaluation that compiles for ten seconds, and a checkpoint that takes new memory for three."""
    deadline = Deadline(Turned(), 1000.0, 0.05, stops_per_step=0.1)
    for _ in range(5):
        deadline.took_step(1.0)
    deadline.took_overhead(3.0, "checkpoint")
    deadline.took_overhead(10.0, "evaluation")
    assert deadline.seconds_left(100) == pytest.approx(105), "as planned"
    deadline.took_overhead(0.8, "checkpoint")
    assert deadline.seconds_left(100) == pytest.approx(106)
    deadline.took_overhead(0.1, "checkpoint")
    deadline.took_overhead(0.1, "evaluation")
    assert deadline.seconds_left(100) == pytest.approx(104)


def test_nothing_is_lengthened_early_or_without_a_deadline() -> None:
    for until, idle in ((1000.0, 1.0), (math.inf, math.inf)):  # a second is less than two steps
        deadline = Deadline(Turned(), until, 0.0, idle_seconds=idle)
        for _ in range(10):
            deadline.took_step(1.0)
        assert deadline.may_lengthen_to(90) is None
        assert deadline.may_lengthen_to(0) is None
        assert deadline.may_lengthen_to(10) == (979 if idle == 1 else None), "the time of a step is left"
        assert deadline.may_lengthen_to(978) is None


def test_a_guess_may_lengthen_by_the_few_steps_that_there_were() -> None:
    deadline = Deadline(Turned(), 10.0, 0.0, idle_seconds=1.0)
    for _ in range(2):
        deadline.took_step(0.5)
    assert deadline.may_lengthen_to(2) is None, "two steps of a second in all say little"
    assert deadline.may_lengthen_to(2, guess=True) == int((10.0 * 0.98 - 0.5) / 0.5)
    assert deadline.may_lengthen_to(3, guess=True) is None, "but half of the steps have to be behind"
