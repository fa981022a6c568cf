"""One session of training: from wherever the run stands to its end, then the last evaluation, the page and DONE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from shoestring.core.clock import Clock
from shoestring.core.errors import Fault
from shoestring.core.facts import Evaluation, Outcome, Plan, Profile
from shoestring.core.files import folder_bytes
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.parallel.team import join
from shoestring.plan.make import RESERVE_SECONDS, checkpoint_interval
from shoestring.probe.machine import describe_machine, peak_bytes, pick_device
from shoestring.report.page import draw, write_page
from shoestring.stages.corpus import Corpus
from shoestring.stages.evaluate import Watch, evaluate_learner, scored_rows
from shoestring.stages.voice import Live, Voice
from shoestring.stages.workload import make_learner
from shoestring.track import LineFile, NoLines, read_lines
from shoestring.train import hooks, loop
from shoestring.train.checkpoint import Checkpoints, State
from shoestring.train.course import Course
from shoestring.train.learner import Learner, OutOfMemory
from shoestring.train.pace import Pace

METRICS_LINES = 1000
"""About how many lines a run writes: one every (planned steps / this)."""
FINISH_MARGIN = 1.25
"""How much longer than planned the finish may take before it passes the deadline."""


def train(
    recipe: Recipe,
    folder: RunFolder,
    plan: Plan,
    corpus: Corpus,
    voice: Voice,
    clock: Clock,
    limit: float | None = None,
) -> tuple[Outcome, Evaluation] | None:
    """Restore, train to the end of the plan or of the time, evaluate, write the page, and mark the run DONE.

    All processes of a team call this; the first one writes, and the others return None. The session ends, saved, when
    its clock comes to `limit`.
    """
    assert plan.steps and plan.per_device and plan.effective_batch, "a recipe's plan has them"
    team = join(pick_device())
    writes = team.rank == 0
    checkpoints = Checkpoints(folder.checkpoints, recipe.train.keep)
    step, damaged = team.first(checkpoints.latest)
    for line in damaged:
        voice.say(f"left out: {line}")
    learner = make_learner(recipe, team.device, team, init=step is None)
    state = _restore(recipe, plan, corpus, checkpoints, step, learner, voice)
    if writes:
        _note_machine(folder, team.device, voice)
    metrics = LineFile.rewound(folder.metrics, state.step) if writes else NoLines()
    timings = LineFile(folder.timings) if writes else NoLines()
    per_device = team.first(_rows_that_fitted, folder, "per_device", plan.per_device)
    scored = team.first(_rows_that_fitted, folder, "scored", scored_rows(recipe, plan))
    timings.add(step=state.step, elapsed=clock.elapsed(), event="start")
    finish = FINISH_MARGIN * plan.parts.get("finish", 0.0)
    pace = Pace(clock, _deadline(recipe, finish), _overhead_per_step(plan), plan.step_seconds, finish)
    wishes = loop.Wishes()

    def halved(step: int, rows: int) -> None:
        timings.add(step=step, elapsed=clock.elapsed(), event="halved", per_device=rows)
        voice.say(f"step {step} did not fit the memory; it is taken again with per_device = {rows}")

    running = loop.Loop(
        learner,
        corpus.training(team.device),
        recipe.train,
        _hooks(recipe, plan, corpus, learner, checkpoints, metrics, timings, pace, wishes, voice, clock, limit, scored),
        batch=plan.effective_batch,
        per_device=per_device,
        seed=recipe.run.seed,
        wishes=wishes,
        halved=halved,
    )
    try:
        with hooks.listening(wishes):
            state = running.run(state)
        voice.trained()
        evaluation = evaluate_learner(learner, state.step, scored, corpus)
    except OutOfMemory as cause:  # of a sharded model: the others cannot go on without this process
        rows = {"scored" if cause.scored else "per_device": cause.half}
        LineFile(folder.timings).add(step=state.step, elapsed=clock.elapsed(), event="halved", **rows)
        raise
    except Fault as cause:  # decided by numbers that all processes have
        raise team.told_by(0, cause)  # noqa: B904
    if not writes:
        return None
    evaluation.write(folder.evaluation)
    voice.evaluated(evaluation)
    figures = draw(folder)
    timings.add(step=state.step, elapsed=clock.elapsed(), event="end")
    lines = read_lines(folder.timings)
    outcome = Outcome(
        steps=state.step,
        tokens=state.step * plan.effective_batch * recipe.data.length,
        seconds=_seconds(lines),
        segments=sum(line.get("event") == "start" for line in lines),
        tokens_per_second=_rate(lines),
        disk_bytes=corpus.bytes + max(checkpoints.peak_bytes, folder_bytes(folder.checkpoints)),
        peak_bytes=peak_bytes(team.device),
        loss=evaluation.loss,
        shortened=state.shortened,
    )
    write_page(folder, figures, outcome)
    outcome.write(folder.done)
    return outcome, evaluation


def _rows_that_fitted(folder: RunFolder, name: str, planned: int) -> int:
    """Rows at a time: as planned, or what was left of them when memory ran out before."""
    halved = (line for line in read_lines(folder.timings) if line.get("event") == "halved")
    return min([planned, *(int(line[name]) for line in halved if name in line)])


def _note_machine(folder: RunFolder, device: torch.device, voice: Voice) -> None:
    """A run may move to another machine; its plan was made for the one that was measured."""
    machine = describe_machine(device)
    machine.write(folder.machine)
    if folder.profile.is_file():
        planned = Profile.read(folder.profile).machine
        if planned.fingerprint != machine.fingerprint:
            voice.say(f"measured on another machine or other versions ({planned.device_name}); the pace is watched")


def _restore(
    recipe: Recipe,
    plan: Plan,
    corpus: Corpus,
    checkpoints: Checkpoints,
    step: int | None,
    learner: Learner,
    voice: Voice,
) -> State:
    """The checkpoint of this step, or the beginning."""
    if step is None:
        assert plan.steps
        return State(recipe=recipe.fingerprint, data=corpus.fingerprint, course=Course(total=plan.steps))
    state = checkpoints.restore(step, learner, recipe.fingerprint, corpus.fingerprint)
    voice.say(f"going on after step {state.step:,} of {state.course.total:,}")
    return state


def _deadline(recipe: Recipe, finish: float) -> float:
    """When the last step must be done, so that evaluation, page and saving still fit."""
    return math.inf if recipe.budget.time is None else float(recipe.budget.time) - finish - RESERVE_SECONDS


def _overhead_per_step(plan: Plan) -> float:
    return (plan.parts.get("evaluations", 0.0) + plan.parts.get("checkpoints", 0.0)) / (plan.steps or 1)


def _hooks(
    recipe: Recipe,
    plan: Plan,
    corpus: Corpus,
    learner: Learner,
    checkpoints: Checkpoints,
    metrics: LineFile,
    timings: LineFile,
    pace: Pace,
    wishes: loop.Wishes,
    voice: Voice,
    clock: Clock,
    limit: float | None,
    scored: int,
) -> Sequence[loop.AnyHook]:
    """What happens after each step, in this order: a shortened course is known before the step is logged and saved."""
    assert plan.steps and plan.per_device and plan.effective_batch
    tokens = plan.effective_batch * recipe.data.length
    watch = Watch(corpus)

    def score() -> dict[str, float]:
        return watch(learner, scored)

    def write(state: State, wait: bool) -> None:
        metrics.sync()
        checkpoints.save(learner, state, wait)

    def out_of_time() -> bool:
        return limit is not None and clock.elapsed() >= limit - _stopping_seconds(plan, pace, checkpoints, limit)

    def show(state: State, report: loop.Report) -> State:
        live = Live(
            step=state.step,
            total=state.course.total,
            loss=report.loss.mean,
            tokens_per_second=tokens / (pace.seconds_per_step or report.seconds),
            seconds_left=pace.seconds_left(state.course.total - state.step) or 0.0,
            budget_left=None if recipe.budget.time is None else float(recipe.budget.time) - clock.elapsed(),
        )
        voice.training(live)
        return state

    return (
        hooks.KeepPace(pace, wishes, metrics, voice.say),
        hooks.Log(metrics, timings, clock, max(1, plan.steps // METRICS_LINES), tokens),
        hooks.Evaluate(score, metrics, pace, plan.steps, recipe.evaluate.every),
        hooks.Save(write, wishes, pace, checkpoint_interval(recipe), out_of_time),
        show,
    )


def _stopping_seconds(plan: Plan, pace: Pace, checkpoints: Checkpoints, limit: float) -> float:
    """What it takes to end a session: steps until all know of it, an evaluation, two checkpoints, a little more."""
    evaluation = plan.parts.get("evaluations", 0.0) / (plan.evaluations or 1)
    return 4 * (pace.seconds_per_step or 0.0) + evaluation + 2 * checkpoints.slowest + min(60.0, max(1.0, 0.01 * limit))


def _seconds(timings: list[dict[str, Any]]) -> float:
    """Wall clock over all sessions: each from its process' start to the last line it wrote."""
    total = last = 0.0
    for line in timings:
        if line.get("event") == "start":
            total += last
        last = line["elapsed"]
    return total + last


def _rate(timings: list[dict[str, Any]]) -> float:
    """Tokens a second while training: the harmonic mean over the metrics lines, which stand for equal tokens each."""
    rates = [line["tokens_per_second"] for line in timings if "tokens_per_second" in line]
    return float(len(rates) / sum(1 / rate for rate in rates))
