"""A run is a folder; only this class knows the names in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from shoestring.core import recipe_file
from shoestring.core.choices import Choices
from shoestring.core.errors import RunError, ShoestringError, StorageError, UserError, shown_path
from shoestring.core.files import HeldFolder, locked, make_folder, remove, sweep, write_whole
from shoestring.core.lock_holder import Holder
from shoestring.core.recipe import Recipe, differences
from shoestring.core.schema import Record
from shoestring.core.seal import SEAL, adopt, broken, check, seal_lines, seal_write, unseal
from shoestring.core.specs import CheckpointSpec
from shoestring.core.user_code import COPIES, trust_code

_RECIPE = "recipe.toml"


class RunFolder:
    """The paths of a run, and the rules for using it: one writer at a time, and one recipe once it has begun."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.recipe = self.path / _RECIPE
        self.machine = self.path / "machine.json"
        self.profile = self.path / "profile.json"
        self.choices = self.path / "choices.json"
        """What was chosen for the fields of the recipe that are "auto"."""
        self.plan = self.path / "plan.json"
        self.metrics = self.path / "metrics.jsonl"
        """What was learned; equal for any two runs of one plan."""
        self.timings = self.path / "timings.jsonl"
        """What it cost: seconds, rates, and the segments of the run."""
        self.samples = self.path / "samples.jsonl"
        """What the model wrote after some of its evaluations, for people."""
        self.overlap = self.path / "overlap.safetensors"
        """Of `evaluate.overlap`: the prompts, and the predictions of the first weights."""
        self.checkpoints = self.path / "checkpoints"
        self.tokenizer = self.path / "tokenizer.json"
        self.code = self.path / COPIES
        """Copies of the user's own files that the recipe names."""
        self.evaluation = self.path / "evaluation.json"
        self.model = self.path / "model.safetensors"
        """Of an HMM: the fitted tables with their alphabet."""
        self.states = self.path / "states.json"
        """Of an HMM: what its states mean."""
        self.scores = self.path / "scores.json"
        """Of an HMM: losses and divergences by baseline and position."""
        self.report = self.path / "report.html"
        self.done = self.path / "DONE"
        self.seal = self.path / SEAL
        """Sums of the records, by which an edit is told from what the run has written."""
        self._held: HeldFolder | None = None

    @classmethod
    def of(cls, recipe: Recipe) -> RunFolder:
        """The folder that a recipe names."""
        return cls(Path(recipe.run.folder) / recipe.run.name)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """The folder of an existing run."""
        folder = cls(path)
        if not folder.recipe.is_file():
            raise RunError(f"{path} is not a run folder: it has no {_RECIPE}")
        return folder

    def written_recipe(self) -> Recipe:
        """The run's recipe as the user wrote it, with the run's copies of the user's files."""
        return recipe_file.load_own(self.recipe, self.code)

    def read_recipe(self) -> Recipe:
        """The run's recipe, with what was chosen for its fields that are "auto"."""
        recipe = self.written_recipe()
        if not recipe.autos:
            return recipe
        if (choices := self.read_choices(recipe)) is None:
            raise self.without_choices(recipe)
        return choices.applied(recipe, shown_path(self.choices))

    def without_choices(self, recipe: Recipe) -> RunError:
        """The error of a run that cannot be read without its choices."""
        fields = ", ".join(recipe.autos)
        return RunError(f"{self.choices}: missing, or of another recipe; the run's numbers for {fields} are not known")

    def read_choices(self, recipe: Recipe) -> Choices | None:
        """What was chosen for this recipe, as it is written; None: nothing yet, or for another one."""
        found = Choices.read_if_there(self.choices)
        return found if found is not None and found.recipe == recipe.fingerprint else None

    @property
    def records(self) -> tuple[Path, ...]:
        """What the seal is over; tensors have sums of their own."""
        written = (
            self.recipe,
            self.choices,
            self.machine,
            self.profile,
            self.plan,
            self.tokenizer,
            self.evaluation,
            self.states,
        )
        return (*written, self.scores, self.done, self.metrics, self.timings, self.samples)

    def write(self, path: Path, content: Record | str | bytes) -> None:
        """Write one of the records, and seal it. The seal begins with the plan: a recipe alone is no run yet."""
        self.check()
        text = content.to_text() if isinstance(content, Record) else content
        if self._held is None:
            make_folder(self.path)
        if path in (self.recipe, self.profile, self.choices) and not self.seal.is_file():
            write_whole(path, text, parents=False)
            return
        adopt(self.path, self.records)
        seal_write(self.path, path, text.encode() if isinstance(text, str) else text)

    def seal_lines(self) -> None:
        """Seal the lines of metrics, timings and samples, which must be on disk."""
        seal_lines(self.path, (self.metrics, self.timings, self.samples))

    def changes(self) -> list[str]:
        """A line for each record that is not as the run has written it."""
        return broken(self.path, ended=self._ended)

    def check_records(self, *paths: Path) -> None:
        """Raise RunError where a record, or one of `paths`, is not as the run has written it."""
        check(self.path, [path.name for path in paths] or None, self._ended)

    @property
    def _ended(self) -> tuple[str, ...]:
        """Files of lines to which nothing is added any more."""
        return (self.metrics.name, self.samples.name) if self.done.is_file() else ()

    @property
    def has_begun(self) -> bool:
        """Whether a step was recorded or saved. A run that has not begun may still change its recipe."""
        is_recorded = self.metrics.is_file() and self.metrics.stat().st_size > 0
        return is_recorded or self.done.exists() or (self.checkpoints.is_dir() and any(self.checkpoints.iterdir()))

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise RunError where a run of another recipe has begun."""
        if self.recipe.is_file() and self.has_begun and (changes := differences(self.written_recipe(), recipe)):
            longer = all(line.startswith("budget.") for line in changes) and recipe.train.cools
            place = f"{self.path}#last" if recipe.train.cooling == 1 else self.path  # it never was at its peak
            more = f" and continue it with --set model.init={place} --set train.continued=true" if longer else ""
            raise RunError(
                "\n  ".join([f"{self.path} holds a run of another recipe", *changes])
                + f"\nchoose another name with --set run.name=…{more}, or remove the folder"
            )

    def claim(self, recipe: Recipe) -> None:
        """Write the recipe into the folder; raise RunError where a run of another recipe or other code has begun.

        Of a run that has not begun, the profile is kept; its plan goes with its recipe.
        """
        self.check_recipe(recipe)
        is_new = not self.recipe.is_file() or bool(differences(self.written_recipe(), recipe))
        contents = {self.code / Path(spec.file).name: Path(spec.file).expanduser().read_bytes() for spec in recipe.code}
        for copy, content in contents.items():
            if not is_new and not (copy.is_file() and copy.read_bytes() == content):
                if self.has_begun:
                    raise RunError(
                        f"{copy.name} differs from the copy that {self.path} started with ({copy}); choose another "
                        f"name with --set run.name=…, or restore the file"
                    )
                is_new = True
        if is_new:
            old = (self.plan, self.machine, self.metrics, self.timings, self.samples, self.overlap, self.tokenizer)
            for path in (*old, self.checkpoints):
                remove(path)
            unseal(self.path)
            self._write_code(contents)
            self.write(self.recipe, recipe_file.dump(recipe))
        for copy in self.code.glob("*"):  # those of the recipe before, which needed them until the new one was written
            if copy not in contents:
                remove(copy)
        if not contents:
            remove(self.code)
        for spec in recipe.code:
            trust_code(spec)

    @contextlib.contextmanager
    def claiming(self, recipe: Recipe) -> Iterator[None]:
        """Claim the folder while its plan is made; if the recipe is refused, leave the folder to the one before."""
        before = self.recipe.read_bytes() if self.recipe.is_file() else None
        copies = {path: path.read_bytes() for path in self.code.glob("*") if path.is_file()}
        self.claim(recipe)
        try:
            yield
        except ShoestringError:
            if self.plan.is_file():
                raise
            if before is None:
                self.recipe.unlink(missing_ok=True)
                unseal(self.path)
                remove(self.code)
            else:
                self._write_code(copies)
                self.write(self.recipe, before)
            raise

    def _write_code(self, copies: Mapping[Path, bytes]) -> None:
        """Write copies of the user's own files."""
        self.check()
        if copies and self._held is None:
            make_folder(self.path)
        for copy, content in copies.items():
            make_folder(self.code, parents=False)
            write_whole(copy, content, parents=False)

    @property
    def is_held(self) -> bool | None:
        """Whether a process writes this run; None: one on another host did, and has not said that it ended. Takes no
        lock itself."""
        alive = [holder.is_alive for holder in map(Holder.read, self._locks) if holder is not None]
        return next((held for held in alive if held is not False), False)

    @property
    def _locks(self) -> tuple[Path, Path]:
        """The lock file beside the folder, or in it where nothing can be written beside it."""
        place = self.path.resolve()
        return place.with_name(f".{place.name}.lock"), place / ".lock"

    @property
    def lock_file(self) -> Path:
        """Held by the process that writes the run; `core.files.holder_of` tells which."""
        place = self.path.resolve()
        beside = not place.is_dir() or os.access(place.parent, os.W_OK)  # else the folder cannot be removed either
        return self._locks[0 if beside else 1]

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that writes this run.

        The lock lies beside the folder, so that it is held also where somebody removes the folder meanwhile. A folder
        that this makes, and in which nothing is written, is removed.
        """
        is_new = not self.path.exists()
        with locked(self.lock_file, f"the run {self.path}"), contextlib.closing(HeldFolder(self.path)) as held:
            self._held = held
            for folder in (self.path, self.checkpoints):
                sweep(folder, own=True)
            try:
                yield
            except (OSError, StorageError):
                self.check()  # what failed is a consequence
                raise
            finally:
                self._held = None
                if is_new:
                    with contextlib.suppress(OSError, StorageError):  # it holds something, or is another's
                        held.check()
                        self.path.rmdir()

    def check(self) -> None:
        """Raise StorageError if this process holds the lock, and the folder was removed or replaced since then."""
        if self._held is not None:
            self._held.check()


def run_of(path: Path) -> Path | None:
    """The run folder that `path` is a record of, or has the name of one; None for any other path."""
    folder = RunFolder(path.parent)
    return folder.path if folder.recipe.is_file() and path in vars(folder).values() else None


def named_run(place: str, default: CheckpointSpec) -> tuple[Path, CheckpointSpec]:
    """The folder of RUN or RUN#CHECKPOINT, and the checkpoint."""
    path, mark, name = place.rpartition("#")
    which = CheckpointSpec(name)
    if not mark or RunFolder(Path(place).expanduser()).recipe.is_file():
        return Path(place).expanduser(), default
    if (problem := which.problem()) is not None:
        if RunFolder(Path(path).expanduser()).recipe.is_file():
            raise UserError(f"{place}: {problem}")
        return Path(place).expanduser(), default
    return Path(path).expanduser(), which
