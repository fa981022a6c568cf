"""Train: the whole way of a run, from its recipe to DONE. Every arrow is a file, so it goes on wherever it was cut."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shoestring.core.clock import Clock
from shoestring.core.errors import RunError, UserError
from shoestring.core.facts import Evaluation, Outcome, Plan
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.stages.measure import ensure_profile
from shoestring.stages.plan import plan_recipe, read_plan
from shoestring.stages.prepare import check_source, prepare_recipe
from shoestring.stages.voice import Voice

MEASURE_SHARE = 0.04
"""Of the time budget, spent on measuring."""


@dataclass(frozen=True)
class Finished:
    """A run that is done."""

    folder: RunFolder
    plan: Plan
    outcome: Outcome
    evaluation: Evaluation


def run(recipe: Recipe, voice: Voice, clock: Clock, plan_file: Path | None = None) -> Finished:
    """Measure, plan, prepare, train, evaluate and report; what is there already is not done again."""
    if recipe.hmm is not None:
        raise UserError("this recipe has an [hmm] section; fit it with: shoestring hmm fit RECIPE")
    check_source(recipe)  # a missing file is found before anything is written
    given = read_plan(recipe, plan_file) if plan_file else None
    folder = RunFolder.of(recipe)
    with folder.lock():
        folder.claim(recipe)
        if folder.done.is_file():
            voice.say(f"{folder.path} is finished; its page is {folder.report}")
            return read_finished(folder)
        plan = _ensure_plan(recipe, folder, voice, clock, given)
        store = prepare_recipe(recipe, plan, voice) if recipe.data.stream is None else None
        # with torch, which measuring, planning and preparing do without
        from shoestring.stages.corpus import open_corpus
        from shoestring.stages.session import train

        outcome, evaluation = train(recipe, folder, plan, open_corpus(recipe, plan, store), voice, clock)
        return Finished(folder, plan, outcome, evaluation)


def read_finished(folder: RunFolder) -> Finished:
    plan, outcome = Plan.read(folder.plan), Outcome.read(folder.done)
    return Finished(folder, plan, outcome, Evaluation.read(folder.evaluation))


def measuring_seconds(recipe: Recipe) -> float:
    """How long the passes of a measurement may take."""
    return min(20.0, max(0.5, MEASURE_SHARE * float(recipe.budget.time or 50)))


def _ensure_plan(recipe: Recipe, folder: RunFolder, voice: Voice, clock: Clock, given: Plan | None) -> Plan:
    """The plan is made once, before the first step, and kept: two runs of one plan are the same run."""
    if folder.plan.is_file():
        plan = read_plan(recipe, folder.plan)
        if given is not None and given != plan:
            raise RunError(f"{folder.path} has a plan already, and it is not the one given; choose another run.name")
    else:
        if given is None:
            profile = ensure_profile(recipe, folder, voice, measuring_seconds(recipe))
            plan = plan_recipe(recipe, profile, clock.elapsed())
        else:
            plan = given
        plan.write(folder.plan)
    voice.planned(plan)
    return plan
