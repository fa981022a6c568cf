"""From a recipe and its profile to a plan. Needs no torch, and numpy only to read an existing store."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from shoestring.core.consistency import differs
from shoestring.core.errors import PlanError, RecordError, Refusal, ShoestringError
from shoestring.core.recipe import Recipe
from shoestring.core.records import Line, Machine, Plan, Profile
from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.planning.expect import PastLoss, expected_loss, loss_lines
from shoestring.planning.history import Correction, Past, learn
from shoestring.planning.make import reserve_seconds
from shoestring.planning.sbatch import Job, sbatch_script
from shoestring.runs.prepare import with_own_density
from shoestring.runs.task import Task

_FASTER = (2, 4, 8, 16, 32, 64)
"""How many times as fast a machine may be when it is not busy."""
_COUNTED_FASTER = (2, 4)
"""How many times as fast it may be as was counted."""
LEARNED_RUNS = 20
"""How many finished runs a plan learns from, the latest first."""


def plan_task(
    task: Task,
    profile: Profile,
    spent: float = 0.0,
    devices: int = 1,
    estimate_error: float = 0.0,
    history: Sequence[Path] = (),
    loaded: bool = False,
) -> Plan:
    """The plan, with `spent` seconds of the time budget already used; for an HMM, its rows are made.

    `loaded`: the process has loaded its libraries in these seconds.

    It is corrected by the finished runs beside this one, or those in `history`. `estimate_error` is the relative error
    of a profile that was estimated instead of measured; it widens the interval of the seconds. What was measured while
    the machine was busy is no reason to refuse a run, which adapts to its pace: then a faster machine is assumed.
    """
    correction = learned(task.recipe, profile, history)
    plan = corrected_plan(task, profile, correction, spent, devices, estimate_error, loaded)
    return with_loss(plan, task.recipe, profile, history)


def corrected_plan(
    task: Task,
    profile: Profile,
    correction: Correction,
    spent: float = 0.0,
    devices: int = 1,
    estimate_error: float = 0.0,
    loaded: bool = False,
) -> Plan:
    """As `plan_task`, with a correction that is known, and without a loss: no other run is read."""
    if loaded:
        profile = replace(profile, setup_seconds=max(0.0, profile.setup_seconds - profile.loading_seconds))
    correction = replace(correction, spread=math.hypot(correction.spread, estimate_error))
    try:
        return task.make_plan(profile, spent, devices, correction)
    except Refusal as refusal:
        why = profile.busy or (profile.stopped if profile.estimated and not estimate_error else None)
        if why is None or refusal.limit != "time":
            raise
        for factor in _FASTER if profile.busy else _COUNTED_FASTER:
            with contextlib.suppress(Refusal):
                plan = task.make_plan(_faster(profile, factor), spent, devices, correction)
                reason = f"nothing would fit the {profile.how} pace, but {why}; the run adapts to its real pace"
                pace = Line(quantity="pace", value=f"{factor} times as fast as {profile.how}", reason=reason)
                return replace(plan, lines=(*plan.lines, pace))
        raise


def with_loss(plan: Plan, recipe: Recipe, profile: Profile, history: Sequence[Path] = ()) -> Plan:
    """The plan with the held-out loss to expect, where runs on the same data are finished beside it or in `history`."""
    if recipe.kind == "hmm" or plan.predictions is None:
        return plan
    past = past_losses(recipe, history or finished_runs(Path(recipe.run.folder)))
    found = expected_loss(past, profile.cost.total_parameters, plan.predictions)
    if found is None:
        return plan
    return replace(
        plan,
        loss=found.loss,
        intervals=plan.intervals | {"loss": (found.low, found.high)},
        lines=(*plan.lines, *loss_lines(found, len(past))),
    )


def past_losses(recipe: Recipe, folders: Iterable[Path]) -> list[PastLoss]:
    """What finished runs on the same data and of the same kind came to; those that overfitted say nothing about it."""
    found = []
    for folder in map(RunFolder, folders):
        with contextlib.suppress(ShoestringError, UnicodeDecodeError):  # `learned` tells of it
            folder.check_records(folder.done, folder.profile, folder.recipe)
            other, outcome = folder.read_recipe(), Outcome.read(folder.done)
            overfits = any(verdict.kind == "overfitting" for verdict in outcome.verdicts)
            if other.kind == recipe.kind and same_rows(other, recipe) and outcome.predictions and not overfits:
                parameters = Profile.read(folder.profile).cost.total_parameters
                found.append(PastLoss(parameters, outcome.predictions, outcome.loss))
    return found


def same_rows(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes score the same kind of rows."""
    names = ("source", "stream", "tokenizer", "length", "packing", "document_mask", "masked", "label", "validation")
    same = all(getattr(one.data, name) == getattr(other.data, name) for name in names)
    return same and one.stream_settings == other.stream_settings


def _faster(profile: Profile, factor: float) -> Profile:
    """The profile of a machine that is so many times as fast as when it was measured."""
    times = ("setup", "update", "checkpoint", "compile", "warmup", "write")
    known = {name: getattr(profile, f"{name}_seconds") for name in times}
    points = (
        replace(
            point, seconds=point.seconds / factor, fastest_seconds=(point.fastest_seconds or point.seconds) / factor
        )
        for point in profile.points
    )
    return replace(
        profile,
        points=tuple(points),
        validate_seconds_per_row=profile.validate_seconds_per_row / factor,
        **{f"{name}_seconds": seconds / factor for name, seconds in known.items() if seconds is not None},
    )


def learned(recipe: Recipe, profile: Profile, history: Sequence[Path] = ()) -> Correction:
    """The correction from the last finished runs of this kind on this machine, in the same folder or in `history`.

    It also says how many runs in `history` were of another kind or machine.
    """
    machine, beside = profile.machine.fingerprint, Path(recipe.run.folder)
    past, left_out = history_of(history) if history else read_history(finished_runs(beside))
    others = sum(run.teaches != (machine, recipe.kind) for run in past)
    if history and others:
        left_out.append(f"{others} of {len(past)} runs (not {recipe.kind}, or not on the machine that was measured)")
    return learn(past, machine, recipe.kind, left_out)


def finished_runs(folder: Path, most: int = LEARNED_RUNS) -> list[Path]:
    """The last finished runs in `folder`, the latest first."""
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
    """Finished runs with their plans, and a line for each folder that is not a finished run or cannot be read."""
    runs, left_out = [], []
    for path in folders:
        folder = RunFolder(path)
        try:
            if not folder.done.is_file() or not folder.plan.is_file():
                missing = folder.plan if folder.done.is_file() else folder.done
                left_out.append(f"{path} (not a finished run: no {missing.name})")
                continue
            records = (folder.machine, folder.plan, folder.done, folder.profile, folder.recipe, folder.choices)
            folder.check_records(*records)
            machine = Machine.read(folder.machine).fingerprint if folder.machine.is_file() else None
            plan, outcome = Plan.read(folder.plan), Outcome.read(folder.done)
            measured_on = plan.measured_on
            if measured_on is None and folder.profile.is_file():
                measured_on = Profile.read(folder.profile).machine.fingerprint
            kind = folder.read_recipe().kind if folder.recipe.is_file() else None
        except (ShoestringError, UnicodeDecodeError) as cause:
            left_out.append(f"{path} ({str(cause).splitlines()[0]})")
            continue
        runs.append(
            Past(name=path.name, machine=machine, measured_on=measured_on, kind=kind, plan=plan, outcome=outcome)
        )
    return runs, left_out


def history_of(paths: Sequence[Path]) -> tuple[list[Past], list[str]]:
    """As `read_history`, for runs and folders of runs; at least one run must be finished."""
    runs: list[Path] = []
    for path in paths:
        inside = [] if RunFolder(path).recipe.is_file() else finished_runs(path)
        runs += inside or [path]
    past, left_out = read_history(runs)
    if not past:
        raise PlanError(f"no finished run in {', '.join(map(str, paths))}; a run is finished when it has a file DONE")
    return past, left_out


def measured_profile(folder: RunFolder, file: Path | None = None) -> Profile:
    """An existing profile: the run folder's own, or the one in `file`."""
    path = file or folder.profile
    if not path.is_file():
        raise PlanError(
            f"there is no profile {path}; measure this machine first: shoestring measure RECIPE, "
            f"or give figures by hand: --time, --tokens-per-second, …"
        )
    return Profile.read(path)


def own_profile_of(task: Task, profile: Profile, path: Path) -> Profile:
    """The profile in `path` for this task; another corpus than its own is sampled."""
    if not task.fits(profile):
        raise PlanError(f"{path} was measured with another model, row length or batch; run: shoestring measure RECIPE")
    return with_own_density(task.recipe, profile)


def make_sbatch(recipe: Recipe, plan: Plan, profile: Profile, command: Sequence[str], python: str) -> str:
    """A Slurm script that runs `python -m COMMAND` in the current folder."""
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
    return sbatch_script(plan, job)


def read_plan(recipe: Recipe, path: Path) -> Plan:
    """An existing plan; raises PlanError where it is of another recipe."""
    plan = Plan.read(path)
    if plan.recipe != recipe.fingerprint:
        raise PlanError(f"{path} is the plan of another recipe; make it again with: shoestring plan RECIPE")
    if lines := _misfits(plan, recipe):
        raise RecordError("\n  ".join([f"{path}: contradicts its recipe", *lines]))
    return plan


def _misfits(plan: Plan, recipe: Recipe) -> list[str]:
    """A line for each field of a plan that cannot be of this recipe."""
    needed = ("steps",) if recipe.kind == "hmm" else ("steps", "effective_batch", "per_device")
    lines = [f"{name}: missing" for name in needed if getattr(plan, name) is None]
    if recipe.kind != "hmm":
        rows = None if plan.steps is None else plan.steps * recipe.batch
        lines += differs("effective_batch", plan.effective_batch, recipe.batch, "that of the recipe")
        lines += differs("samples", plan.samples, rows, "steps × effective_batch")
        if None not in (plan.per_device, plan.accumulate, plan.devices):
            split = math.prod(getattr(plan, name) for name in ("per_device", "accumulate", "devices"))
            lines += differs("effective_batch", plan.effective_batch, split, "per_device × accumulate × devices")
    positions = None if plan.samples is None else plan.samples * recipe.data.length
    return lines + differs("tokens", plan.tokens, positions, "samples × data.length")
