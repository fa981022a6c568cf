"""A run that continues another one from before its cool-down: for longer, or to try something from the middle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from profiles import write_profile

from shoestring.core.clock import Clock
from shoestring.core.errors import RunError, StorageError, UserError
from shoestring.core.recipe_file import load
from shoestring.core.run_folder import RunFolder
from shoestring.core.specs import CheckpointSpec
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.runs.trained_model import steps_before
from shoestring.training.checkpoint import Checkpoints, Opened

Trained = Callable[..., RunFolder]
COOLDOWN = {"train.schedule": "cooldown", "train.cooldown": 0.5}


@pytest.fixture
def trained(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Trained:
    """Runs a recipe in folder NAME for some steps, over text that is all read."""
    monkeypatch.chdir(tiny.parent)

    def train(name: str, steps: int, **sets: Any) -> RunFolder:
        fields = {"run.name": name, "budget.steps": steps, "data.documents": 300, "train.lr": 1e-2} | sets
        settings = [f"{field}={_toml(value)}" for field, value in fields.items()]
        write_profile(tiny, *settings)
        recipe = load(tiny, settings)
        run(recipe, Reporter(), Clock(0.0))
        return RunFolder.of(recipe)

    return train


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


def found(folder: RunFolder, which: str = "last") -> Opened:
    return Checkpoints(folder.checkpoints, keep=1).find(CheckpointSpec(which), folder.path)


def tensors(folder: RunFolder, which: str = "last") -> dict[str, torch.Tensor]:
    return found(folder, which).read({})


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_that_is_continued_ends_as_one_that_was_planned_so(trained: Trained, optimizer: str) -> None:
    """20 steps at the peak and 60 more, the last 30 cooling down, end as one run of 80 steps with the same rates."""
    rule = {"train.optimizer": optimizer, "train.least_warmup": 1}
    short = trained("short", 40, **COOLDOWN, **rule)
    assert found(short, "peak").state.step == 20
    longer = trained("longer", 60, **COOLDOWN, **rule, **{"model.init": str(short.path), "train.continued": True})
    fresh = trained(
        "fresh", 80, **rule, **{"train.schedule": "cooldown", "train.cooldown": 0.375, "train.warmup": 0.025}
    )
    expected = tensors(fresh)
    for name, tensor in tensors(longer).items():
        torch.testing.assert_close(
            tensor, expected[name], rtol=1e-4, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}"
        )
    assert not torch.equal(tensors(short)["model/embedding.weight"], expected["model/embedding.weight"])


def test_a_run_branches_at_any_checkpoint(trained: Trained) -> None:
    """With another learning rate; the weights of its first step are those of the other run after one more step."""
    short = trained("short", 10, **COOLDOWN, **{"train.save_every": 4, "train.warmup": 0.1, "train.least_warmup": 1})
    branch = {"model.init": f"{short.path}#4", "train.continued": True, "train.schedule": "constant"}
    one = trained("one", 1, **branch)
    again = trained("again", 5, **{"train.schedule": "constant", "train.warmup": 0.2, "train.least_warmup": 1})
    for name, tensor in tensors(one).items():
        torch.testing.assert_close(tensor, tensors(again)[name], rtol=1e-4, atol=1e-6)
    other = trained("other", 1, **branch, **{"train.lr": 3e-2})
    assert not torch.equal(tensors(other)["model/embedding.weight"], tensors(one)["model/embedding.weight"])


def test_a_continued_run_that_is_stopped_resumes_to_the_same_bits(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads on where it was, after the rows of the run that it continues."""
    from shoestring.runs.network_trainee import NetworkTrainee

    short = trained("short", 20, **COOLDOWN)
    sets = {"model.init": str(short.path), "train.continued": True, "train.save_every": 2} | COOLDOWN
    whole, begin = trained("whole", 12, **sets), NetworkTrainee.begin

    def fail(trainee: NetworkTrainee, step: int, *others: Any) -> Any:
        if step == 7:
            raise KeyboardInterrupt
        return begin(trainee, step, *others)

    with monkeypatch.context() as patched:
        patched.setattr(NetworkTrainee, "begin", fail)
        with pytest.raises(KeyboardInterrupt):
            trained("whole2", 12, **sets)
    resumed = trained("whole2", 12, **sets)
    expected = tensors(whole)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors(resumed).items())


def test_what_cannot_be_continued_is_named(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.continued = true: model\.init must name the run"):
        trained("nothing", 5, **{"train.continued": True})
    cosine = trained("cosine", 6)
    with pytest.raises(RunError, match=r'no checkpoint "peak"; only a run with train\.schedule = "cooldown"'):
        trained("a", 5, **{"model.init": str(cosine.path), "train.continued": True})
    with pytest.raises(UserError, match=r'train\.optimizer = "adamw" is continued with that one'):
        trained("b", 5, **{"model.init": f"{cosine.path}#last", "train.continued": True, "train.optimizer": "muon"})
    with pytest.raises(UserError, match=r"has no ema.*; train\.ema and train\.precision must be those of that run"):
        trained("d", 5, **{"model.init": f"{cosine.path}#last", "train.continued": True, "train.ema": 0.9})
    with pytest.raises(UserError, match=r"needs the folder of a run"):
        trained("c", 5, **{"model.init": str(tmp_path), "train.continued": True})


def test_a_longer_budget_is_told_how_to_go_on(trained: Trained) -> None:
    short = trained("short", 10, **COOLDOWN)
    with pytest.raises(RunError) as refused:
        trained("short", 20, **COOLDOWN)
    assert f"--set model.init={short.path} --set train.continued=true" in str(refused.value)


@pytest.mark.parametrize("forged", ["x", -1, 1.5, 10**30, None])
def test_a_forged_number_of_steps_is_refused(forged: object) -> None:
    with pytest.raises(StorageError, match=r"it continues .* steps"):
        steps_before({"before": forged}, Path("here"))
    assert steps_before({"before": 7}, Path("here")) == 7
    assert steps_before({}, Path("here")) == 0
