"""The loop: what it stops for, what it never does, and that it keeps a deadline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from clocks import Turned
from group_jobs import weights

from shoestring.core.errors import Fault
from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.data.pack.order import RowIndex, step_rows
from shoestring.datasets.source import TokenSource
from shoestring.models.batch import Batch
from shoestring.models.language_model import LanguageModel, build
from shoestring.training import hooks
from shoestring.training.checkpoint import State
from shoestring.training.deadline import Deadline
from shoestring.training.learner import Learner
from shoestring.training.loop import AnyHook, Loop, Report, Requests, Sum
from shoestring.training.schedule import Schedule, learning_rate
from shoestring.training.stepper import Stepper

VOCABULARY, LENGTH, ROWS, BATCH = 30, 8, 40, 4
SETTINGS = Train(batch=BATCH, lr=1e-2)


class RandomRows:
    """Forty rows of random tokens; row 17 alone holds the token 29."""

    def __init__(self) -> None:
        self._rows = np.random.default_rng(0).integers(0, VOCABULARY - 1, (ROWS, LENGTH + 1))
        self._rows[17, 3] = VOCABULARY - 1

    def order(self, seed: int, step: int, batch: int) -> RowIndex:
        return step_rows(seed, ROWS, step, batch)

    def batch(self, index: RowIndex) -> Batch:
        return Batch(torch.from_numpy(self._rows[index.rows]))


class PackedRows(RandomRows):
    """The same rows, each of a document of five tokens, one of three and a place of padding."""

    def batch(self, index: RowIndex) -> Batch:
        segments = torch.tensor([1] * 5 + [2] * 3 + [0]).expand(len(index.rows), -1)
        return super().batch(index)._replace(segments=segments, document_mask=True)


def _learner(settings: Train = SETTINGS) -> Learner:
    model = build(Model(width=16, layers=1, heads=2), VOCABULARY, 8, seed=0)
    return Learner(model, settings, torch.device("cpu"))


def _run(
    learner: Learner, steps: int, *also: AnyHook, source: TokenSource | None = None, requests: Requests | None = None
) -> State:
    state = State(recipe="", data="", schedule=Schedule(total=steps))
    return Loop(_stepper(learner, source or RandomRows()), also, requests).run(state)


def _stepper(learner: Learner, source: TokenSource, per_device: int = 2) -> Stepper:
    return Stepper(learner, source, SETTINGS, batch=BATCH, per_device=per_device, seed=0)


def _poison(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, apply: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Let what the network makes of rows that hold the token 29 go through `apply`."""
    plain = model.hidden

    def hidden(inputs: Batch) -> torch.Tensor:
        bad = (inputs.ids == VOCABULARY - 1).any(dim=1)[:, None, None]
        found = plain(inputs)
        return torch.where(bad, apply(found), found) if bad.any() else found

    monkeypatch.setattr(model, "hidden", hidden)


def _step_of_row_17() -> int:
    return next(step for step in range(ROWS // BATCH) if 17 in step_rows(0, ROWS, step, BATCH).rows)


def test_a_loss_that_is_not_finite_stops_before_the_update_and_names_step_and_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner, seen = _learner(), {}
    _poison(learner.model, monkeypatch, lambda x: x * float("nan"))

    def remember(state: State, report: Report) -> State:
        seen.update(weights(learner))
        return state

    step = _step_of_row_17()
    with pytest.raises(Fault, match=rf"step {step}: the loss is not finite; .*Rows: 17\."):
        _run(learner, 10, remember)
    before = seen or weights(_learner())
    assert all(tensor.equal(before[name]) for name, tensor in weights(learner).items())


def test_a_gradient_that_is_not_finite_stops_before_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = _learner()
    # the root of zero is zero, and its slope is infinite
    _poison(learner.model, monkeypatch, lambda x: (x - x).sqrt())
    with pytest.raises(Fault, match=rf"step {_step_of_row_17()}: the gradient is not finite"):
        _run(learner, 10)


def test_a_loss_of_packed_rows_that_is_not_finite_names_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = _learner()
    _poison(learner.model, monkeypatch, lambda x: x * float("nan"))
    with pytest.raises(Fault, match=rf"step {_step_of_row_17()}: the loss is not finite; .*Rows: 17\."):
        _run(learner, 10, source=PackedRows())


@pytest.mark.parametrize(("source", "predictions"), [(RandomRows(), 8), (PackedRows(), 4 + 2)])
def test_micro_batches_do_not_change_the_run(source: TokenSource, predictions: int) -> None:
    def losses(per_device: int) -> list[float]:
        learner, found = _learner(), []

        def note(state: State, report: Report) -> State:
            assert report.loss.predictions == BATCH * predictions
            found.append(report.loss.mean)
            return state

        state = State(recipe="", data="", schedule=Schedule(total=12))
        Loop(_stepper(learner, source, per_device), [note]).run(state)
        return found

    assert losses(1) == pytest.approx(losses(4), rel=1e-5)
    assert losses(2) == pytest.approx(losses(4), rel=1e-5)


@pytest.mark.parametrize("source", [RandomRows(), PackedRows()])
def test_the_loss_falls(source: TokenSource) -> None:
    found: list[float] = []

    def note(state: State, report: Report) -> State:
        found.append(report.loss.mean)
        return state

    _run(_learner(), 100, note, source=source)
    assert np.mean(found[-10:]) < np.mean(found[:10]) - 0.5


class Due:
    """A hook that only wants the weights as they are after some steps."""

    def __init__(self, wants: Callable[[int], bool]):
        self._wants = wants

    def due(self, step: int, schedule: Schedule) -> bool:
        return self._wants(step)

    def __call__(self, state: State, report: Report) -> State:
        return state


class Given(NamedTuple):
    """A step that is done as soon as it is begun."""

    number: int
    lr: float
    ended: float | None = None

    def read(self) -> Report:
        return Report(Sum(1.0, 1), self.lr)


class Idle:
    """A worker that computes nothing: what is tested are the loop, its hooks and the schedule."""

    looks_ahead = True

    def begin(self, step: int, schedule: Schedule, requests: Requests) -> Given:
        return Given(step, learning_rate(SETTINGS, schedule.progress(step + 0.5)))

    def meets(self, step: int, schedule: Schedule) -> bool:
        return False

    def halve(self) -> int:
        raise AssertionError("everything fits")


def test_the_rate_of_a_step_is_that_of_its_middle() -> None:
    found: list[float] = []

    def note(state: State, report: Report) -> State:
        found.append(report.lr)
        return replace(state, schedule=state.schedule.ending(3, 5)) if state.step == 3 else state

    state = _run(_learner(), 9, Due(lambda _: True), note)
    assert state.step == 5
    schedules = [*[Schedule(total=9)] * 3, *[Schedule(total=9).ending(3, 5)] * 2]
    assert found == [learning_rate(SETTINGS, schedule.progress(i + 0.5)) for i, schedule in enumerate(schedules)]


class NoLines:
    """Metrics that go nowhere."""

    def __init__(self) -> None:
        self.lines: list[dict[str, object]] = []

    def add(self, **values: object) -> None:
        self.lines.append(values)


@pytest.mark.parametrize("seconds_per_step", [0.5, 1.0, 1.7, 3.0, 20.0])
def test_a_slow_machine_shortens_the_run_to_the_budget_and_the_rate_still_decays(seconds_per_step: float) -> None:
    budget, planned = 100.0, 100
    clock, metrics, said, rates = Turned(), NoLines(), [], []
    deadline = Deadline(clock, budget)
    requests = Requests()
    keep = hooks.KeepDeadline(deadline, requests, metrics, said.append, planned)  # type: ignore[arg-type]

    def tick(state: State, report: Report) -> State:
        clock.now += seconds_per_step
        rates.append(report.lr)
        return keep(state, report._replace(seconds=seconds_per_step))

    start = State(recipe="", data="", schedule=Schedule(total=planned))
    state = Loop(Idle(), [tick], requests).run(start)
    assert clock.now <= budget
    if seconds_per_step <= 1.0:
        assert state.step == planned
        assert not said
        assert state.shortened is None
    else:
        assert state.step >= 0.9 * budget / seconds_per_step - 2
        assert said
        assert metrics.lines[0]["event"] == "shortened"
        assert state.shortened is not None
    if seconds_per_step < 10:
        assert rates[-1] < 0.05 * SETTINGS.lr
    assert max(rates) <= SETTINGS.lr
    steps = np.diff([0.0, *rates])
    assert np.abs(steps).max() < 0.6 * SETTINGS.lr or state.step < 10  # no jump


@pytest.mark.parametrize("most", [None, 130, 1000])
def test_a_fast_machine_uses_its_time_as_far_as_it_may(most: int | None) -> None:
    budget, planned, seconds = 100.0, 100, 0.6
    clock, metrics, said, rates = Turned(), NoLines(), [], []
    requests = Requests()
    deadline = Deadline(clock, budget, idle_seconds=2.0)
    keep = hooks.KeepDeadline(deadline, requests, metrics, said.append, planned, most)  # type: ignore[arg-type]

    def tick(state: State, report: Report) -> State:
        clock.now += seconds
        rates.append(report.lr)
        return keep(state, report._replace(seconds=seconds))

    start = State(recipe="", data="", schedule=Schedule(total=planned))
    state = Loop(Idle(), [tick], requests).run(start)
    assert state.step == len(rates) == (planned if most is None else min(most, 166)), "less than a second is left"
    assert (state.lengthened is None) == (most is None) == (not said)
    assert state.shortened is None
    assert rates[-1] < 0.05 * SETTINGS.lr
    assert np.abs(np.diff([0.0, *rates])).max() < 0.6 * SETTINGS.lr  # no jump


@pytest.mark.parametrize("settling", [True, False])
def test_a_run_takes_all_its_steps_after_slow_first_ones(settling: bool) -> None:
    """Twenty steps take 1 s each, a thousand 50 s: the plan of an epoch's steps fits the time. Beside a compiler the
    slow ones change nothing; else they shorten the schedule, which then grows again, but not beyond the plan."""
    budget, planned, slow = 100.0, 1000, 20
    clock, metrics, requests = Turned(), NoLines(), Requests()
    totals: list[int] = []
    deadline = Deadline(clock, budget, idle_seconds=1.0, settling=settling)
    keep = hooks.KeepDeadline(deadline, requests, metrics, lambda _: None, planned, planned)  # type: ignore[arg-type]

    def tick(state: State, report: Report) -> State:
        seconds = 1.0 if state.step <= slow else 0.05
        clock.now += seconds
        if state.step == slow + 1 and settling:
            deadline.begin_again()
        state = keep(state, report._replace(seconds=seconds))
        totals.append(state.schedule.total)
        return state

    start = State(recipe="", data="", schedule=Schedule(total=planned, cooldown=0.4))
    state = Loop(Idle(), [tick], requests).run(start)
    assert state.step == planned and state.shortened is None and state.lengthened is None
    assert (min(totals) == planned) is settling


def test_the_rate_of_a_whole_schedule_is_a_function_of_the_fraction_done() -> None:
    for schedule in ("cosine", "linear", "constant"):
        settings = Train(batch=1, lr=1.0, warmup=0.1, schedule=schedule)  # type: ignore[arg-type]
        short = [learning_rate(settings, Schedule(total=50).progress(s + 0.5)) for s in range(50)]
        long = [learning_rate(settings, Schedule(total=500).progress(s + 0.5)) for s in range(500)]
        middle = np.array(long).reshape(50, 10).mean(axis=1)
        assert np.abs(np.array(short) - middle).max() < 0.02


def test_every_step_is_reported_with_its_own_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a second on a clock of the test's; another is under way when it is reported, unless a hook is due."""
    clock, reported = Turned(), []

    class Slow(RandomRows):
        def batch(self, index: RowIndex) -> Batch:
            clock.now += 1.0
            return super().batch(index)

    def note(state: State, report: Report) -> State:
        reported.append(report.seconds)
        clock.now += 0.25 * (state.step % 4 == 0)
        return state

    monkeypatch.setattr("shoestring.training.loop.time.perf_counter", clock.elapsed)
    _run(_learner(), 10, Due(lambda step: step % 4 == 0), note, source=Slow())
    assert reported == [1.0] * 10
