"""One session of training: from wherever the run stands to its end, then the last evaluation, the page and DONE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from shoestring.core.clock import Clock
from shoestring.core.facts import Evaluation, Outcome, Plan, Profile
from shoestring.core.files import folder_bytes
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.core.seeds import derive
from shoestring.plan.make import RESERVE_SECONDS, checkpoint_interval
from shoestring.probe.machine import describe_machine, peak_bytes, pick_device
from shoestring.report.page import draw, write_page
from shoestring.stages.corpus import Corpus
from shoestring.stages.evaluate import Watch, evaluate_learner
from shoestring.stages.voice import Live, Voice
from shoestring.stages.workload import make_learner
from shoestring.track import LineFile, read_lines
from shoestring.train import hooks, loop
from shoestring.train.checkpoint import Checkpoints, State
from shoestring.train.course import Course
from shoestring.train.learner import Learner
from shoestring.train.pace import Pace

METRICS_LINES = 1000
"""About how many lines a run writes: one every (planned steps / this)."""
FINISH_MARGIN = 1.25
"""How much longer than planned the finish may take before it passes the deadline."""


def train(
    recipe: Recipe, folder: RunFolder, plan: Plan, corpus: Corpus, voice: Voice, clock: Clock
) -> tuple[Outcome, Evaluation]:
    """Restore, train to the end of the plan or of the time, evaluate, write the page, and mark the run DONE."""
    assert plan.steps and plan.per_device and plan.effective_batch, "a recipe's plan has them"
    device = pick_device()
    _note_machine(folder, device, voice)
    torch.manual_seed(derive(recipe.run.seed, "torch"))
    learner = make_learner(recipe, device)
    checkpoints = Checkpoints(folder.checkpoints, recipe.train.keep)
    state = _restore(recipe, plan, corpus, checkpoints, learner, voice)
    metrics, timings = LineFile.rewound(folder.metrics, state.step), LineFile(folder.timings)
    timings.add(step=state.step, elapsed=clock.elapsed(), event="start")
    finish = FINISH_MARGIN * plan.parts.get("finish", 0.0)
    pace = Pace(clock, _deadline(recipe, finish), _overhead_per_step(plan), plan.step_seconds, finish)
    state = loop.train(
        learner,
        corpus.training(device),
        recipe.train,
        state,
        _hooks(recipe, plan, corpus, learner, checkpoints, metrics, timings, pace, voice, clock),
        batch=plan.effective_batch,
        per_device=plan.per_device,
        order_seed=recipe.run.seed,
    )
    voice.trained()
    evaluation = evaluate_learner(learner, state.step, plan.per_device, corpus)
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
        peak_bytes=peak_bytes(device),
        loss=evaluation.loss,
        shortened=state.shortened,
    )
    write_page(folder, figures, outcome)
    outcome.write(folder.done)
    return outcome, evaluation


def _note_machine(folder: RunFolder, device: torch.device, voice: Voice) -> None:
    """A run may move to another machine; its plan was made for the one that was measured."""
    machine = describe_machine(device)
    machine.write(folder.machine)
    if folder.profile.is_file():
        planned = Profile.read(folder.profile).machine
        if planned.fingerprint != machine.fingerprint:
            voice.say(f"measured on another machine or other versions ({planned.device_name}); the pace is watched")


def _restore(
    recipe: Recipe, plan: Plan, corpus: Corpus, checkpoints: Checkpoints, learner: Learner, voice: Voice
) -> State:
    """The newest whole checkpoint, or the beginning."""
    step, damaged = checkpoints.latest()
    for line in damaged:
        voice.say(f"left out: {line}")
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
    voice: Voice,
    clock: Clock,
) -> Sequence[loop.Hook]:
    """What happens after each step, in this order: a shortened course is known before the step is logged and saved."""
    assert plan.steps and plan.per_device and plan.effective_batch
    per_device, tokens = plan.per_device, plan.effective_batch * recipe.data.length
    watch = Watch(corpus)
    save = hooks.Save(checkpoints, learner, metrics, pace, checkpoint_interval(recipe))
    save.listen()

    def score() -> dict[str, float]:
        return watch(learner, per_device)

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
        hooks.KeepPace(pace, metrics, voice.say),
        hooks.Log(metrics, timings, clock, max(1, plan.steps // METRICS_LINES), tokens),
        hooks.Evaluate(score, metrics, pace, plan.steps, recipe.evaluate.every),
        save,
        show,
    )


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
