"""Evaluate: the held-out rows, once each, beside the strategies that only count."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from shoestring.core.errors import RunError
from shoestring.core.facts import Evaluation, Plan
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.data.prepare import store_folder
from shoestring.data.store import Store
from shoestring.evaluate.score import evaluation
from shoestring.evaluate.strategies import count, strategy_losses
from shoestring.probe.machine import pick_device
from shoestring.stages.workload import make_learner
from shoestring.train.checkpoint import Checkpoints
from shoestring.train.learner import Learner


@dataclass(frozen=True)
class Heldout:
    """The rows that every evaluation of a run scores."""

    rows: NDArray[np.int64]
    bytes_per_token: float | None

    @classmethod
    def of(cls, recipe: Recipe, store: Store) -> Heldout:
        source = store.split("heldout", recipe.data.length)
        rows = source.rows(np.arange(min(recipe.evaluate.rows, len(source))))
        return cls(rows, source.bytes_per_token if recipe.data.tokenizer == "bytes" else None)

    def losses(self, learner: Learner, per_device: int) -> NDArray[np.float64]:
        return learner.score(torch.from_numpy(self.rows), per_device).numpy()


def evaluate_learner(learner: Learner, step: int, per_device: int, recipe: Recipe, store: Store) -> Evaluation:
    """Score a learner and the strategies on the same rows."""
    heldout = Heldout.of(recipe, store)
    counts = count(store.split("train", recipe.data.length).stream(), store.manifest.vocab_size)
    strategies = strategy_losses(heldout.rows, counts)
    return evaluation(heldout.losses(learner, per_device), step, heldout.bytes_per_token, strategies)


def evaluate_run(folder: RunFolder, checkpoint: str = "last") -> Evaluation:
    """Score a checkpoint of a run that is finished or still going; `checkpoint` is "last", "best" or a step."""
    recipe, plan = folder.read_recipe(), Plan.read(folder.plan)
    store = Store(run_store(recipe, plan), recipe.data.tokenizer)
    checkpoints = Checkpoints(folder.checkpoints, recipe.train.keep)
    learner = make_learner(recipe, pick_device())
    step, damaged = checkpoints.latest()
    if step is None:
        raise RunError("\n  ".join([f"{folder.path} has no whole checkpoint yet", *damaged]))
    state = checkpoints.restore(step, learner, recipe.fingerprint, store.manifest.fingerprint)
    wanted = state.best_step if checkpoint == "best" else step if checkpoint == "last" else _step(checkpoint)
    if wanted != step:
        if wanted not in checkpoints.steps():
            steps = ", ".join(map(str, reversed(checkpoints.steps())))
            raise RunError(f"{folder.path} has no checkpoint {checkpoint!r}; it has last, best, {steps}")
        state = checkpoints.restore(wanted, learner, recipe.fingerprint, store.manifest.fingerprint)
    return evaluate_learner(learner, state.step, plan.per_device or 1, recipe, store)


def _step(checkpoint: str) -> int:
    if not checkpoint.isdecimal():
        raise RunError(f'--checkpoint {checkpoint}: must be "last", "best" or a step')
    return int(checkpoint)


def run_store(recipe: Recipe, plan: Plan) -> Path:
    """The folder of the token store that a run of this plan reads."""
    return store_folder(recipe.data, recipe.run.seed, plan.entries)
