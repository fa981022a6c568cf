"""AdamW with states of 8 bits: near plain AdamW, in a quarter of its memory, resumed with the same bits."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
import torch
from profiles import write_profile

from shoestring.core import recipe_file
from shoestring.core.clock import Clock
from shoestring.core.errors import MissingExtra, RecipeError
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.core.sections import Data, Model
from shoestring.core.train_section import Train
from shoestring.cost.memory import estimate_memory
from shoestring.models.language_model import build
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.training.hooks import Stopped
from shoestring.training.learner import Learner
from shoestring.training.optimizer import Optimizer

V, LENGTH = 300, 16
REASON = "pip install 'shoestring[adamw8bit]'"


def recipe_of(optimizer: str) -> Recipe:
    train = Train(batch=4, lr=1e-2, optimizer=optimizer, weight_decay=0.1, beta2=0.95)
    return Recipe(model=Model(width=64, layers=2, heads=2), data=Data(length=LENGTH), train=train)


def test_it_learns_as_plain_adamw_does() -> None:
    pytest.importorskip("bitsandbytes", reason=REASON)
    rows, found = torch.randint(V, (4, LENGTH + 1), generator=torch.Generator().manual_seed(0)), {}
    for rule in ("adamw", "adamw8bit"):
        recipe = recipe_of(rule)
        learner = Learner(build(recipe.model, V, LENGTH, 0), recipe.train, torch.device("cpu"))
        found[rule] = [float(learner.update(learner.accumulate(rows, 4), 3e-3).nats) / (4 * LENGTH) for _ in range(30)]
    plain, eight = found["adamw"], found["adamw8bit"]
    assert eight[0] == plain[0] and eight[1] == pytest.approx(plain[1], rel=0.01)
    assert eight[-1] < 0.5 * eight[0] and eight[-1] == pytest.approx(plain[-1], rel=0.2)


def test_the_state_has_the_size_that_is_planned() -> None:
    pytest.importorskip("bitsandbytes", reason=REASON)
    bytes_of = {}
    for rule in ("adamw", "adamw8bit"):
        recipe = recipe_of(rule)
        made = Optimizer(build(recipe.model, V, LENGTH, 0), recipe.train)
        made.prepare()
        tensors = [x for name, x in made.tensors().items() if "/step/" not in name and "/qmap" not in name]
        bytes_of[rule] = sum(x.numel() * x.element_size() for x in tensors)
        planned = estimate_memory(recipe, V, "cpu").moments["update"].fixed["optimizer"]
        assert planned == pytest.approx(bytes_of[rule], rel=0.05)
    assert bytes_of["adamw8bit"] < 0.3 * bytes_of["adamw"]


def test_a_resumed_run_ends_with_the_same_bits(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bitsandbytes", reason=REASON)
    monkeypatch.chdir(tiny.parent)
    given = ["train.optimizer=adamw8bit", "model.width=64", "budget.steps=8"]

    def train(name: str, **more: Any) -> RunFolder:
        settings = [f"run.name={name}", *given]
        write_profile(tiny, *settings)
        recipe = recipe_file.load(tiny, settings)
        run(recipe, Reporter(), Clock(0.0), **more)
        return RunFolder.of(recipe)

    whole = train("whole")
    with pytest.raises(Stopped):
        train("halves", until=0.5)
    assert train("halves").metrics.read_bytes() == whole.metrics.read_bytes()


def test_an_update_that_is_not_finite_is_refused() -> None:
    pytest.importorskip("bitsandbytes", reason=REASON)
    recipe = recipe_of("adamw8bit")
    model = build(recipe.model, V, LENGTH, 0)
    made = Optimizer(model, recipe.train)
    made.prepare()
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    made.step(torch.tensor(torch.inf), torch.ones(()), torch.zeros(()), 1e-2)
    assert all(torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True))


def test_the_library_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("bitsandbytes"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    recipe = recipe_of("adamw8bit")
    with pytest.raises(
        MissingExtra, match=r"needs bitsandbytes; install it with: pip install 'shoestring\[adamw8bit\]'"
    ):
        Optimizer(build(recipe.model, V, LENGTH, 0), recipe.train)


def test_shards_are_refused() -> None:
    train = {"batch": 4, "lr": 1e-3, "optimizer": "adamw8bit"}
    with pytest.raises(RecipeError, match=r"adamw8bit.*parallel\.shard"):
        recipe_file.build({"budget": {"steps": 1}, "train": train, "parallel": {"shard": True}}, "x")
