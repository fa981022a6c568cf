"""Plan: from the recipe and its profile to plan.json. Needs no torch, and numpy only for what is stored already."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from shoestring.core.errors import PlanError, ShoestringError
from shoestring.core.facts import Machine, Outcome, Plan, Profile
from shoestring.core.files import free_bytes, write_whole
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.data.sizes import estimate_bytes
from shoestring.plan.corpus import Ready
from shoestring.plan.history import Correction, Past, learn
from shoestring.plan.hmm import plan_hmm
from shoestring.plan.make import make_plan, reserve_seconds
from shoestring.plan.sbatch import Job, sbatch_script

LEARNED_RUNS = 20
"""The last finished runs that a plan learns from."""


def plan_recipe(
    recipe: Recipe,
    profile: Profile,
    spent: float = 0.0,
    devices: int = 1,
    estimate_error: float = 0.0,
    history: Sequence[Path] = (),
) -> Plan:
    """The plan, with `spent` seconds of the time budget gone already; an HMM's needs its rows, and makes them.

    It is corrected by what the finished runs beside this one have taught, or those in `history`. A profile that was not
    measured but estimated is off by the share `estimate_error`, which widens the interval of the seconds.
    """
    correction = learned(recipe, profile, history)
    correction = replace(correction, spread=math.hypot(correction.spread, estimate_error))
    if recipe.hmm is not None:
        from shoestring.data.sentence_store import prepare_rows

        rows = prepare_rows(recipe.data, recipe.run.seed, recipe.hmm)
        return plan_hmm(recipe, profile, len(rows.train), spent, correction, devices)

    def store_bytes(tokens: float, documents: float) -> int:
        return estimate_bytes(tokens, documents, recipe.data)

    free = free_bytes(Path(recipe.run.folder))
    return make_plan(recipe, profile, store_bytes, spent, free, ready_rows(recipe), devices, correction)


def ready_rows(recipe: Recipe) -> Ready | None:
    """Rows that need no preparing."""
    data = recipe.data
    if data.stream is not None:
        return Ready(None, 0, "computed as they are read; nothing is prepared")
    if data.label is not None:
        from shoestring.data.labels import count_labelled

        assert recipe.model.classes is not None, "checked when the recipe was read"
        rows, _ = count_labelled(data, recipe.run.seed, recipe.model.classes)
        return Ready(rows, 0, "for training, one a document, read into memory; nothing is prepared")
    if not data.source.startswith("store:"):
        return None
    from shoestring.data.packed import PackedSource
    from shoestring.stages.prepare import given_store

    store = given_store(recipe)
    assert store is not None, "the source names one"
    if data.packing == "concat":
        rows = len(store.split("train", data.length))
    else:
        rows = len(PackedSource(store, "train", data.length, data.packing))
    return Ready(rows, store.manifest.bytes, f"for training, in {store.paths.folder}")


def learned(recipe: Recipe, profile: Profile, history: Sequence[Path] = ()) -> Correction:
    """What the last finished runs in the same folder teach about such a model on the machine that was measured.

    Where runs are named in `history` it is those, and how many of them teach nothing about it is said.
    """
    machine = profile.machine.fingerprint
    if not history:
        past, left_out = read_history(finished_runs(Path(recipe.run.folder)))
        return learn(past, machine, recipe.kind, left_out)
    past, left_out = history_of(history)
    if others := sum(run.teaches != (machine, recipe.kind) for run in past):
        left_out.append(f"{others} of {len(past)} runs (not {recipe.kind}, or not on the machine that was measured)")
    return learn(past, machine, recipe.kind, left_out)


def finished_runs(folder: Path, most: int = LEARNED_RUNS) -> list[Path]:
    """The runs in `folder` that ended last, the latest first."""
    if not folder.is_dir():
        return []
    ended: list[tuple[float, Path]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                ended.append((RunFolder(entry.path).done.stat().st_mtime, Path(entry.path)))
            except OSError:  # not a run, or not finished
                continue
    return [path for _, path in sorted(ended, reverse=True)[:most]]


def read_history(folders: Iterable[Path]) -> tuple[list[Past], list[str]]:
    """Finished runs beside their plans, and a line for each folder that is not one, or cannot be read."""
    found, left_out = [], []
    for path in folders:
        folder = RunFolder(path)
        try:
            if not folder.done.is_file() or not folder.plan.is_file():
                missing = folder.plan if folder.done.is_file() else folder.done
                left_out.append(f"{path} (not a finished run: no {missing.name})")
                continue
            machine = Machine.read(folder.machine).fingerprint if folder.machine.is_file() else None
            plan, outcome = Plan.read(folder.plan), Outcome.read(folder.done)
            measured_on = plan.measured_on or _profiled_on(folder)
            kind = folder.read_recipe().kind if folder.recipe.is_file() else None
        except (ShoestringError, UnicodeDecodeError) as cause:
            left_out.append(f"{path} ({str(cause).splitlines()[0]})")
            continue
        run = Past(name=path.name, machine=machine, measured_on=measured_on, kind=kind, plan=plan, outcome=outcome)
        found.append(run)
    return found, left_out


def _profiled_on(folder: RunFolder) -> str | None:
    """Fingerprint of the machine of a run's profile, for plans that do not say which one they were made from."""
    return Profile.read(folder.profile).machine.fingerprint if folder.profile.is_file() else None


def history_of(paths: Sequence[Path]) -> tuple[list[Past], list[str]]:
    """As `read_history` of runs, and of all runs in a folder that holds runs; one at the least must be finished."""
    runs: list[Path] = []
    for path in paths:
        inside = [] if RunFolder(path).recipe.is_file() else finished_runs(path)
        runs += inside or [path]
    past, left_out = read_history(runs)
    if not past:
        raise PlanError(f"no finished run in {', '.join(map(str, paths))}; a run is finished when it has a file DONE")
    return past, left_out


def read_profile(recipe: Recipe, folder: RunFolder, file: Path | None = None) -> Profile:
    """A profile that was measured before: the run folder's own, or the one in `file`."""
    path = file or folder.profile
    if not path.is_file():
        raise PlanError(
            f"there is no profile {path}; measure this machine first: shoestring measure RECIPE, "
            f"or give figures by hand: --time, --tokens-per-second, …"
        )
    profile = Profile.read(path)
    if not is_of(profile, recipe):
        raise PlanError(f"{path} was measured with another model, row length or batch; run: shoestring measure RECIPE")
    return profile


def is_of(profile: Profile, recipe: Recipe) -> bool:
    """Whether the workload is the recipe's; one that was measured at several batches serves any per_device of them."""
    if profile.workload == recipe.workload:
        return True
    if recipe.hmm is not None or recipe.train.per_device is None:
        return False
    return profile.workload == replace(recipe, train=replace(recipe.train, per_device=None)).workload


def write_sbatch(path: Path, recipe: Recipe, plan: Plan, profile: Profile, command: Sequence[str], python: str) -> None:
    """Write a Slurm script that runs `command`, the words after "python -m", here."""
    job = Job(
        name=recipe.run.name,
        folder=str(RunFolder.of(recipe).path.resolve()),
        working_folder=str(Path.cwd()),
        command=command,
        python=python,
        on_gpu=profile.machine.device == "cuda",
        threads=profile.machine.threads,
        time_budget=None if recipe.budget.time is None else float(recipe.budget.time),
        reserve=reserve_seconds(plan.seconds or 0.0),
    )
    write_whole(path, sbatch_script(plan, job))


def read_plan(recipe: Recipe, path: Path) -> Plan:
    """A plan that was made before, checked to be this recipe's."""
    plan = Plan.read(path)
    if plan.recipe != recipe.fingerprint:
        raise PlanError(f"{path} is the plan of another recipe; make it again with: shoestring plan RECIPE")
    return plan
