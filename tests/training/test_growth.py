"""Batches that grow: what is measured of the gradient noise, which steps update, and runs that resume."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import group_jobs
import pytest
import torch
from processes import together

import shoestring
from shoestring.core import recipe_file
from shoestring.core.errors import RecipeError
from shoestring.core.recipe import Recipe
from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.data.pack.order import RowIndex, step_rows
from shoestring.models.batch import Batch
from shoestring.models.language_model import build
from shoestring.parallel.process_group import ProcessGroup
from shoestring.training import growth
from shoestring.training.checkpoint import State
from shoestring.training.growth import WINDOW, GrowingStepper, Growth, Noise, noise_of
from shoestring.training.learner import Learner
from shoestring.training.loop import Loop, Report, Requests
from shoestring.training.schedule import Schedule
from shoestring.training.stepper import Stepper

LENGTH, ROWS, BATCH = 8, 48, 4


def test_the_estimates_are_exact_for_expected_norms() -> None:
    """E |mean of n|² = |μ|² + tr Σ / n."""
    length, trace = 3.0, 50.0
    found = noise_of(length + trace / 16, 16, length + trace / 64, 64, steps=2)
    assert (found.squares, found.trace) == pytest.approx((length, trace))
    assert found.scale == pytest.approx(trace / length / 32), "in steps of 32 predictions"
    assert Noise(0.0, 1.0, 32, 1).scale == math.inf


@pytest.mark.parametrize("divided", [False, True])
def test_every_step_is_in_one_update(divided: bool) -> None:
    plan, schedule = Growth(5, divided), Schedule(total=3 * WINDOW + 5)
    for passes in (1, 2, 4, 8, 16, 32):
        plan.passes = passes
        ends = [step for step in range(1, schedule.total + 1) if plan.updates(step, schedule)]
        sizes = [b - a for a, b in zip([0, *ends], ends)]
        assert ends[-1] == schedule.total and {WINDOW, 2 * WINDOW} <= set(ends)
        probes = 1 if passes == 1 and not divided else 0
        whole = sizes[: len([end for end in ends if end <= WINDOW])]
        assert whole == [2] * probes + [passes] * ((WINDOW - 2 * probes) // passes)


def test_it_doubles_once_in_a_window_after_enough_of_them() -> None:
    plan, doubled = Growth(2, True), []
    for step in range(12 * WINDOW):
        if plan.decide(step) or plan.decide(step):
            doubled.append(step)
        plan.add(step, Noise(1.0, 3.0, 1.0, 1))  # the noise is 3 steps
    assert doubled == [5 * WINDOW], "3 is above 2, but not above 4"
    assert plan.noise == pytest.approx(3.0) and plan.passes == 2
    same = Growth(2, True)
    same.put(plan.saved())
    assert same.saved() == plan.saved()


class Rows:
    ids = torch.randint(11, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(1))

    def order(self, seed: int, step: int, batch: int) -> RowIndex:
        return step_rows(seed, ROWS, step, batch)

    def batch(self, index: RowIndex) -> Batch:
        return Batch(self.ids[index.rows])


def learner(**train: Any) -> Learner:
    model = Model(width=16, layers=1, heads=2)
    return Learner(build(model, 11, LENGTH, 0), Train(batch=BATCH, lr=0.01, **train), torch.device("cpu"))


def growing(per_device: int = BATCH, **train: Any) -> GrowingStepper:
    given = Train(batch=BATCH, lr=0.01, schedule="constant", warmup=0.0)
    options = {"batch": BATCH, "per_device": per_device, "seed": 3}
    return GrowingStepper(learner(**train), Rows(), given, most=5, **options)


def test_an_update_of_two_steps_is_that_of_twice_the_batch() -> None:
    mine = growing()
    mine.growth.passes = 2
    Loop(mine, ()).run(State(recipe="", data="", schedule=Schedule(total=8)))
    settings = Train(batch=2 * BATCH, lr=0.01 * math.sqrt(2), schedule="constant", warmup=0.0)
    theirs = Stepper(learner(), Rows(), settings, batch=2 * BATCH, per_device=2 * BATCH, seed=3)
    Loop(theirs, ()).run(State(recipe="", data="", schedule=Schedule(total=4)))
    for name, tensor in theirs.learner.weights.items():
        assert torch.allclose(tensor, mine.learner.weights[name], atol=2e-5), name


@pytest.mark.parametrize("per_device", [2, BATCH])
def test_the_part_is_the_gradient_of_the_first_pass(per_device: int) -> None:
    mine = growing(per_device)
    plain = {name: p.detach().double() for name, p in mine.learner.model.named_parameters()}
    schedule, requests = Schedule(total=8), Requests()
    reports = [mine.begin(step, schedule, requests).read() for step in range(2)]
    assert [report.consolidated for report in reports] == [per_device < BATCH, True]
    model = learner().model.double()
    model.load_state_dict(plain, strict=False)

    def square(rows: torch.Tensor) -> float:
        model.zero_grad()
        model(Batch(rows)).backward()
        return sum(float((p.grad / rows[:, 1:].numel()).square().sum()) for p in model.parameters())  # type: ignore[operator]

    which = torch.cat([Rows.ids[step_rows(3, ROWS, step, BATCH).rows] for step in range(2)])
    whole = which[:BATCH] if per_device < BATCH else which
    wanted = noise_of(square(whole[:per_device]), per_device * LENGTH, square(whole), whole[:, 1:].numel(), 1)
    if per_device == BATCH:
        (noise,) = mine.growth._windows.values()
        assert (noise.squares, noise.trace) == pytest.approx((wanted.squares, wanted.trace), rel=1e-3)
    assert all(report.lr == 0.01 for report in reports)


def test_an_update_that_did_not_fit_is_repeated_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for fails in (False, True):
        mine = growing()
        mine.growth.passes = 4
        accumulate, calls = mine.learner.accumulate, []

        def once(rows: Any, per_device: int, fails: bool = fails, passes: Any = accumulate, calls: Any = calls) -> Any:
            calls.append(per_device)
            tally = passes(rows, per_device)
            return tally._replace(fitted=not (fails and len(calls) == 6))

        monkeypatch.setattr(mine.learner, "accumulate", once)
        Loop(mine, ()).run(State(recipe="", data="", schedule=Schedule(total=12)))
        found.append((mine.learner.weights, calls))
    assert set(found[1][1][-4:]) == {BATCH // 2}
    for name, tensor in found[0][0].items():
        assert torch.allclose(tensor, found[1][0][name], atol=2e-5), name


def test_a_run_that_resumes_grows_at_the_same_steps_and_ends_with_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(growth, "WINDOW", 8)
    monkeypatch.setattr(growth, "FACTOR", -1.0)
    whole, kept, steps = growing(), dict[int, Any](), 64

    def keep(state: State, report: Report) -> State:
        if report.settled(state.step):
            tensors = {name: tensor.clone() for name, tensor in whole.learner.saved_tensors().items()}
            kept[state.step] = tensors, json.dumps(whole.growth.saved())
        return state

    class Keep:
        __call__ = staticmethod(keep)

        def due(self, step: int, schedule: Schedule) -> bool:
            return step > 30

    Loop(whole, [Keep()]).run(State(recipe="", data="", schedule=Schedule(total=steps)))
    assert whole.growth.passes == 8, "it doubled after 5, 6 and 7 windows"
    assert max(kept) == steps and {40, 42, 48, 52, 56} <= set(kept) and not {41, 43, 57, 60} & set(kept)
    for cut in (40, 44):
        rest = growing()
        rest.learner.put_tensors(kept[cut][0])
        rest.put(json.loads(kept[cut][1]))
        Loop(rest, ()).run(State(recipe="", data="", schedule=Schedule(total=steps), step=cut))
        assert rest.growth.saved() == whole.growth.saved()
        for name, tensor in whole.learner.saved_tensors().items():
            assert torch.equal(tensor, rest.learner.saved_tensors()[name]), (cut, name)


def in_one_process(group: ProcessGroup) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """24 steps of unequal rows, two to an update, in float64."""
    settings = Train(batch=group_jobs.BATCH, lr=0.01, schedule="constant", warmup=0.0)
    rest = {"batch": group_jobs.BATCH, "per_device": 2, "seed": 1}
    stepper = GrowingStepper(group_jobs.make(group, double=True), group_jobs.PackedRows(), settings, most=5, **rest)
    stepper.growth.passes = 2
    Loop(stepper, ()).run(State(recipe="", data="", schedule=Schedule(total=24)))
    return group_jobs.weights(stepper.learner), stepper.growth.saved()


def test_processes_agree_on_weights_and_noise() -> None:
    alone, _ = in_one_process(group_jobs.ALONE)
    (weights, noise), (others, same) = together(in_one_process, 2)
    assert noise == same
    for name, tensor in alone.items():
        assert torch.equal(weights[name], others[name])
        assert torch.allclose(tensor, weights[name], atol=1e-9), name


def recipe(folder: Path, **train: Any) -> Recipe:
    values = {
        "run": {"name": "grow", "folder": str(folder / "runs")},
        "budget": {"steps": 56},
        "data": {"stream": "markov:8", "length": 8},
        "stream": {"fewest": 3, "most": 4},
        "model": {"width": 8, "layers": 1, "heads": 1},
        "train": {"batch": 4, "lr": 0.01, "grow": 2, "warmup": 0.0, "per_device": 4, **train},
        "evaluate": {"rows": 4, "every": 0.5, "prompts": []},
    }
    return recipe_file.build(values, "test")


def test_metrics_and_outcome_have_the_noise_and_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "WINDOW", 8)
    monkeypatch.setattr(growth, "FACTOR", -1.0)
    monkeypatch.setattr(Noise, "scale", 2.0)
    found = shoestring.train(recipe(tmp_path), show=False)
    assert [line["gradient_noise"] for line in found.metrics if "gradient_noise" in line] == [8.0, 8.0]
    rows = [(line["step"], line["update_rows"]) for line in found.metrics if "update_rows" in line]
    assert rows == [(2, 4), (10, 4), (18, 4), (26, 4), (34, 4), (42, 8), (52, 16)]
    assert ("updates", "up to 16 rows") in [(line.quantity, line.value) for line in found.plan.lines]
    assert found.outcome.grown is not None and found.outcome.grown.rows == 16 and found.outcome.grown.noise == 8.0


def test_it_needs_whole_models_that_are_updated_together(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"train\.grow"):
        recipe_file.replaced(recipe(tmp_path), {"parallel.strategy": "local", "parallel.workers": 2})
