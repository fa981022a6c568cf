"""The finished runs beside a run, for its learning rate."""

from __future__ import annotations

import contextlib
from pathlib import Path

from shoestring.core.errors import ShoestringError
from shoestring.core.family import family_of
from shoestring.core.recipe import Recipe, fingerprint
from shoestring.core.records import Profile
from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.core.schema import encode
from shoestring.core.sections import number
from shoestring.planning.auto import WITH_LAW, best_lr, without_embedding
from shoestring.planning.earlier import Tried
from shoestring.runs.plan import finished_runs, same_rows

MOST = 60
"""Finished runs that are read, the latest first."""
_WITH_RATE = ("lr", "weight_decay", "warmup", "beta2")
"""Fields of train in which runs may differ that compare learning rates."""
_NOT_LEARNED = (
    "per_device",
    "precision",
    "compile",
    "recompute",
    "checkpoint_every",
    "keep",
    "save_every",
    "save_steps",
)


def tried_beside(recipe: Recipe) -> tuple[Tried, ...]:
    """The finished runs in the same folder whose learning rates say something about this recipe's."""
    if recipe.train.lr != "auto" or recipe.train.optimizer not in WITH_LAW:
        return ()
    own, found = RunFolder.of(recipe).path, list[Tried]()
    for path in finished_runs(Path(recipe.run.folder), MOST):
        if path == own:
            continue
        with contextlib.suppress(ShoestringError, UnicodeDecodeError):  # a plan tells of runs that cannot be read
            if (run := _tried(RunFolder(path), recipe)) is not None:
                found.append(run)
    return tuple(found)


def _tried(folder: RunFolder, recipe: Recipe) -> Tried | None:
    """A finished run; None: it is of another kind."""
    folder.check_records(folder.done, folder.profile, folder.recipe, folder.choices)
    other = folder.read_recipe()
    if other.kind != recipe.kind or not same_rows(other, recipe) or _kind(other) != _kind(recipe):
        return None
    outcome, cost = Outcome.read(folder.done), Profile.read(folder.profile).cost
    family = family_of(other.model)
    n, b = without_embedding(cost), float(other.batch * other.data.length)
    law = best_lr(
        n, float(outcome.tokens), b, other.train.optimizer, family.begins_trained(other.model), family
    ).value  # fmt: skip
    model, train = encode(other.model), encode(other.train)
    setting = [model, {name: train[name] for name in train if name not in (*_WITH_RATE, *_NOT_LEARNED)}, other.batch]
    return Tried(
        lr=number(other.train.lr),
        law=law,
        loss=outcome.loss,
        n=n,
        d=float(outcome.tokens),
        setting=fingerprint(setting),
    )


def _kind(recipe: Recipe) -> list[object]:
    """What two runs must have in common whose learning rates are compared, besides rows and family."""
    model, train = recipe.model, recipe.train
    tuned = encode(recipe.lora), train.freeze, train.layer_decay, model.init
    return [train.optimizer, train.schedule, train.cooling, train.final_lr, recipe.strategy, *tuned]
