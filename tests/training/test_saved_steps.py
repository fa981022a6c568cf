"""Checkpoints of chosen steps: which, that they stay, and that a resumed run writes the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from group_jobs import BATCH, PlainRows, make

from shoestring.core.specs import CheckpointSpec, StepsSpec
from shoestring.core.train_section import Train
from shoestring.training import hooks
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.loop import Loop, Requests
from shoestring.training.schedule import Schedule
from shoestring.training.stepper import Stepper

STEPS = 20


@pytest.mark.parametrize(
    ("text", "last", "steps"),
    [
        ("1,10,100", 1000, [1, 10, 100]),
        ("1, 10, 100", 99, [1, 10]),
        ("1,2,4,...", 100, [1, 2, 4, 8, 16, 32, 64]),
        ("1,2,4,…", 128, [1, 2, 4, 8, 16, 32, 64, 128]),
        ("10,15,...", 60, [10, 15, 22, 33, 50]),
        ("9,10,...", 14, [9, 10, 11, 12, 13, 14]),
        ("500", 10, []),
    ],
)
def test_steps_are_listed_or_continued_by_their_ratio(text: str, last: int, steps: list[int]) -> None:
    assert StepsSpec.parse(text).up_to(last) == steps
    train = Train(save_steps=text)  # type: ignore[arg-type]
    assert [step for step in range(1, last + 1) if train.is_saved(step)] == steps
    assert train.saved_count(last) == len(steps)


@pytest.mark.parametrize("text", ["", "0,1", "1,1", "4,2", "1,...", "every 10", "1;2", "-1,2", "1,2,4..."])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be steps such as"):
        StepsSpec.parse(text)


def test_both_fields_add_up() -> None:
    train = Train(save_every=6, save_steps="1,2,4,...")  # type: ignore[arg-type]
    assert [step for step in range(1, 21) if train.is_saved(step)] == [1, 2, 4, 6, 8, 12, 16, 18]
    assert train.saved_count(20) == 8
    assert Train().saved_count(20) == 0 and not Train().is_saved(1)


class NoHurry:
    def took_overhead(self, seconds: float, kind: str) -> None: ...


def run(folder: Path, stop_at: int | None = None, seed: int = 3) -> Checkpoints:
    """A run that saves after every step in addition, as a busy clock would; stopped once, like by a signal."""
    train = Train(save_steps="1,2,4,...", save_every=7)  # type: ignore[arg-type]
    checkpoints, requests = Checkpoints(folder, 1, train.is_saved), Requests()
    learner = make(seed=seed, ema=0.9)
    state = State(recipe="r", data="d", schedule=Schedule(total=STEPS))
    step, _ = checkpoints.latest()
    if step is not None:
        state = checkpoints.restore(step, learner, "r", "d")
    save = hooks.Save(
        lambda state, wait: checkpoints.save(learner, state, wait),
        requests,
        NoHurry(),  # type: ignore[arg-type]
        lambda: 1e9,
        is_saved=train.is_saved,
    )

    def stop(state: State, _: object) -> State:
        if state.step == stop_at:
            requests.stops.add("SIGTERM")
        return state

    stepper = Stepper(learner, PlainRows(), Train(batch=BATCH, lr=1e-2), batch=BATCH, per_device=BATCH, seed=1)
    try:
        Loop(stepper, (stop, save), requests).run(state)
    except hooks.Stopped:
        assert stop_at is not None
    checkpoints.wait()
    return checkpoints


def test_they_stay_and_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    straight = run(tmp_path / "straight")
    assert straight.steps() == [20, 16, 14, 8, 7, 4, 2, 1]
    halted = run(tmp_path / "resumed", stop_at=10)
    assert halted.steps()[0] in (10, 11) and halted.steps()[1:] == [8, 7, 4, 2, 1]
    resumed = run(tmp_path / "resumed", seed=8)
    assert resumed.steps() == straight.steps(), "the one of the stop was swept"
    for step in straight.steps():
        assert resumed.path(step).read_bytes() == straight.path(step).read_bytes(), step
    opened = resumed.find(CheckpointSpec("4"), tmp_path)
    assert opened.state.step == 4
