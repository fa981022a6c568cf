"""Hooks: metrics windows, evaluations at fixed steps, checkpoints when they are due."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shoestring.core.clock import Clock
from shoestring.core.errors import Fault
from shoestring.core.recipe import Model, Train
from shoestring.models import build
from shoestring.track import LineFile, read_lines
from shoestring.train import hooks
from shoestring.train.checkpoint import Checkpoints, State
from shoestring.train.course import Course
from shoestring.train.learner import Learner, Sum
from shoestring.train.loop import Report
from shoestring.train.pace import Pace


def _report(nats: float, predictions: int) -> Report:
    return Report(loss=Sum(nats, predictions), lr=0.1, grad_norm=1.0, seconds=0.01)


def _state(step: int, total: int = 10) -> State:
    return State(recipe="r", data="d", course=Course(total=total), step=step)


def test_a_metrics_line_is_the_mean_over_all_predictions_since_the_last(tmp_path: Path) -> None:
    metrics, timings = LineFile(tmp_path / "m"), LineFile(tmp_path / "t")
    log = hooks.Log(metrics, timings, Clock(0), every=2, tokens_per_step=8)
    state = _state(0, total=5)
    window = [(1, 10.0, 4), (2, 2.0, 8), (3, 6.0, 2), (4, 9.0, 1), (5, 5.0, 5)]
    for step, nats, predictions in window:
        state = log(replace(state, step=step), _report(nats, predictions))
    lines = read_lines(tmp_path / "m")
    assert [line["step"] for line in lines] == [2, 4, 5]  # the last step has a line even in mid-window
    assert [line["loss"] for line in lines] == [12 / 12, 15 / 3, 5 / 5]
    assert [line["tokens"] for line in lines] == [16, 32, 40]
    assert "tokens_per_second" in read_lines(tmp_path / "t")[0]
    assert "tokens_per_second" not in lines[0]  # what depends on the clock is not among what was learned


@pytest.mark.parametrize(("every", "expected"), [(0.25, [3, 5, 8, 10]), (1.0, [10]), (0.3, [3, 6, 9, 10])])
def test_evaluations_come_at_fixed_fractions_and_at_the_end(every: float, expected: list[int], tmp_path: Path) -> None:
    metrics = LineFile(tmp_path / "m")
    losses = iter([3.0, 2.0, 2.5, 1.0])
    evaluate = hooks.Evaluate(
        lambda: {"heldout_loss": next(losses)}, metrics, Pace(Clock(0), 1e9, 0.0), planned=10, every=every
    )
    state = _state(0)
    best = []
    for step in range(1, 11):
        state = evaluate(replace(state, step=step), _report(1.0, 1))
        best.append(state.best_loss)
    assert [line["step"] for line in read_lines(tmp_path / "m")] == expected
    assert best[-1] == min(3.0, *([2.0, 2.5, 1.0][: len(expected) - 1] or [3.0]))


def test_a_held_out_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    evaluate = hooks.Evaluate(
        lambda: {"heldout_loss": float("nan")}, LineFile(tmp_path / "m"), Pace(Clock(0), 1e9, 0.0), planned=1, every=1.0
    )
    with pytest.raises(Fault, match="step 1: the held-out loss is not finite"):
        evaluate(_state(1, total=1), _report(1.0, 1))


def test_checkpoints_come_when_due_at_a_new_best_and_at_the_end(tmp_path: Path) -> None:
    learner = Learner(build(Model(width=8, layers=1, heads=1), 10, 0), Train(batch=1), torch.device("cpu"))
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=9)
    save = hooks.Save(checkpoints, learner, LineFile(tmp_path / "m"), Pace(Clock(0), 1e9, 0.0), every=1e9)
    for step in range(1, 11):
        save(replace(_state(step), best_step=4, best_loss=1.0), _report(1.0, 1))
    assert checkpoints.steps() == [10, 4]
    always = hooks.Save(checkpoints, learner, LineFile(tmp_path / "m"), Pace(Clock(0), 1e9, 0.0), every=0.0)
    always(_state(6), _report(1.0, 1))
    assert 6 in checkpoints.steps()


def test_metrics_hold_nothing_that_depends_on_the_clock(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / name
        log = hooks.Log(LineFile(folder / "m"), LineFile(folder / "t"), Clock(0), every=1, tokens_per_step=8)
        log(_state(1), _report(3.0, 4))
    assert (tmp_path / "one/m").read_bytes() == (tmp_path / "two/m").read_bytes()
    assert json.loads((tmp_path / "one/t").read_text())["elapsed"] >= 0
