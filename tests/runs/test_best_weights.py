"""A run delivers its best weights; one that overfits returns to them, lets the learning rate decay, and ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from profiles import write_profile

from shoestring.core.clock import Clock
from shoestring.core.errors import RunError
from shoestring.core.recipe_file import load
from shoestring.core.results import Evaluation, Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.core.specs import CheckpointSpec
from shoestring.runs import session
from shoestring.runs.best_weights import DECAY_SHARE
from shoestring.runs.evaluate import evaluate_run
from shoestring.runs.network_trainee import NetworkTrainee
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import Finished, run
from shoestring.runs.trained_model import BEST, trained_weights
from shoestring.track import read_lines
from shoestring.training import hooks
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.schedule import Schedule

STEPS, BEST_STEP = 40, 12
Planted = Callable[..., Finished | None]
REPEATS = NetworkTrainee.repeats


class Said(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def planted(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """Runs whose held-out loss is a function of the steps, evaluated every second step, in folder NAME."""
    write_profile(tiny)
    monkeypatch.chdir(tiny.parent)
    monkeypatch.setattr(session, "checkpoint_interval", lambda *_: math.inf)
    score, begin, taken = NetworkTrainee.score, NetworkTrainee.begin, [0]

    def planted_score(trainee: NetworkTrainee) -> dict[str, float]:
        scores = score(trainee)
        return scores | {"heldout_loss": loss(taken[0]), "heldout_error": 0.01}

    def counted_begin(trainee: NetworkTrainee, step: int, *others: Any) -> Any:
        taken[0] = step + 1
        return begin(trainee, step, *others)

    monkeypatch.setattr(NetworkTrainee, "repeats", lambda *_: True)
    monkeypatch.setattr(NetworkTrainee, "score", planted_score)
    monkeypatch.setattr(NetworkTrainee, "begin", counted_begin)
    loss: Callable[[int], float] = float

    def trained(
        of_step: Callable[[int], float], name: str = "tiny", reporter: Reporter | None = None, **sets: Any
    ) -> Any:
        nonlocal loss
        loss = of_step
        fields = {"run.name": name, "evaluate.every": 0.05, "train.lr": 1e-2, "train.keep": 1} | sets
        settings = [f"{field}={value!r}".replace("'", '"') for field, value in fields.items()]
        recipe = load(tiny, settings)
        if not RunFolder.of(recipe).profile.is_file():
            write_profile(tiny, *settings)
        return run(recipe, reporter or Reporter(), Clock(0.0))

    return trained


def turning(step: int) -> float:
    """Lowest after step 12, above it beyond doubt after step 14, and about as low once the run has returned."""
    return 3.0 + (0.04 * abs(step - BEST_STEP) if step <= 14 else 0.001)


def weights(folder: RunFolder, which: str) -> dict[str, torch.Tensor]:
    return trained_weights(folder, CheckpointSpec(which))[0]


def test_a_run_that_overfits_returns_to_its_best_weights_and_ends(planted: Planted) -> None:
    said = Said()
    finished = planted(turning, reporter=said)
    assert finished is not None
    lines = read_lines(finished.folder.metrics)
    event = next(line for line in lines if line.get("event") == "overfitting")
    assert (event["step"], event["best"], event["was"]) == (14, BEST_STEP, STEPS)
    assert event["total"] == 14 + 10, "a tenth of the run: no fewer"
    assert finished.outcome.steps == 24 and finished.outcome.delivered == BEST_STEP
    rates = {line["step"]: line["lr"] for line in lines if "lr" in line}
    assert rates[15] == pytest.approx(rates[13], rel=0.05), "it continues with the rate that the best weights had"
    assert rates[24] < 0.1 * rates[15]
    assert any("overfitting since step 12; back to its weights, and 10 steps more" in line for line in said.lines)
    assert any("the weights of step 12 are delivered" in line for line in said.lines)


def test_a_loss_that_rises_within_the_first_epoch_ends_nothing(
    planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NetworkTrainee, "repeats", REPEATS)
    finished = planted(turning)
    assert finished is not None and finished.outcome.steps == STEPS
    assert not any(line.get("event") == "overfitting" for line in read_lines(finished.folder.metrics))
    assert finished.outcome.delivered == BEST_STEP, "and the best weights are delivered all the same"


@pytest.mark.parametrize(("rows", "expected"), [(23, True), (24, False), (1000, False)])
def test_rows_repeat_after_the_last_one(rows: int, expected: bool) -> None:
    trainee: Any = SimpleNamespace(
        _before=1, _split=(8, 8), corpus=None, _reads=SimpleNamespace(training_rows=[0] * rows)
    )
    assert REPEATS(trainee, State(recipe="", data="", step=2, schedule=Schedule(total=10))) is expected


def test_the_first_step_after_a_return_starts_from_the_best_weights(
    planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, dict[str, torch.Tensor]] = {}
    begin = NetworkTrainee.begin

    def kept(trainee: NetworkTrainee, step: int, *others: Any) -> Any:
        seen.setdefault(step, {name: value.clone() for name, value in trainee.learner.saved_tensors().items()})
        return begin(trainee, step, *others)

    monkeypatch.setattr(NetworkTrainee, "begin", kept)
    planted(turning)
    assert seen[14].keys() == seen[12].keys()
    assert all(torch.equal(seen[14][name], tensor) for name, tensor in seen[12].items()), "moments of the optimizer too"
    assert not all(torch.equal(seen[13][name], tensor) for name, tensor in seen[12].items())


def test_a_decay_that_helps_is_what_is_delivered(planted: Planted) -> None:
    finished = planted(lambda step: turning(step) if step <= 14 else 2.9 - 0.01 * step)
    assert finished is not None and finished.outcome.delivered is None and finished.outcome.steps == 24
    assert finished.evaluation.step == 24


@pytest.mark.parametrize("at", [14, 15, 20])
def test_killed_around_the_return_it_ends_with_the_same_bits(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    whole = planted(turning, "whole")
    begin = NetworkTrainee.begin

    class Killed(BaseException): ...

    def dies(trainee: NetworkTrainee, step: int, *others: Any) -> Any:
        if step == at:
            raise Killed
        return begin(trainee, step, *others)

    with monkeypatch.context() as patch:
        patch.setattr(NetworkTrainee, "begin", dies)
        with pytest.raises(Killed):
            planted(turning, "cut")
    cut = planted(turning, "cut")
    assert whole is not None and cut is not None
    assert cut.folder.metrics.read_bytes() == whole.folder.metrics.read_bytes()
    assert cut.evaluation == whole.evaluation
    for which in ("best", "last"):
        expected = weights(whole.folder, which)
        assert all(torch.equal(value, expected[name]) for name, value in weights(cut.folder, which).items())


def test_the_best_weights_are_delivered_evaluated_and_used_by_default(planted: Planted) -> None:
    """A held-out loss that rises by less than noise lets the run go on."""
    finished = planted(lambda step: 3.0 + 0.0001 * abs(step - BEST_STEP))
    assert finished is not None
    folder, outcome = finished.folder, finished.outcome
    assert (outcome.steps, outcome.delivered) == (STEPS, BEST_STEP)
    assert Evaluation.read(folder.evaluation).step == BEST_STEP and Outcome.read(folder.done).delivered == BEST_STEP
    assert evaluate_run(folder, BEST).loss == pytest.approx(finished.evaluation.loss, rel=1e-6)
    assert evaluate_run(folder, CheckpointSpec("last")).loss != pytest.approx(finished.evaluation.loss, rel=1e-6)
    (found, state), lines = trained_weights(folder), list[str]()
    assert state.step == BEST_STEP
    trained_weights(folder, say=lines.append)
    assert lines == ["step 12 is used, which had the lowest held-out loss; the last one is 40"]
    assert not all(torch.equal(value, weights(folder, "last")[name]) for name, value in found.items())


def test_where_the_best_checkpoint_is_damaged_the_last_one_is_used_and_no_record_is_lost(planted: Planted) -> None:
    finished = planted(lambda step: 3.0 + 0.0001 * abs(step - BEST_STEP))
    assert finished is not None
    folder, said = finished.folder, list[str]()
    path = Checkpoints(folder.checkpoints, 1).path(BEST_STEP)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert trained_weights(folder, say=said.append)[1].step == STEPS
    assert len(said) == 1 and str(path) in said[0] and "step 40 is used instead" in said[0]


def test_a_better_record_of_a_later_step_is_kept(planted: Planted) -> None:
    finished = planted(lambda step: 9.0 - 0.001 * step, **{"train.save_steps": "20"})
    assert finished is not None
    checkpoints = Checkpoints(finished.folder.checkpoints, 1)
    for step in checkpoints.steps():
        if step != 20:
            checkpoints.path(step).unlink()
    with pytest.raises(RunError, match="is of step 40, and the best intact checkpoint of step 20: it is kept"):
        evaluate_run(finished.folder, BEST, replaces=False)


def test_a_run_whose_rate_does_not_decay_ends_at_once(planted: Planted) -> None:
    finished = planted(turning, **{"train.schedule": "constant"})
    assert finished is not None and (finished.outcome.steps, finished.outcome.delivered) == (14, BEST_STEP)


def test_a_run_that_overfits_again_after_its_return_ends_at_once(planted: Planted) -> None:
    finished = planted(lambda step: 3.0 + 0.04 * abs(step - BEST_STEP))
    assert finished is not None and (finished.outcome.steps, finished.outcome.delivered) == (15, BEST_STEP)


def judged(train: float, loss: float, error: float | None, **state: Any) -> State:
    kept = State(recipe="r", data="d", schedule=Schedule(total=100), step=50)
    return hooks._judged(replace(kept, best_step=40, best_loss=1.0, best_train=2.0, **state), loss, error, train)


@pytest.mark.parametrize(
    ("train", "loss", "error", "before", "worse"),
    [
        (1.9, 1.03, 0.01, 0, 1),
        (1.9, 1.03, 0.01, 1, 2),
        (1.9, 1.07, 0.01, 0, 2),  # beyond doubt
        (1.9, 1.015, 0.01, 1, 0),  # noise
        (2.1, 1.50, 0.01, 1, 0),  # the training loss rises as well: something else is wrong
        (1.9, 1.50, None, 1, 0),  # the noise is unknown
        (1.9, 0.99, 0.01, 1, 0),  # the best
    ],
)
def test_what_counts_as_overfitting(train: float, loss: float, error: float | None, before: int, worse: int) -> None:
    state = judged(train, loss, error, worse=before)
    assert state.worse == worse
    assert (state.best_step == 50) == (loss < 1.0)


def test_a_decay_takes_a_share_of_the_steps_to_the_best_weights(planted: Planted) -> None:
    finished = planted(lambda step: 3.0 + 0.02 * abs(step - 60), **{"budget.steps": 100})
    assert finished is not None
    event = next(line for line in read_lines(finished.folder.metrics) if line.get("event") == "overfitting")
    assert event["best"] == 60 and event["total"] == event["step"] + round(DECAY_SHARE * 60)
