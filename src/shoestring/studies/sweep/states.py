"""How the runs of a sweep stand, read from their folders."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shoestring.core import recipe_file
from shoestring.core.errors import ShoestringError
from shoestring.core.files import is_locked
from shoestring.core.recipe import Recipe, differences
from shoestring.core.records import Plan
from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.core.sweep_folder import SweepFolder, SweepIndex, SweepRun
from shoestring.track import read_lines

State = Literal["done", "running", "changed", "failed", "stopped", "waiting"]
MEANINGS: dict[State, str] = {
    "done": "",
    "running": "a process holds it",
    "changed": "its folder holds a run of another recipe",
    "failed": "it ended with an error; the same sweep tries it again",
    "stopped": "it has begun, and is resumed",
    "waiting": "it has not begun",
}
_TAIL = 1 << 16
"""Bytes at the end of a file of lines, in which the last ones are."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a run stands."""

    run: SweepRun
    state: State
    why: str = ""
    """Of a run that failed or changed."""
    step: int = 0
    """Steps taken; of an HMM, epochs."""
    steps: int | None = None
    """Planned; None: there is no plan yet."""
    loss: float | None = None
    """The last held-out loss, or of a run that is done, that of the weights it delivers."""
    plan: Plan | None = None
    outcome: Outcome | None = None

    @property
    def share(self) -> float:
        """Of its steps, how many were taken."""
        return 1.0 if self.state == "done" else min(1.0, self.step / self.steps) if self.steps else 0.0


def standings(folder: SweepFolder, index: SweepIndex | None = None) -> list[Standing]:
    """How every run of a sweep stands, in the order of its index."""
    failed = failures(folder)
    return [_of_index(folder, run, failed) for run in (index or SweepIndex.read(folder.index)).runs]


def _of_index(folder: SweepFolder, run: SweepRun, failed: Mapping[str, str]) -> Standing:
    try:
        recipe = recipe_file.load(folder.recipe(run.name))
    except ShoestringError as cause:
        return Standing(run=run, state="failed", why=str(cause))
    return standing(run, RunFolder(folder.run_path(run)), recipe, failed)


def failures(folder: SweepFolder) -> dict[str, str]:
    """Why runs failed that were not started since."""
    found: dict[str, str] = {}
    for line in read_lines(folder.events):
        if line.get("event") == "failed":
            found[line["run"]] = str(line.get("why", ""))
        elif "run" in line:
            found.pop(line["run"], None)
    return found


def standing(run: SweepRun, own: RunFolder, recipe: Recipe, failed: Mapping[str, str]) -> Standing:
    """How one run stands, which the sweep has this recipe for."""
    if not own.path.is_dir():
        why = failed.get(run.name, "")
        return Standing(run=run, state="failed" if why else "waiting", why=why)
    try:
        if changes := changes_of(own, recipe):
            return Standing(run=run, state="changed", why="; ".join(changes))
        if (outcome := Outcome.read_if_there(own.done)) is not None:
            plan = Plan.read_if_there(own.plan)
            return Standing(run=run, state="done", step=outcome.steps, loss=outcome.loss, plan=plan, outcome=outcome)
        plan = Plan.read_if_there(own.plan)
        state: State = "running" if is_locked(own.lock_file) else "stopped" if own.has_begun else "waiting"
    except ShoestringError as cause:
        return Standing(run=run, state="failed", why=str(cause))
    step, loss = progress(own.metrics)
    why = "" if state == "running" else failed.get(run.name, "")
    steps = None if plan is None else counted_steps(plan, recipe)
    return Standing(run=run, state="failed" if why else state, why=why, step=step, steps=steps, loss=loss, plan=plan)


def counted_steps(plan: Plan, recipe: Recipe) -> int | None:
    """The steps of a plan as the metrics count them: of an HMM, its epochs."""
    return round(plan.epochs or 0) if recipe.kind == "hmm" else plan.steps


def changes_of(own: RunFolder, recipe: Recipe) -> list[str]:
    """A line for each field in which a run that has begun differs from the recipe that the sweep has for it."""
    if not own.recipe.is_file() or not own.has_begun:
        return []
    return differences(own.written_recipe(), recipe)


def progress(metrics: Path) -> tuple[int, float | None]:
    """The last step in a file of metrics, and the last held-out loss in its tail."""
    step, loss = 0, None
    for line in tail(metrics):
        step = max(step, int(line.get("step", 0)))
        loss = line.get("heldout_loss", loss)
    return step, loss


def tail(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines at the end of a file of JSON lines, which may be written meanwhile."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            content = file.read()
    except OSError:
        return
    lines = content.split(b"\n")[:-1]
    for line in lines[1:] if size > _TAIL else lines:
        with contextlib.suppress(ValueError):
            if isinstance(values := json.loads(line), dict):
                yield values
