"""Whole runs on machines that are not as fast as planned: the time is used and kept, with few words.

Each run is simulated: the real loop, schedule and hooks, on a clock that the test turns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest
from clocks import Turned

from shoestring.core.train_section import Train
from shoestring.track import NoLines
from shoestring.training import hooks
from shoestring.training.checkpoint import State
from shoestring.training.deadline import Deadline
from shoestring.training.loop import Loop, Report, Requests, Sum
from shoestring.training.schedule import Schedule, learning_rate

BUDGET, FINISH, RESERVE, EVALUATIONS, SCORE = 180.0, 4.0, 2.5, 10, 0.4
TRAIN = Train(batch=1, lr=1.0, warmup=0.02, schedule="cosine", final_lr=0.1)
SPEEDS = (0.1, 0.5, 0.9, 1.0, 1.1, 2.0, 10.0)
"""Actual / planned seconds per step."""


class Given(NamedTuple):
    """A step that is done as soon as it is read."""

    number: int
    lr: float
    ended: float | None
    seconds: float

    def read(self) -> Report:
        return Report(Sum(1.0, 1), self.lr)


@dataclass
class Simulated:
    """A run, and what was seen of it."""

    planned: int
    seconds: Callable[[], Iterator[float]]
    """Of its steps, one after the other."""
    slower: float = 1.0
    """Actual / planned seconds of evaluations, and of what follows the last step on a free core."""
    budget: float = BUDGET
    finish: float = FINISH
    """Planned seconds, with a margin of a quarter: of an evaluation, and twice those of the page on a free core."""
    score_seconds: float = SCORE
    looks_ahead: bool = True
    clock: Turned = field(default_factory=Turned)
    longest: float = 0.0
    """Seconds of its longest step but the first ones."""
    rates: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    state: State = field(default_factory=lambda: State(recipe="", data="", schedule=Schedule(total=1)))

    def run(self) -> Simulated:
        self.clock.now = 10.0
        times, last = self.seconds(), self.budget - self.finish - RESERVE
        step = (last - 10 - EVALUATIONS * self.score_seconds) / self.planned
        deadline = Deadline(
            self.clock,
            last,
            step,
            self.finish,
            evaluations=EVALUATIONS,
            evaluation_seconds=self.score_seconds,
            idle_seconds=1.8,
            planned_start=10.0,
        )
        requests, start = Requests(), State(recipe="", data="", schedule=Schedule(total=self.planned))
        keep = hooks.KeepDeadline(deadline, requests, NoLines(), self.said.append, self.planned, most=np.inf)
        evenly = hooks.Evenly(1 / EVALUATIONS, start)

        def tick(state: State, report: Report) -> State:
            took = step * next(times)
            self.clock.now += took
            self.rates.append(report.lr)
            self.longest = max(self.longest, took) if state.step > 5 else took
            return keep(state, report._replace(seconds=took))

        def score(state: State, report: Report) -> State:
            if report.begun == state.step and evenly(state.step, state.schedule):
                evenly.taken(state.step, state.schedule)
                self.scored.append(state.step)
                self.clock.now += self.slower * self.score_seconds
                deadline.took_overhead(self.slower * self.score_seconds, "evaluation")
            return state

        score.due = evenly  # type: ignore[attr-defined]
        self.state = Loop(self, [tick, score], requests).run(start)
        self.clock.now += self.slower * (self.score_seconds + (self.finish / 1.25 - self.score_seconds) / 2)
        return self

    def begin(self, step: int, schedule: Schedule, requests: Requests) -> Given:
        return Given(step, learning_rate(TRAIN, schedule.progress(step + 0.5)), None, 0.0)

    def meets(self, step: int, schedule: Schedule) -> bool:
        return False

    def halve(self) -> int:
        raise AssertionError("everything fits")

    def check(self, lines: int) -> None:
        """In time, with the time used, in few lines, and with a learning rate that only falls after its warm-up."""
        assert self.clock.now + self.longest >= 0.95 * self.budget, "but for a last step that would not fit"
        assert self.clock.now <= self.budget
        assert len(self.said) <= lines, self.said
        peak = int(np.argmax(self.rates))
        assert (np.diff(self.rates[: peak + 1]) >= 0).all()
        assert (np.diff(self.rates[peak:]) <= 1e-12).all(), "no rate rises again"
        if self.state.step > 40:
            assert self.rates[-1] < 0.3, "it has decayed, nearly to a tenth"


def steady(speed: float) -> Callable[[], Iterator[float]]:
    return lambda: itertools.repeat(speed)


@pytest.mark.parametrize("planned", [30, 289])
@pytest.mark.parametrize("speed", SPEEDS)
def test_the_time_is_used_and_kept_however_wrong_the_plan_was(planned: int, speed: float) -> None:
    run = Simulated(planned, steady(speed)).run()
    run.check(lines=0 if speed == 1.0 else 1)
    assert abs(run.state.step * speed / planned - 1) < 0.12 + speed / planned, "as many as there is time for"


@pytest.mark.parametrize("planned", [100, 1000])
def test_a_run_that_is_made_ten_times_as_long_has_not_decayed_before(planned: int) -> None:
    """It has the rates of a run that was planned so, but for the first tenth of the plan."""
    run = Simulated(planned, steady(0.1)).run()
    total = len(run.rates)
    fresh = [learning_rate(TRAIN, (step + 0.5) / total) for step in range(total)]
    late = slice(total // 20, None)
    assert np.abs(np.array(run.rates) - fresh)[late].max() < 0.13
    assert np.mean(run.rates) > np.mean(fresh) - 0.06


def busy(seed: int, slow: float, period: float) -> Callable[[], Iterator[float]]:
    """A machine that another process uses for a while, again and again, each `period` steps long in the mean."""

    def times() -> Iterator[float]:
        random = np.random.default_rng(seed)
        while True:
            for factor in (1.0, slow):
                for _ in range(1 + int(random.exponential(period))):
                    yield factor * float(np.exp(random.normal(0, 0.05)))

    return times


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("slow", "period", "mean"), [(2, 3, 1.5), (6, 5, 3.5), (3, 60, 3), (6, 40, 6)])
def test_a_machine_that_is_busy_at_times_is_said_to_be_slower_a_few_times(
    seed: int, slow: float, period: float, mean: float
) -> None:
    """An evaluation and the finish take `mean` times as long: longer than short periods, in long ones."""
    Simulated(289, busy(seed, slow, period), slower=mean).run().check(lines=4)


@pytest.mark.parametrize("slower", [2.0, 3.0])
@pytest.mark.parametrize("planned", [60, 400])
def test_a_short_run_on_a_busy_machine_uses_its_time_too(slower: float, planned: int) -> None:
    """The page is not expected to take as much longer as the steps do, since its planned seconds are those of a slow
    core: of 70 s, 59.5 were used at three times the planned seconds."""
    run = Simulated(planned, steady(slower), slower=slower, budget=70.0, finish=3.25, score_seconds=0.1).run()
    run.check(lines=2)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("speed", [0.2, 1.0, 3.0])
def test_noise_is_corrected_without_a_word(seed: int, speed: float) -> None:
    """Single steps that take half as long or twice as long."""

    def times() -> Iterator[float]:
        random = np.random.default_rng(seed)
        while True:
            yield speed * float(np.exp(random.normal(0, 0.3)))

    Simulated(1000, times).run().check(lines=0 if speed == 1.0 else 1)


@pytest.mark.parametrize("end", [0.2, 0.5, 2.0, 5.0])
def test_a_speed_that_drifts_is_followed(end: float) -> None:
    """From as planned to `end` times that, over the planned steps."""
    run = Simulated(600, lambda: (float(end ** min(1.0, step / 600)) for step in itertools.count())).run()
    run.check(lines=4)


@pytest.mark.parametrize("speed", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("late", [[20.0], [8.0, 8.0, 4.0], [3.0] * 5])
def test_first_steps_that_compile_are_waited_out(speed: float, late: list[float]) -> None:
    """Their seconds in seconds, not as a multiple of others."""
    step = (BUDGET - FINISH - RESERVE - 10 - EVALUATIONS * SCORE) / 400
    Simulated(400, lambda: itertools.chain((s / step for s in late), itertools.repeat(speed))).run().check(lines=1)


@pytest.mark.parametrize("speed", [0.1, 1.0, 10.0])
def test_evaluations_are_as_many_as_planned(speed: float) -> None:
    run = Simulated(500, steady(speed)).run()
    assert abs(len(run.scored) - EVALUATIONS) <= 1
    assert max(np.diff(run.scored)) < 0.15 * run.state.step, "evenly over the run"


def test_a_line_compares_with_the_plan_and_never_contradicts_itself() -> None:
    for speed in (0.2, 3.0):
        (line,) = Simulated(1000, steady(speed)).run().said
        takes, planned = (float(part.split("ms")[0]) for part in line.split("takes ")[1].split("planned: ")[:2])
        assert planned == pytest.approx(159.5, abs=1)
        assert takes == pytest.approx(speed * planned, rel=0.02)
        assert "steps fit the time, planned: 1,000" in line
