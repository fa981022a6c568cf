"""A run is a folder; this class alone knows the names in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from shoestring.core import recipe_file
from shoestring.core.errors import RunError, ShoestringError
from shoestring.core.files import locked, write_whole
from shoestring.core.recipe import Recipe, differences

_RECIPE = "recipe.toml"


class RunFolder:
    """Paths of one run, and the rules for using it: one writer at a time, one recipe for ever."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.recipe = self.path / _RECIPE
        self.machine = self.path / "machine.json"
        self.profile = self.path / "profile.json"
        self.plan = self.path / "plan.json"
        self.metrics = self.path / "metrics.jsonl"
        """What was learned: equal for any two runs of one plan."""
        self.timings = self.path / "timings.jsonl"
        """What it cost: seconds, rates, and the segments of the run."""
        self.checkpoints = self.path / "checkpoints"
        self.evaluation = self.path / "evaluation.json"
        self.model = self.path / "model.safetensors"
        """Of an HMM: the fitted tables with their alphabet."""
        self.states = self.path / "states.json"
        """Of an HMM: what its states mean."""
        self.scores = self.path / "scores.json"
        """Of an HMM: losses and divergences by strategy and position."""
        self.report = self.path / "report.html"
        self.done = self.path / "DONE"
        self._lock = self.path / ".lock"

    @classmethod
    def of(cls, recipe: Recipe) -> RunFolder:
        """The folder a recipe names."""
        return cls(Path(recipe.run.folder) / recipe.run.name)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """A folder that holds a run already."""
        folder = cls(path)
        if not folder.recipe.is_file():
            raise RunError(f"{path} is not a run folder: it has no {_RECIPE}")
        return folder

    def read_recipe(self) -> Recipe:
        return recipe_file.load(self.recipe)

    def claim(self, recipe: Recipe) -> None:
        """Write the recipe into a new folder, or make sure that the folder's own says the same."""
        if self.recipe.is_file():
            if changes := differences(self.read_recipe(), recipe):
                raise RunError(
                    "\n  ".join([f"{self.path} holds a run of another recipe", *changes])
                    + "\nchoose another name with --set run.name=…, or remove the folder"
                )
            return
        write_whole(self.recipe, recipe_file.dump(recipe))

    @contextlib.contextmanager
    def claiming(self, recipe: Recipe) -> Iterator[None]:
        """Claim the folder while its plan is made; a recipe that is refused does not keep it from the mended one."""
        new = not self.recipe.is_file()
        self.claim(recipe)
        try:
            yield
        except ShoestringError:
            if new and not self.plan.is_file():
                self.recipe.unlink(missing_ok=True)
            raise

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that writes this run."""
        with locked(self._lock, f"the run {self.path}"):
            yield
