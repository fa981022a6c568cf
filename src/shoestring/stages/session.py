"""One session of training: from wherever the run stands to its end, then the last evaluation, the page and DONE."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from shoestring.core.clock import Clock
from shoestring.core.errors import Fault, StorageError
from shoestring.core.facts import Evaluation, Outcome, Plan, Profile
from shoestring.core.files import folder_bytes
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.parallel.team import Team
from shoestring.plan.make import RESERVE_SECONDS, checkpoint_interval
from shoestring.probe.machine import describe_machine
from shoestring.probe.meter import Meter
from shoestring.probe.workload import Usage
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
IDLE_SHARE = 0.01
"""Of a time budget: a run whose last step would be so much before its deadline is made longer."""
LEAST_IDLE = 1.0
"""Seconds for which no run is made longer."""
KNOWN_CHECKPOINTS = 4
"""After so many, what the slowest took is believed also where it is less than planned."""
FINISH_MARGIN = 1.25
"""How much longer than planned the finish may take before it passes the deadline."""


Figures = dict[str, str]
"""Of the page, as SVG by title."""


@dataclass(frozen=True, kw_only=True)
class _Session:
    """What one session works with, from the first step to the last; only the first process' lines are written."""

    recipe: Recipe
    plan: Plan
    steps: int
    """As planned; the course may become shorter or longer."""
    batch: int
    """Effective, in rows."""
    corpus: Corpus
    learner: Learner
    meter: Meter
    checkpoints: Checkpoints
    metrics: LineFile
    timings: LineFile
    pace: Pace
    finish: _Finish
    voice: Voice
    clock: Clock
    limit: float | None
    """When the session is to end, on its clock."""
    scored: int
    """Held-out rows at a time."""
    wishes: loop.Wishes = field(default_factory=loop.Wishes)

    @property
    def tokens_per_step(self) -> int:
        return self.batch * self.recipe.data.length


def train(
    recipe: Recipe,
    folder: RunFolder,
    plan: Plan,
    corpus: Corpus,
    team: Team,
    voice: Voice,
    clock: Clock,
    limit: float | None = None,
) -> tuple[Outcome, Evaluation] | None:
    """Restore, train to the end of the plan or of the time, evaluate, write the page, and mark the run DONE.

    All processes of a team call this; the first one writes, and the others return None. The session ends, saved, when
    its clock comes to `limit`.
    """
    assert plan.steps and plan.per_device and plan.effective_batch, "a recipe's plan has them"
    writes = team.rank == 0
    checkpoints = Checkpoints(folder.checkpoints, recipe.train.keep)
    step, damaged = team.first(checkpoints.latest)
    for line in damaged:
        voice.say(f"left out: {line}")
    meter = Meter(team.device)
    learner = make_learner(recipe, team.device, team, init=step is None)
    state = _restore(recipe, plan, corpus, checkpoints, step, learner, voice)
    if writes:
        _note_machine(folder, team.device, voice)
    beside = team.device.type == "cuda"
    finish = _Finish.of(plan, corpus.strategies_take() if writes and beside else None, beside)
    session = _Session(
        recipe=recipe,
        plan=plan,
        steps=plan.steps,
        batch=plan.effective_batch,
        corpus=corpus,
        learner=learner,
        meter=meter,
        checkpoints=checkpoints,
        metrics=LineFile.rewound(folder.metrics, state.step) if writes else NoLines(),
        timings=LineFile(folder.timings) if writes else NoLines(),
        pace=Pace(
            clock,
            _deadline(recipe, finish.seconds()),
            _overhead_per_step(plan),
            plan.step_seconds,
            finish.seconds(),
            stops_per_step=_stops_per_step(recipe, plan),
            idle_seconds=_idle_seconds(recipe),
        ),
        finish=finish,
        voice=voice,
        clock=clock,
        limit=limit,
        scored=team.first(_rows_that_fitted, folder, "scored", scored_rows(recipe, plan)),
    )
    per_device = team.first(_rows_that_fitted, folder, "per_device", plan.per_device)
    session.timings.add(step=state.step, elapsed=clock.elapsed(), event="start", **clock.marks)
    try:
        with _written(checkpoints, learner):
            state = _take_steps(session, state, per_device)
            voice.trained()
            evaluation = evaluate_learner(learner, state.step, session.scored, corpus)
            usage = meter.usage()  # of training and evaluation, as it was measured; not of drawing
            figures = _show(session, folder, evaluation) if writes else None
        team.each(checkpoints.wait)
    except OutOfMemory as cause:  # of a sharded model: the others cannot go on without this process
        rows = {"scored" if cause.scored else "per_device": cause.half}
        reached = [line["step"] for line in read_lines(folder.metrics) if "loss" in line]
        LineFile(folder.timings).add(
            step=max(reached, default=state.step), elapsed=clock.elapsed(), event="halved", **rows
        )
        raise
    except Fault as cause:  # decided by numbers that all processes have
        raise team.told_by(0, cause)  # noqa: B904
    return None if figures is None else (_finish(session, folder, state, evaluation, usage, figures), evaluation)


@contextlib.contextmanager
def _written(checkpoints: Checkpoints, learner: Learner) -> Iterator[None]:
    """Whatever happens meanwhile, a checkpoint of this process alone is written to its end."""
    try:
        yield
    except BaseException:
        if not learner.sharded:
            with contextlib.suppress(StorageError):
                checkpoints.wait()
        raise


def _take_steps(session: _Session, state: State, per_device: int) -> State:
    """To the end of the course."""

    def halved(step: int, rows: int) -> None:
        session.timings.add(step=step, elapsed=session.clock.elapsed(), event="halved", per_device=rows)
        session.voice.say(f"step {step} did not fit the memory; it is taken again with per_device = {rows}")

    running = loop.Loop(
        session.learner,
        session.corpus.training(session.learner.device),
        session.recipe.train,
        _hooks(session),
        batch=session.batch,
        per_device=per_device,
        seed=session.recipe.run.seed,
        wishes=session.wishes,
        halved=halved,
    )
    with hooks.listening(session.wishes):
        return running.run(state)


def _show(session: _Session, folder: RunFolder, evaluation: Evaluation) -> Figures:
    """Write the last evaluation, and draw the page's figures."""
    evaluation.write(folder.evaluation)
    session.voice.evaluated(evaluation)
    return draw(folder)


def _finish(
    session: _Session,
    folder: RunFolder,
    state: State,
    evaluation: Evaluation,
    usage: Usage | None,
    figures: Figures,
) -> Outcome:
    """Write the page and DONE."""
    session.timings.add(step=state.step, elapsed=session.clock.elapsed(), event="end")
    lines = read_lines(folder.timings)
    checkpoint_bytes = max(session.checkpoints.peak_bytes, folder_bytes(folder.checkpoints))
    outcome = Outcome(
        steps=state.step,
        tokens=state.step * session.tokens_per_step,
        seconds=_seconds(lines),
        segments=sum(line.get("event") == "start" for line in lines),
        tokens_per_second=_rate(lines),
        disk_bytes=session.corpus.bytes + checkpoint_bytes,
        peak_bytes=None if usage is None else usage.reserved,
        loss=evaluation.loss,
        shortened=state.shortened,
        lengthened=state.lengthened,
    )
    write_page(folder, figures, outcome)
    outcome.write(folder.done)
    return outcome


def _rows_that_fitted(folder: RunFolder, name: str, planned: int) -> int:
    """Rows at a time: as planned, or what was left of them when memory ran out before."""
    halved = (line for line in read_lines(folder.timings) if line.get("event") == "halved")
    return min([planned, *(int(line[name]) for line in halved if name in line)])


def _note_machine(folder: RunFolder, device: torch.device, voice: Voice) -> None:
    """A run may move to another machine; its plan was made for the one that was measured."""
    machine = describe_machine(device)
    machine.write(folder.machine)
    if folder.profile.is_file() and (elsewhere := Profile.read(folder.profile).elsewhere(machine)):
        voice.say(f"{elsewhere}; the pace is watched")


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


class _Finish(NamedTuple):
    """What follows the last step: the checkpoint, evaluation, strategies and page."""

    rest: float
    """Seconds of all but the checkpoint: of strategies by a few of them where that is known, else as planned."""
    write: float
    """Of the checkpoint, as planned."""
    beside: bool
    """Whether it is written meanwhile; a CPU has no core and no memory to spare for that."""

    @classmethod
    def of(cls, plan: Plan, strategies: float | None, beside: bool) -> _Finish:
        finish, planned, last = (plan.parts.get(name, 0.0) for name in ("finish", "strategies", "last checkpoint"))
        rest = finish + (planned if strategies is None else strategies)
        return cls(rest, finish + last if beside else last, beside)

    def seconds(self, slowest: float = 0.0, written: int = 0) -> float:
        """At most, where the slowest of so many checkpoints took so many seconds."""
        write = slowest if written >= KNOWN_CHECKPOINTS else max(self.write, slowest)
        return FINISH_MARGIN * (max(self.rest, write) if self.beside else self.rest + write)


def _deadline(recipe: Recipe, finish: float) -> float:
    """When the last step must be done, so that evaluation, page and saving still fit."""
    return math.inf if recipe.budget.time is None else float(recipe.budget.time) - finish - RESERVE_SECONDS


def _overhead_per_step(plan: Plan) -> float:
    return (plan.parts.get("evaluations", 0.0) + plan.parts.get("checkpoints", 0.0)) / (plan.steps or 1)


def _idle_seconds(recipe: Recipe) -> float:
    """How much before its deadline the last step may be, for the run to use its time."""
    return math.inf if recipe.budget.time is None else max(IDLE_SHARE * float(recipe.budget.time), LEAST_IDLE)


def _stops_per_step(recipe: Recipe, plan: Plan) -> float:
    """Evaluations, and checkpoints: after each of them at most, and by the clock."""
    saves = plan.parts.get("train", 0.0) / checkpoint_interval(recipe)
    return (2 * (plan.evaluations or 0) + saves) / (plan.steps or 1)


def _hooks(session: _Session) -> Sequence[loop.AnyHook]:
    """What happens after each step, in this order: a changed course is known before the step is logged and saved."""
    recipe, steps, pace, metrics = session.recipe, session.steps, session.pace, session.metrics
    watch = Watch(session.corpus)

    def score() -> dict[str, float]:
        return watch(session.learner, session.scored)

    def write(state: State, wait: bool) -> None:
        metrics.sync()
        pace.finish_takes(session.finish.seconds(session.checkpoints.slowest, session.checkpoints.written))
        last = state.step >= state.course.total
        session.checkpoints.save(session.learner, state, wait and not (last and session.finish.beside))

    every = max(1, steps // METRICS_LINES)

    def show(state: State, report: loop.Report) -> State:
        if state.step % every == 0:
            session.meter.look()
        session.voice.training(_live(session, state, report))
        return state

    return (
        hooks.KeepPace(pace, session.wishes, metrics, session.voice.say, session.plan.most_steps),
        hooks.Log(metrics, session.timings, session.clock, every, session.tokens_per_step),
        hooks.Evaluate(score, metrics, pace, steps, recipe.evaluate.every),
        hooks.Save(write, session.wishes, pace, checkpoint_interval(recipe), partial(_out_of_time, session)),
        show,
    )


def _live(session: _Session, state: State, report: loop.Report) -> Live:
    """How the run stands, for a person who watches."""
    budget = session.recipe.budget.time
    return Live(
        step=state.step,
        total=state.course.total,
        loss=report.loss.mean,
        tokens_per_second=session.tokens_per_step / (session.pace.seconds_per_step or report.seconds),
        seconds_left=session.pace.seconds_left(state.course.total - state.step) or 0.0,
        budget_left=None if budget is None else float(budget) - session.clock.elapsed(),
    )


def _out_of_time(session: _Session) -> bool:
    """Whether a session with a limit must begin to end.

    That takes steps until all know of it, an evaluation, two checkpoints, and a little more.
    """
    if session.limit is None:
        return False
    plan, steps = session.plan, 4 * (session.pace.seconds_per_step or 0.0)
    evaluation = plan.parts.get("evaluations", 0.0) / (plan.evaluations or 1)
    more = min(60.0, max(1.0, 0.01 * session.limit))
    return session.clock.elapsed() >= session.limit - (steps + evaluation + 2 * session.checkpoints.slowest + more)


def _seconds(timings: list[dict[str, Any]]) -> float:
    """Wall clock over all sessions: each from its process' start to the last line it wrote."""
    total = last = 0.0
    for line in timings:
        if line.get("event") == "start":
            total += last
        last = line["elapsed"]
    return total + last


def _rate(timings: list[dict[str, Any]]) -> float:
    """Tokens a second while training: the harmonic mean over the metrics lines, which stand for equal tokens each.

    The first two lines of a session, whose steps compile and record, are left out where there are ten.
    """
    sessions: list[list[float]] = [[]]
    for line in timings:
        if line.get("event") == "start":
            sessions.append([])
        if "tokens_per_second" in line:
            sessions[-1].append(line["tokens_per_second"])
    rates = [rate for session in sessions for rate in (session[2:] if len(session) >= 10 else session)]
    return float(len(rates) / sum(1 / rate for rate in rates))
