"""Hooks: metrics windows, evaluations at fixed steps, checkpoints when they are due."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from group_jobs import make

from shoestring.core.clock import Clock
from shoestring.core.errors import Fault
from shoestring.track import LineFile, NoLines, read_lines
from shoestring.training import hooks
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.deadline import Deadline
from shoestring.training.loop import STOPS, Consensus, Report, Requests, Sum
from shoestring.training.schedule import Schedule


def _report(nats: float, predictions: int, begun: int = 0) -> Report:
    return Report(loss=Sum(nats, predictions), lr=0.1, grad_norm=1.0, seconds=0.01, begun=begun)


def _no_hurry() -> Deadline:
    """With time for everything."""
    return Deadline(Clock(0), 1e9)


def _state(step: int, total: int = 10) -> State:
    return State(recipe="r", data="d", schedule=Schedule(total=total), step=step)


def test_a_metrics_line_is_the_mean_over_all_predictions_since_the_last(tmp_path: Path) -> None:
    metrics, timings = LineFile(tmp_path / "m"), LineFile(tmp_path / "t")
    log = hooks.Log(metrics, timings, Clock(0), every=2, tokens_per_step=8)
    state = replace(_state(0, total=5), predictions=0)
    window = [(1, 10.0, 4), (2, 2.0, 8), (3, 6.0, 2), (4, 9.0, 1), (5, 5.0, 5)]
    for step, nats, predictions in window:
        state = log(replace(state, step=step), _report(nats, predictions))
    lines = read_lines(tmp_path / "m")
    assert [line["step"] for line in lines] == [2, 4, 5]  # the last step has a line even in mid-window
    assert [line["loss"] for line in lines] == [12 / 12, 15 / 3, 5 / 5]
    assert [line["tokens"] for line in lines] == [16, 32, 40]
    assert state.predictions == 4 + 8 + 2 + 1 + 5
    assert log(_state(6), _report(1.0, 3)).predictions is None, "not counted from the first step"
    assert "tokens_per_second" in read_lines(tmp_path / "t")[0]
    assert "tokens_per_second" not in lines[0]  # what depends on the clock is not among what was learned


@pytest.mark.parametrize(("every", "expected"), [(0.25, [3, 5, 8, 10]), (1.0, [10]), (0.3, [3, 6, 9, 10])])
def test_evaluations_come_at_fixed_fractions_and_at_the_end(every: float, expected: list[int], tmp_path: Path) -> None:
    metrics = LineFile(tmp_path / "m")
    losses = iter([3.0, 2.0, 2.5, 1.0])
    state = _state(0)
    evaluate = hooks.Evaluate(lambda: {"heldout_loss": next(losses)}, metrics, _no_hurry(), hooks.Evenly(every, state))
    best = []
    for step in range(1, 11):
        state = evaluate(replace(state, step=step), _report(1.0, 1))
        best.append(state.best_loss)
    assert [line["step"] for line in read_lines(tmp_path / "m")] == expected
    assert best[-1] == min(3.0, *([2.0, 2.5, 1.0][: len(expected) - 1] or [3.0]))


@pytest.mark.parametrize(("column", "what"), [("heldout_loss", "loss"), ("heldout_loss/news", "loss of news")])
def test_a_held_out_loss_that_is_not_finite_stops_the_run(tmp_path: Path, column: str, what: str) -> None:
    scores = {"heldout_loss": 1.0, column: float("nan")}
    evaluate = hooks.Evaluate(lambda: scores, LineFile(tmp_path / "m"), _no_hurry(), hooks.Evenly(1.0, _state(0, 1)))
    with pytest.raises(Fault, match=f"step 1: the held-out {what} is not finite"):
        evaluate(_state(1, total=1), _report(1.0, 1))


def test_a_schedule_that_changes_keeps_its_evaluations(tmp_path: Path) -> None:
    """Ten steps that become a hundred after the third: every tenth of the progress, and never twice."""
    state, scored = _state(0), []
    evaluate = hooks.Evaluate(
        lambda: {"heldout_loss": 1.0}, LineFile(tmp_path / "m"), _no_hurry(), hooks.Evenly(0.1, state)
    )
    for step in range(1, 101):
        state = replace(state, step=step)
        if step == 3:
            state = replace(state, schedule=state.schedule.ending(4, 100))  # the fourth step is under way
        evaluate(state, _report(1.0, 1, begun=4 if step == 3 else step))
    scored = [line["step"] for line in read_lines(tmp_path / "m")]
    assert scored[:3] == [1, 2, 4] and scored[3:] == [20, 36, 52, 68, 84, 100]


def test_checkpoints_come_when_due_at_a_new_best_and_at_the_end(tmp_path: Path) -> None:
    learner, checkpoints = make(), Checkpoints(tmp_path / "checkpoints", keep=9)

    def write(state: State, wait: bool) -> None:
        checkpoints.save(learner, state, wait)

    save = hooks.Save(write, Requests(), _no_hurry(), every=lambda: 1e9)
    for step in range(1, 11):
        save(replace(_state(step), best_step=4, best_loss=1.0), _report(1.0, 1, begun=step))
    assert checkpoints.steps() == [10, 4]


def test_a_checkpoint_that_is_due_is_a_request_until_all_know_of_it() -> None:
    saved: list[int] = []
    requests = Requests(alone=False)
    save = hooks.Save(lambda state, _: saved.append(state.step), requests, _no_hurry(), every=lambda: 0.0)
    assert not save.due(5, Schedule(total=10))
    save(_state(5), _report(1.0, 1, begun=6))
    assert requests.save
    assert not saved
    save(_state(6), _report(1.0, 1, begun=7)._replace(consensus=Consensus(save=True)))
    assert not saved, "another step is under way: the weights are those of step 7"
    assert save.due(7, Schedule(total=10))
    save(_state(7), _report(1.0, 1, begun=7))
    assert saved == [7]
    assert not save.due(8, Schedule(total=10))


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_that_all_know_of_saves_and_ends_the_session(stop: str) -> None:
    saved: list[tuple[int, bool]] = []
    requests = Requests(alone=False)
    save = hooks.Save(lambda state, wait: saved.append((state.step, wait)), requests, _no_hurry(), lambda: 1e9)
    save(_state(5), _report(1.0, 1, begun=6)._replace(consensus=Consensus(stop=stop)))
    assert save.due(6, Schedule(total=10))
    with pytest.raises(Fault, match=f"stopped by {stop} after step 6, saved"):
        save(_state(6), _report(1.0, 1, begun=6))
    assert saved == [(6, True)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_is_a_request_to_stop_as_long_as_somebody_listens(number: signal.Signals) -> None:
    requests, before = Requests(), signal.getsignal(number)
    with hooks.listening(requests):
        signal.raise_signal(number)
        assert requests.consensus() == Consensus(stop=number.name)
        second = signal.getsignal(number)
        assert (second == signal.SIG_DFL) == (number == signal.SIGINT), "a second Ctrl-C is meant"
    assert signal.getsignal(number) == before


def test_a_schedule_is_never_cut_below_the_steps_that_are_under_way() -> None:
    """Else the weights that are saved at its end would be those of a step later."""
    for alone in (True, False):
        requests, said = Requests(alone=alone), []
        deadline = Deadline(Clock(1e6), 1.0)  # the time is up
        keep = hooks.KeepDeadline(deadline, requests, NoLines(), said.append, 10)
        first = keep(_state(5), _report(1.0, 1, begun=6))
        assert first.schedule.total == (6 if alone else 10)
        assert requests.total == 5
        second = keep(replace(first, step=6), _report(1.0, 1, begun=7 - alone)._replace(consensus=Consensus(total=5)))
        assert second.schedule.total == 7 - alone
        third = keep(replace(second, step=7 - alone), _report(1.0, 1, 7 - alone)._replace(consensus=Consensus(total=5)))
        assert third == replace(second, step=7 - alone)
        assert len(said) == 1


def test_the_time_limit_is_a_request_to_stop() -> None:
    requests = Requests(alone=False)
    save = hooks.Save(lambda *_: None, requests, _no_hurry(), lambda: 1e9, limit=lambda: True)
    save(_state(1), _report(1.0, 1))
    assert requests.stops == {"the time limit"}
    assert requests.numbers(1) == [0, 0, 0, 0, 0, 0, 1, 0], "and one that any process may have"


def test_a_session_that_is_to_go_so_far_stops_there() -> None:
    requests, saved = Requests(), list[int]()
    save = hooks.Save(
        lambda state, _: saved.append(state.step), requests, _no_hurry(), lambda: 1e9, enough=lambda s: s.step >= 3
    )
    for step in (1, 2):
        save(_state(step), _report(1.0, 1, begun=step))
    with pytest.raises(hooks.Stopped, match="stopped by --until after step 3, saved"):
        save(_state(3), _report(1.0, 1, begun=3))
    assert saved == [3]


def test_metrics_hold_nothing_that_depends_on_the_clock(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        log = hooks.Log(LineFile(folder / "m"), LineFile(folder / "t"), Clock(0), every=1, tokens_per_step=8)
        log(_state(1), _report(3.0, 4))
    assert (tmp_path / "one/m").read_bytes() == (tmp_path / "two/m").read_bytes()
    assert json.loads((tmp_path / "one/t").read_text())["elapsed"] >= 0
