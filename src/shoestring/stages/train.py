"""Train: the whole way of a run, from its recipe to DONE. Every arrow is a file, so it goes on wherever it was cut."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shoestring.core.clock import Clock
from shoestring.core.errors import PlanError, RunError, UserError
from shoestring.core.facts import Evaluation, Outcome, Plan, Profile
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.core.slurm import allocation_end
from shoestring.stages.measure import Measuring, ensure_profile, measure_together, own_profile
from shoestring.stages.plan import plan_recipe, read_plan
from shoestring.stages.prepare import check_source, prepare_recipe
from shoestring.stages.voice import Voice

if TYPE_CHECKING:
    from shoestring.parallel.team import Team

MEASURE_SHARE = 0.04
"""Of the time budget, spent on measuring."""
SLURM_RESERVE = 10.0
"""Seconds before the end of an allocation: what is killed then has long ended."""


@dataclass(frozen=True)
class Finished:
    """A run that is done."""

    folder: RunFolder
    plan: Plan
    outcome: Outcome
    evaluation: Evaluation


def run(
    recipe: Recipe, voice: Voice, clock: Clock, plan_file: Path | None = None, limit: float | None = None
) -> Finished | None:
    """Measure, plan, prepare, train, evaluate and report; what is there already is not done again.

    Under torchrun all processes call this; the first one writes, and the others return None. After `limit` seconds, or
    before a Slurm allocation ends, the session stops, saved.
    """
    if recipe.hmm is not None:
        raise UserError("this recipe has an [hmm] section; fit it with: shoestring hmm fit RECIPE")
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return _run(recipe, voice, clock, plan_file, limit)
    from shoestring.parallel.team import sharing_work
    from shoestring.probe.machine import pick_device

    with sharing_work(pick_device()) as team:
        voice = voice if team.rank == 0 else Voice()
        finished = _run(recipe, voice, clock, plan_file, limit, team)
        return finished if team.rank == 0 else None


def _run(
    recipe: Recipe,
    voice: Voice,
    clock: Clock,
    plan_file: Path | None,
    limit: float | None,
    team: Team | None = None,
) -> Finished | None:
    """As `run`, in one process of a team, or in one alone, which loads torch only when it is time to train."""
    folder = RunFolder.of(recipe)
    with contextlib.ExitStack() as stack:
        devices = 1 if team is None else team.world
        measured = None if team is None else _measured_by_all(recipe, folder, plan_file, team)
        begin = partial(_begin, recipe, folder, voice, clock, plan_file, devices, stack, measured)
        plan = begin() if team is None else team.first(begin)
        if plan is None:
            return read_finished(folder)
        from shoestring.parallel.team import Team
        from shoestring.probe.machine import pick_device
        from shoestring.stages.corpus import open_corpus
        from shoestring.stages.session import train

        team = team or Team.of(pick_device())
        corpus = team.each(open_corpus, recipe, plan)
        found = train(recipe, folder, plan, corpus, team, voice, clock, _end(clock, limit))
        return None if found is None else Finished(folder, plan, *found)


def _end(clock: Clock, limit: float | None) -> float | None:
    """When the session is to end: by its own limit or that of a Slurm allocation, whichever comes first."""
    allocated = allocation_end(clock)
    ends = [limit, None if allocated is None else allocated - SLURM_RESERVE]
    return min((end for end in ends if end is not None), default=None)


def _begin(
    recipe: Recipe,
    folder: RunFolder,
    voice: Voice,
    clock: Clock,
    plan_file: Path | None,
    devices: int,
    stack: contextlib.ExitStack,
    measured: Profile | None = None,
) -> Plan | None:
    """The plan of a run whose data is ready; None where the run is finished. The run is locked until `stack` closes."""
    _check(recipe, devices)
    given = read_plan(recipe, plan_file) if plan_file else None
    stack.enter_context(folder.lock())
    with folder.claiming(recipe):
        if folder.done.is_file():
            voice.say(f"{folder.path} is finished; its page is {folder.report}")
            return None
        plan = _ensure_plan(recipe, folder, voice, clock, given, devices, measured)
    clock.mark("planned")
    if recipe.data.stream is None and recipe.data.label is None:
        prepare_recipe(recipe, plan, voice)
    clock.mark("prepared")
    return plan


def _check(recipe: Recipe, devices: int) -> None:
    """What can be known to fail before anything is measured or written."""
    if recipe.batch % devices:
        raise PlanError(
            f"an effective batch of {recipe.batch} rows does not divide over {devices} processes; start another "
            f"number of them, or change train.batch"
        )
    check_source(recipe)


def _measured_by_all(recipe: Recipe, folder: RunFolder, plan_file: Path | None, team: Team) -> Profile | None:
    """The profile that the devices of a team agree on; None where none is needed."""
    how = Measuring(seconds=measuring_seconds(recipe))

    def needed() -> bool:
        _check(recipe, team.world)
        there = plan_file is not None or folder.plan.is_file() or folder.done.is_file()
        return not there and own_profile(recipe, folder, how) is None

    return measure_together(recipe, how, team) if team.first(needed) else None


def read_finished(folder: RunFolder) -> Finished:
    plan, outcome = Plan.read(folder.plan), Outcome.read(folder.done)
    return Finished(folder, plan, outcome, Evaluation.read(folder.evaluation))


def measuring_seconds(recipe: Recipe) -> float:
    """How long the passes of a measurement may take."""
    return min(20.0, max(0.5, MEASURE_SHARE * float(recipe.budget.time or 50)))


def _ensure_plan(
    recipe: Recipe,
    folder: RunFolder,
    voice: Voice,
    clock: Clock,
    given: Plan | None,
    devices: int = 1,
    measured: Profile | None = None,
) -> Plan:
    """The plan is made once, before the first step, and kept: two runs of one plan are the same run."""
    if folder.plan.is_file():
        plan = read_plan(recipe, folder.plan)
        if given is not None and given != plan:
            raise RunError(f"{folder.path} has a plan already, and it is not the one given; choose another run.name")
    else:
        if given is None:
            profile = ensure_profile(recipe, folder, voice, Measuring(seconds=measuring_seconds(recipe)), measured)
            plan = plan_recipe(recipe, profile, clock.elapsed(), devices)
        else:
            plan = given
        plan.write(folder.plan)
    voice.planned(plan)
    return plan
