"""Local steps of every family and optimizer, by one worker."""

from __future__ import annotations

from pathlib import Path

import pytest
import resumed_runs
import torch

from shoestring.core.registry import registry
from shoestring.core.train_section import Train
from shoestring.models.language_model import build
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.learner import Learner
from shoestring.training.local import Average, LocalModel, LocalSettings, LocalStepper
from shoestring.training.loop import Loop, Report
from shoestring.training.schedule import Schedule

CASES = [
    resumed_runs.Case(*family, optimizer, "fp32")
    for family in resumed_runs.families()
    for optimizer in registry("optimizer")
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_family_and_optimizer_takes_local_steps(case: resumed_runs.Case, tmp_path: Path) -> None:
    """One worker whose average is its weights takes the steps of a run without averages, and resumes them."""
    plain_mean, spec = LocalSettings(2, 1.0, 0.0, 32, 1), resumed_runs.model_of(case, tmp_path)
    found = []
    for seed in (0, 1):
        learner = make_without_mean(case, tmp_path, seed)
        average = Average(learner.optimizer.masters, plain_mean, learner.group)
        model, checkpoints = LocalModel(learner, average), Checkpoints(tmp_path / "checkpoints", 1)

        def save(state: State, _: Report, model: LocalModel = model, to: Checkpoints = checkpoints) -> State:
            if state.step == resumed_runs.CUT:
                to.save(model, state)
            return state

        if seed:
            checkpoints.restore(resumed_runs.CUT, model, "r", "d")
        stepper = LocalStepper(
            learner,
            resumed_runs.RandomRows(spec),
            Train(batch=resumed_runs.BATCH, lr=1e-2),
            average=average,
            together=lambda act: act(),
            batch=resumed_runs.BATCH,
            per_device=2,
            seed=1,
        )
        schedule, first = Schedule(total=resumed_runs.STEPS), resumed_runs.CUT * seed
        Loop(stepper, () if seed else (save,)).run(State(recipe="r", data="d", schedule=schedule, step=first))
        found.append({name: tensor.clone() for name, tensor in model.saved_tensors().items()})
    whole, resumed = found
    assert [name for name, tensor in whole.items() if not torch.equal(tensor, resumed[name])] == []
    alone = make_without_mean(case, tmp_path, 0)
    resumed_runs.train(alone, spec, 0, resumed_runs.STEPS)
    for name, tensor in alone.optimizer.masters.items():
        torch.testing.assert_close(whole[f"model/{name}"], tensor.detach(), rtol=0, atol=1e-4)  # a hundredth of a step


def make_without_mean(case: resumed_runs.Case, folder: Path, seed: int) -> Learner:
    settings = Train(batch=resumed_runs.BATCH, lr=1e-2, optimizer=case.optimizer, precision="fp32")
    spec = resumed_runs.model_of(case, folder)
    built = build(spec, resumed_runs.VOCABULARY, resumed_runs.LENGTH, seed)
    return Learner(built, settings, torch.device("cpu"))
