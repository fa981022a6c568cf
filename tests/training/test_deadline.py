"""Keeping the deadline, on a clock that the test turns."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from clocks import Turned
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoestring.core.recipe_file import build
from shoestring.core.records import Plan
from shoestring.runs.finish import deadline_of
from shoestring.training.deadline import Deadline
from shoestring.training.schedule import Schedule

checked = settings(max_examples=40, deadline=None)


@dataclass
class Drive:
    steps: int = 0
    end: float = 0.0
    totals: list[int] = field(default_factory=list)


def drive(total: int, until: float, seconds: Callable[[int], float]) -> Drive:
    """Steps with a deadline, which may shorten them."""
    clock = Turned()
    return driven(clock, Deadline(clock, until), total, seconds)


def driven(clock: Turned, deadline: Deadline, total: int, seconds: Callable[[int], float], grow: bool = False) -> Drive:
    """Take steps until the schedule, which the deadline may change, is through."""
    done, schedule = Drive(totals=[total]), Schedule(total=total)
    while done.steps < schedule.total:
        clock.now += seconds(done.steps)
        deadline.took_step(seconds(done.steps))
        done.steps += 1
        left = schedule.total - done.steps
        fits = deadline.steps_to_take(left, schedule.progress(done.steps), grow)
        if fits is not None:
            assert fits != left and (grow or fits < left)
            total = done.steps + fits
            schedule = schedule.ending(done.steps, total) if fits else Schedule(total=total)
            done.totals.append(total)
    done.end = clock.now
    return done


@checked
@given(st.integers(1, 500), st.floats(0.001, 30), st.floats(1.001, 3))
def test_steady_steps_that_fit_are_left_alone(total: int, seconds: float, room: float) -> None:
    done = drive(total, total * seconds * room, lambda _: seconds)
    assert done.totals == [total]
    assert done.steps == total


@checked
@given(st.integers(2, 500), st.floats(0.01, 10), st.floats(1.05, 20))
def test_a_slower_machine_gets_a_total_that_fits(total: int, planned: float, slower: float) -> None:
    seconds = planned * slower
    until = max(total * planned, seconds)
    done = drive(total, until, lambda _: seconds)
    assert done.end <= until * (1 + 1e-9), "in time"
    assert done.end >= 0.97 * min(until, total * seconds) - 2 * seconds, "and no earlier"
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
    deadline = Deadline(Turned(100.0), 1.0)
    assert deadline.seconds_per_step is None
    assert deadline.seconds_left(10, 0.0) is None
    assert deadline.steps_to_take(10, 0.0) is None
    assert deadline.time_left() == -99.0


@pytest.mark.parametrize("now", [9.5, 10.0, 99.0])
def test_no_step_is_left_when_the_time_is_up(now: float) -> None:
    clock = Turned()
    deadline = Deadline(clock, 10.0)
    deadline.took_step(1.0)
    clock.now = now
    assert deadline.steps_to_take(5, 0.5) == 0
    assert deadline.steps_to_take(1, 0.9) == 0
    assert deadline.steps_to_take(0, 1.0) is None, "a run that is through needs no shortening"


def test_without_a_deadline_nothing_is_ever_changed() -> None:
    assert drive(300, math.inf, lambda step: 1.0 + step).totals == [300]
    clock = Turned()
    assert driven(clock, Deadline(clock, math.inf), 300, lambda _: 1.0, grow=True).totals == [300]


def watched(**planned: float) -> Deadline:
    """After twelve steps of two seconds."""
    deadline = Deadline(Turned(), 1000.0, **planned)
    for _ in range(12):
        deadline.took_step(2.0)
    return deadline


def test_evaluations_count_by_progress_and_checkpoints_by_time() -> None:
    """Ten evaluations of a second, each with a checkpoint of half a second, and one more every ten seconds."""
    deadline = watched(evaluations=10, evaluation_seconds=1.0, checkpoint_seconds=0.5, checkpoint_every=10.0)
    assert deadline.seconds_left(10, 0.5) == pytest.approx((20 + 5 * 1.0 + 4 * 0.5) / 0.95), "as planned at first"
    assert deadline.saving_left(10, 0.5) == pytest.approx(27 / 0.95 * 0.05 + 4 * 0.5), (
        "regular ones, and of evaluations"
    )
    for _ in range(3):
        deadline.took_overhead(4.0, "evaluation")
        deadline.took_overhead(1.5, "checkpoint")
    evaluation, checkpoint = (2 * 1.0 + 2 * 4.0) / 4, (2 * 0.5 + 2 * 1.5) / 4
    expected = (20 + 5 * evaluation + 4 * checkpoint) / (1 - checkpoint / 10)
    assert deadline.seconds_left(10, 0.5) == pytest.approx(expected), "two planned, and two of three as seen"
    assert deadline.step_seconds == pytest.approx(24)


def test_the_first_stop_of_a_kind_is_not_taken_for_the_others() -> None:
    """An evaluation that compiles for ten seconds, and a checkpoint that takes new memory for three."""
    deadline = watched(evaluations=10, evaluation_seconds=1.0, checkpoint_seconds=0.5, checkpoint_every=10.0)
    before = deadline.seconds_left(10, 0.5)
    deadline.took_overhead(3.0, "checkpoint")
    deadline.took_overhead(10.0, "evaluation")
    assert deadline.seconds_left(10, 0.5) == before


def test_seconds_per_step_are_those_of_the_later_half() -> None:
    deadline = Deadline(Turned(), 1000.0)
    for _ in range(10):
        deadline.took_step(1.0)
    assert deadline.seconds_per_step == pytest.approx(1)
    for _ in range(20):
        deadline.took_step(3.0)
    assert deadline.seconds_per_step == pytest.approx(3)


def slowed(**planned: float) -> Deadline:
    """After ten steps of three seconds in place of one."""
    clock = Turned()
    deadline = Deadline(clock, 100.0, planned_step_seconds=1.0, finish_seconds=4.0, **planned)
    assert deadline.time_left() == 100.0
    for _ in range(10):
        clock.now += 3.0
        deadline.took_step(3.0)
    return deadline


def test_a_slower_machine_keeps_more_time_for_the_finish() -> None:
    """Three times slower: what is planned is that of a machine which is twice as slow, so half of it is added."""
    deadline = slowed()
    assert deadline.time_left() == pytest.approx(100.0 - 30.0 - 0.5 * 4.0)
    for _ in range(10):
        deadline.took_step(30.0)
    assert deadline.time_left() >= 100.0 - 30.0 - 0.5 * 4.0, "thirty times is a wrong plan, not a slow machine"


def test_steps_that_were_planned_wrongly_do_not_shorten_the_finish() -> None:
    """A fit whose updates take three times as long as planned, and whose evaluations take what they should."""
    deadline = slowed(evaluations=10, evaluation_seconds=1.0)
    for _ in range(2):
        deadline.took_overhead(1.0, "evaluation")
    assert deadline.time_left() == pytest.approx(70.0)
    deadline.took_overhead(3.0, "evaluation")
    assert deadline.time_left() == pytest.approx(69.0), "two seconds each: so will the last one take"
    for _ in range(3):
        deadline.took_overhead(6.0, "evaluation")
    seen = (1.0 + 3.0 + 3 * 6.0) / 5
    assert deadline.time_left() == pytest.approx(70.0 - (seen - 1) - 0.5 * 3.0), "the machine is thrice as slow"


def test_a_slow_moment_does_not_end_the_run() -> None:
    """Steps that take eight times as long for three seconds near the end: the finish is not taken to be as slow."""
    clock = Turned()
    deadline = Deadline(clock, 33.5, planned_step_seconds=0.1, finish_seconds=4.0)

    def seconds(step: int) -> float:
        return 0.8 if 220 <= step < 224 else 0.1

    done = driven(clock, deadline, 300, seconds)
    assert done.steps > 280
    assert done.end <= 33.5


def test_a_slow_moment_does_not_spend_the_schedule() -> None:
    """Steps that take thirty times as long for two seconds, early: few steps would fit at that speed, and a schedule
    that is through cannot come back."""
    clock = Turned()
    deadline = Deadline(clock, 25.0, planned_step_seconds=0.05, finish_seconds=2.0, idle_seconds=1.0)

    def seconds(step: int) -> float:
        return 1.5 if 10 <= step < 13 else 0.05

    shortest = 1.0

    def noted(left: int, progress: float) -> int | None:
        nonlocal shortest
        found = deadline.steps_to_take(left, progress)
        shortest = min(shortest, 1.0 if found is None else found / max(1, left))
        return found

    schedule, step = Schedule(total=400), 0
    while step < schedule.total:
        clock.now += seconds(step)
        deadline.took_step(seconds(step))
        step += 1
        found = noted(schedule.total - step, schedule.progress(step))
        if found is not None and found > 0:
            schedule = schedule.ending(step, step + found)
        if step == 40:
            assert schedule.progress(step) < 0.5
    assert shortest >= 0.2 and step > 250


def test_a_finish_that_is_known_better_moves_the_deadline() -> None:
    deadline = Deadline(Turned(), 100.0, finish_seconds=4.0)
    deadline.finish_takes(1.5)
    assert deadline.time_left() == 102.5
    deadline.finish_takes(6.0)
    assert deadline.time_left() == 98.0


@checked
@given(st.integers(100, 2000), st.floats(0.02, 3), st.floats(0.1, 1.3))
def test_time_that_would_be_left_is_used(total: int, planned: float, share: float) -> None:
    """A machine whose step takes `share` of the planned seconds."""
    assume(total * planned > 30)
    until, clock = total * planned, Turned()
    done = driven(clock, Deadline(clock, until, idle_seconds=0.01 * until), total, lambda _: share * planned, grow=True)
    assert done.end <= until
    assert done.end >= 0.95 * until - 2 * share * planned, "not much earlier"
    assert len(done.totals) <= 6


def test_what_earlier_sessions_took_is_not_for_more_steps() -> None:
    for before, longer in ((0.0, True), (50.0, False)):
        clock = Turned()
        deadline = Deadline(clock, 100.0, idle_seconds=1.0, spent_before=before)
        done = driven(clock, deadline, 100, lambda _: 0.5, grow=True)
        assert (done.totals != [100]) == longer


def test_a_single_step_is_enough_where_it_was_all_there_was() -> None:
    clock = Turned(1.0)
    deadline = Deadline(clock, 100.0, idle_seconds=1.0)
    deadline.took_step(1.0)
    assert deadline.steps_to_take(0, 1.0) == 97, "two of the 99 seconds are uncertain"
    assert deadline.steps_to_take(0, 1.0, grow=False) is None


def test_the_reason_names_what_differs_from_the_plan() -> None:
    clock = Turned(40.0)
    deadline = Deadline(clock, 100.0, 1.0, evaluations=10, evaluation_seconds=0.1, planned_start=10.0)
    for _ in range(10):
        deadline.took_step(1.02)
    assert deadline.why() == "training began after 39s, planned: 10s"
    for _ in range(3):
        deadline.took_overhead(3.0, "evaluation")
    assert "an evaluation takes 1.55s, planned: 100ms" in deadline.why()
    assert watched().why() == "a step takes 2s"


def test_a_first_step_that_compiles_does_not_end_a_run() -> None:
    """It takes longer than all that is left; the planned steps fit, and all are taken."""
    clock = Turned()
    deadline = Deadline(clock, until := 16.0, planned_step_seconds=0.002)
    done = driven(clock, deadline, 400, lambda step: 9.0 if step == 0 else 0.002)
    assert (done.steps, done.totals) == (400, [400])
    assert done.end < until


def test_a_run_that_begins_again_learns_its_new_speed() -> None:
    """Steps of 1 s, then of 0.1: nothing of the slow ones is left in the estimate."""
    clock = Turned()
    deadline = Deadline(clock, 100.0, idle_seconds=1.0)
    for seconds in [1.0] * 10:
        clock.now += seconds
        deadline.took_step(seconds)
    deadline.took_overhead(5.0, "evaluation")
    deadline.begin_again()
    assert deadline.seconds_per_step is None and not deadline.settled and deadline.evaluation_seen(1.0) is None
    for seconds in [2.0, *[0.1] * 30]:
        clock.now += seconds
        deadline.took_step(seconds)
    assert deadline.seconds_per_step == pytest.approx(0.1) and deadline.settled
    assert deadline.steps_to_take(10, 0.5) == pytest.approx((100 - clock.now) * 0.98 / 0.1, abs=2)


@pytest.mark.parametrize(
    ("checkpoint", "sparing", "expected"), [(3.0, 1.0, True), (0.1, 1.0, False), (3.0, math.inf, False)]
)
def test_evaluations_that_take_long_are_ten_times_as_long_apart(
    checkpoint: float, sparing: float, expected: bool
) -> None:
    clock = Turned()
    deadline = Deadline(
        clock,
        100.0,
        evaluations=10,
        evaluation_seconds=0.5,
        checkpoint_seconds=checkpoint,
        long_evaluation=sparing,
    )
    deadline.took_step(0.1)
    clock.now = 30.0
    assert deadline.too_soon(last=1.0) is expected
    assert not deadline.too_soon(last=30.0 - 10 * 3.5)
    needed = deadline.seconds_left(0, 0.0)
    assert needed is not None and (needed <= 0.1 * 70 + 1e-9) is (expected or checkpoint == 0.1)


@pytest.mark.parametrize(("settling", "expected"), [(True, 2), (False, 0)])
def test_beside_a_compiler_a_step_that_took_long_ends_no_run(settling: bool, expected: int) -> None:
    clock = Turned(80.0)
    deadline = Deadline(clock, 84.0, settling=settling)
    for seconds in (*[0.01] * 6, 5.0, 0.01):
        deadline.took_step(seconds)
    assert deadline.steps_to_take(3, 0.5) == expected


@pytest.mark.parametrize("way", ["settling", "estimated"])
def test_counted_seconds_and_steps_beside_a_compiler_say_nothing_about_the_machine(way: str) -> None:
    """Steps and evaluations take twenty times as long as planned, and the finish as long as planned."""
    clock = Turned(50.0)
    deadline = Deadline(clock, 90.0, 0.01, finish_seconds=4.0, evaluations=10, evaluation_seconds=0.1)
    for _ in range(20):
        deadline.took_step(0.2)
    for _ in range(2):
        deadline.took_overhead(2.0, "evaluation")
    assert deadline.time_left() < 20
    setattr(deadline, way, True)
    evaluation = deadline._stops["evaluation"].slower or 0.0
    assert deadline.time_left() == pytest.approx(40 - 0.1 * (evaluation - 1))
    deadline.begin_again()
    deadline.replan(0.2, 2.0)
    assert not deadline.settling and not deadline.estimated


@pytest.mark.parametrize(
    ("seconds", "seen"),
    [([], None), ([0.9], (0.2, 0.7)), ([0.15], (0.15, 0.0)), ([0.9, 0.4, 0.6], (0.5, 0.4)), ([0.1, 0.3], (0.3, 0.0))],
)
def test_a_first_evaluation_that_compiles_says_little_about_others(
    seconds: list[float], seen: tuple[float, float] | None
) -> None:
    deadline = Deadline(Turned(), 100.0)
    for one in seconds:
        deadline.took_overhead(one, "evaluation")
    assert deadline.evaluation_seen(0.1) == (None if seen is None else pytest.approx(seen))


def test_an_evaluation_right_after_compiling_is_not_taken_for_another() -> None:
    """It uses memory that the first steps left, which is not there once their passes are recorded."""
    deadline = Deadline(Turned(), 100.0, settling=True)
    for _ in range(20):
        deadline.took_step(0.1)
    deadline.took_overhead(1.0, "evaluation")
    assert deadline.evaluation_seen(1.0) is not None
    deadline.begin_again()
    deadline.took_step(0.1)
    deadline.took_overhead(1.0, "evaluation")
    assert deadline.evaluation_seen(1.0) is None
    for _ in range(4):
        deadline.took_step(0.1)
    deadline.took_overhead(0.5, "evaluation")
    assert deadline.evaluation_seen(1.0) == (0.5, 0.0)


def test_evaluations_that_would_take_all_that_is_left_do_not_end_a_run() -> None:
    clock = Turned(60.0)
    deadline = Deadline(clock, 68.0, evaluations=50, evaluation_seconds=0.2)
    for _ in range(100):
        deadline.took_step(0.03)
    found = deadline.steps_to_take(270, 0.1)
    assert found is not None and found >= 270 // 4


def test_the_clock_decides_on_evaluations_of_one_process_on_a_gpu_alone() -> None:
    """Two runs of one plan on a CPU evaluate after the same steps, and so do several processes."""
    recipe = build({"budget": {"time": "25s"}, "data": {"source": "stories"}}, "the recipe")
    plan = Plan(binding="time", evaluations=10, parts={"evaluations": 20.0})
    for sparing in (False, True):
        deadline = deadline_of(recipe, plan, Turned(1.0), 1.0, 0.0, sparing)
        assert deadline.too_soon(last=0.5) is sparing
