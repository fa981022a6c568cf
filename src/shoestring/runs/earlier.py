"""The finished runs beside a run, for its learning rate."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import NamedTuple

from shoestring.core.errors import ShoestringError
from shoestring.core.family import family_of
from shoestring.core.recipe import Recipe, fingerprint
from shoestring.core.records import Cost, Profile
from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.core.schema import encode
from shoestring.core.sections import number
from shoestring.core.train_section import OF_MUON, OF_RATES
from shoestring.planning.auto import without_embedding
from shoestring.planning.earlier import Tried
from shoestring.planning.rates import WITH_LAW, best_lr
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
        with contextlib.suppress(OSError):  # removed meanwhile
            ended = None if path == own else _ended(path, RunFolder(path).done.stat().st_mtime_ns)
            if ended is not None and (run := _tried(ended, recipe)) is not None:
                found.append(run)
    return tuple(found)


class _Ended(NamedTuple):
    """A finished run."""

    recipe: Recipe
    outcome: Outcome
    cost: Cost


@functools.lru_cache(maxsize=4 * MOST)
def _ended(path: Path, written: int) -> _Ended | None:  # noqa: ARG001
    """A run that was DONE at the time `written`; None if it cannot be read.

    A sweep asks for the same ones for each of its runs.
    """
    folder = RunFolder(path)
    try:
        folder.check_records(folder.done, folder.profile, folder.recipe, folder.choices)
        return _Ended(folder.read_recipe(), Outcome.read(folder.done), Profile.read(folder.profile).cost)
    except (ShoestringError, UnicodeDecodeError):
        return None


def _tried(ended: _Ended, recipe: Recipe) -> Tried | None:
    """What a finished run says about a recipe; None: it is of another kind."""
    other, outcome, cost = ended
    if other.kind != recipe.kind or not same_rows(other, recipe) or _kind(other) != _kind(recipe):
        return None
    if recipe.train.cooldown != "auto" and other.train.cooling != recipe.train.cooling:
        return None
    family = family_of(other.model)
    n, b = without_embedding(cost), float(other.batch * other.data.length)
    trained, d = family.begins_trained(other.model), float(outcome.tokens)
    train = {name: value for name, value in encode(other.train).items() if name not in (*_WITH_RATE, *_NOT_LEARNED)}
    setting = [encode(other.model), encode(other.data), train, other.batch, other.evaluate.rows, other.evaluate.context]
    return Tried(
        lr=number(other.train.lr),
        law=best_lr(n, d, b, other.train.optimizer, trained, family).value,
        loss=outcome.loss,
        n=n,
        d=d,
        setting=fingerprint(setting),
    )


def _kind(recipe: Recipe) -> list[object]:
    """What two runs must have in common whose learning rates are compared, besides rows and family."""
    model, train = recipe.model, recipe.train
    tuned = encode(recipe.lora), train.freeze, train.layer_decay, model.init
    update = [getattr(train, name) for name in (*OF_RATES, *OF_MUON)]
    return [train.optimizer, train.schedule, train.final_lr, recipe.strategy, *tuned, *update]
