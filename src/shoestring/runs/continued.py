"""The run that another continues (`train.continued`): its checkpoint, and how far it has read."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from shoestring.core.errors import RunError, ShoestringError, StorageError, UserError
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder, named_run
from shoestring.core.specs import MOST_STEPS, CheckpointSpec
from shoestring.data.pack.order import Pool
from shoestring.datasets.corpus import StoreCorpus, training_corpus
from shoestring.training.checkpoint import Checkpoints, Opened

PEAK = CheckpointSpec("peak")
"""What is continued, unless model.init names another checkpoint."""


class RowsRead(NamedTuple):
    """What a run had to read."""

    share: float
    """Of the corpus."""
    pools: tuple[Pool, ...]
    """Empty where the text has changed since."""


class Continued(NamedTuple):
    """A run at a checkpoint."""

    folder: RunFolder
    recipe: Recipe
    opened: Opened

    def same_rows(self, recipe: Recipe) -> bool:
        """Whether a recipe reads the same rows in the same order."""
        own, other = self.recipe, recipe
        same = (own.corpus, own.run.seed, own.data.length) == (other.corpus, other.run.seed, other.data.length)
        return same and (own.data.packing, own.data.heldout) == (other.data.packing, other.data.heldout)

    def steps(self, recipe: Recipe) -> int:
        """The steps of a recipe that read as many rows as this run has; 0 where it read others."""
        steps = steps_before(self.opened.state.task, self.opened.path) + self.opened.state.step
        return math.ceil(steps * self.recipe.batch / recipe.batch) if self.same_rows(recipe) else 0

    def rows_read(self, recipe: Recipe) -> RowsRead | None:
        """The share of the corpus that this run has for training, and since which positions so many rows. None: a
        recipe reads other rows, or the store of these is gone."""
        if not self.same_rows(recipe):
            return None
        state, read = self.opened.state, self._store()
        if read is not None and read.fingerprint != state.data:
            return RowsRead(0.0, ())
        if "pools" in state.task:
            try:
                pools = tuple(Pool(int(position), int(rows)) for position, rows in state.task["pools"])
                return RowsRead(float(state.task["share"]), pools)
            except (KeyError, TypeError, ValueError) as cause:
                raise StorageError(
                    f"{self.opened.path}: not a checkpoint of shoestring: it read {state.task!r}"
                ) from cause
        return None if read is None else RowsRead(read.share, (Pool(0, len(read.training_rows)),))

    def _store(self) -> StoreCorpus | None:
        """What this run read, as its text is by now; None: that is gone, or it read no text."""
        try:
            read = training_corpus(self.recipe, Plan.read(self.folder.plan))
        except ShoestringError:
            return None
        return read if isinstance(read, StoreCorpus) else None


def continued_run(recipe: Recipe, say: Callable[[str], object] = lambda _: None) -> Continued:
    """The run of `model.init`, as it was before its cool-down, or at the checkpoint that RUN#CHECKPOINT names."""
    where = f'model.init = "{recipe.model.init}"'
    run, checkpoint = named_run(recipe.model.init or "", PEAK)
    folder = RunFolder(run)
    if not folder.recipe.is_file():
        raise UserError(f"{where}: train.continued = true needs the folder of a run, and {run} has no recipe.toml")
    folder.check_records(folder.recipe, folder.choices)
    other = folder.read_recipe()
    other.need_network(f"{where}: the run of an HMM, which has no weights")
    opened = Checkpoints(folder.checkpoints, keep=1).find(checkpoint, folder.path, say)
    if opened.state.recipe != other.fingerprint:
        raise RunError(f"{opened.path} belongs to another recipe than {folder.path}")
    return Continued(folder, other, opened)


def steps_read(recipe: Recipe) -> int:
    """The steps of a recipe whose rows a run has read that it continues; 0: it continues none, or none that is there,
    which training then says."""
    if not recipe.train.continued:
        return 0
    try:
        return continued_run(recipe).steps(recipe)
    except ShoestringError:
        return 0


def steps_before(values: dict[str, Any], where: Path) -> int:
    """The steps of the run that the values of a checkpoint continue."""
    found = values.get("before", 0)
    if not isinstance(found, int) or not 0 <= found <= MOST_STEPS:
        raise StorageError(f"{where}: not a checkpoint of shoestring: it continues {found!r} steps")
    return found
