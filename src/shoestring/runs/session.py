"""One session of a run: from its last checkpoint to its end, then the last evaluation, the page and DONE."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from shoestring.core.clock import Clock
from shoestring.core.errors import Fault, StorageError
from shoestring.core.records import Plan, Profile
from shoestring.core.results import Evaluation, Forecast, Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.parallel.process_group import ProcessGroup
from shoestring.parallel.threads import one_thread
from shoestring.planning.stops import checkpoint_interval
from shoestring.probe.brief_waits import brief_waits
from shoestring.probe.machine import describe_machine
from shoestring.probe.meter import Meter
from shoestring.report.page import draw, skipped_line, write_page
from shoestring.runs.best_weights import EndOverfitting, Taken, delivered
from shoestring.runs.finish import Finish, deadline_of
from shoestring.runs.first_steps import FirstSteps, final_profile
from shoestring.runs.more_rows import Child, MoreRows
from shoestring.runs.outcome import outcome_of
from shoestring.runs.reporter import Reporter, TrainingProgress
from shoestring.runs.restore import build, restore
from shoestring.runs.sample_texts import texts_of
from shoestring.runs.task import Task
from shoestring.runs.timeline import seconds_of
from shoestring.runs.trainee import Trainee
from shoestring.runs.watch import Notes, Watch
from shoestring.track import LineFile, NoLines, read_lines
from shoestring.track.trackers import Tracked, open_trackers
from shoestring.training import hooks, loop
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.deadline import Deadline
from shoestring.training.passes import OutOfMemory

LOOKS = 1000
"""About how often a run looks at its memory."""


@dataclass(frozen=True, kw_only=True)
class _Session:
    """What one session works with, from the first step to the last; only the first process writes lines."""

    trainee: Trainee
    meter: Meter
    checkpoints: Checkpoints
    metrics: LineFile
    timings: LineFile
    deadline: Deadline
    baseline_seconds: float | None
    """As timed here; None: as planned."""
    reporter: Reporter
    clock: Clock
    limit: float | None
    """When the session must end, on its clock."""
    until: float | None
    """The share of the schedule after which it ends; None: all of it."""
    folder: RunFolder
    requests: loop.Requests

    @property
    def finish(self) -> Finish:
        """What follows the last step, by the plan as it is."""
        return finish_of(self.trainee, self.baseline_seconds)

    def keep_finish(self) -> None:
        """Leave time for the finish, by what checkpoints took so far."""
        self.deadline.finish_takes(self.finish.seconds(self.checkpoints.slowest, self.checkpoints.written))

    def seal_lines(self) -> None:
        """Bring the lines to disk, and seal them; only the first process has any."""
        self.metrics.sync()
        self.timings.sync()
        if self.trainee.group.rank == 0:
            self.folder.seal_lines()

    def note(self, label: int, event: str) -> None:
        """A line on where the time of the session went until now."""
        parts = self.clock.parts()
        self.timings.add(step=label, elapsed=sum(parts.values()), event=event, parts=parts)


def train(
    task: Task,
    folder: RunFolder,
    plan: Plan,
    group: ProcessGroup,
    reporter: Reporter,
    clock: Clock,
    limit: float | None = None,
    prepared: Callable[[], None] = lambda: None,
    until: float | None = None,
) -> tuple[Outcome, Evaluation] | None:
    """Restore, train to the end of the plan or of the time, evaluate, write the page, and mark the run DONE.

    All processes of a group call this; the first one writes, and the others return None. The session saves and ends
    when its clock reaches `limit`, or after the share `until` of its schedule. `prepared` returns when there are rows.
    """
    recipe, writes = task.recipe, group.rank == 0
    trainee = task.open(plan, group)
    checkpoints = Checkpoints(folder.checkpoints, recipe.train.keep, recipe.train.is_saved)
    meter = Meter(group.device)
    step = build(trainee, checkpoints, reporter)
    prepared()
    trainee.open_rows()
    state = restore(recipe, checkpoints, step, trainee, reporter)
    trainee.continue_rows()
    if writes:
        machine = describe_machine(group.device)
        folder.write(folder.machine, machine)
        if folder.profile.is_file() and (elsewhere := Profile.read(folder.profile).elsewhere(machine)):
            reporter.say(f"{elsewhere}; the speed is watched")
        trainee.write_inputs(folder)
    baselines = trainee.baseline_seconds() if writes and group.device.type == "cuda" else None
    finish = finish_of(trainee, baselines)
    label = trainee.label(state)
    trackers = open_trackers(recipe.track.to, folder.path, label, reporter.say) if writes and recipe.track else {}
    lines = LineFile.rewound(folder.metrics, label, state.lines or 0, folder.write) if writes else NoLines()
    metrics = Tracked(lines, trackers, reporter.say)
    session = _Session(
        trainee=trainee,
        meter=meter,
        checkpoints=checkpoints,
        metrics=metrics,
        timings=LineFile(folder.timings) if writes else NoLines(),
        deadline=deadline_of(
            recipe, plan, clock, finish.seconds(), seconds_of(read_lines(folder.timings)), _is_sparing(group)
        ),
        baseline_seconds=baselines,
        reporter=reporter,
        clock=clock,
        limit=limit,
        until=until,
        folder=folder,
        requests=loop.Requests(alone=group.world == 1),
    )
    for name in ("scored_rows", "per_device"):
        setattr(trainee, name, group.on_first(_rows_that_fitted, folder, name, getattr(trainee, name)))
    session.note(label, "start")
    try:
        with _written(checkpoints, trainee), one_thread(group.device.type == "cuda"), brief_waits():
            clock.begin("first step")
            state = _take_steps(session, state)
            clock.begin("last evaluation")
            reporter.trained()
            if state.skipped:
                reporter.say(skipped_line(state.skipped, state.step))
            usage, taken = meter.usage(), Taken.by(trainee, state)
            shown = delivered(trainee, checkpoints, state, reporter.say)
            evaluation = trainee.evaluate(shown)
            if shown is state and (group.device.type == "cuda" or recipe.kind == "hmm"):
                usage = meter.usage()  # as in the profile: of training and evaluation, not of counting for baselines
            if writes:
                folder.write(folder.evaluation, evaluation)
                reporter.evaluated(evaluation)
                clock.begin("page")
                written, figures = trainee.write_results(folder), draw(folder)
        clock.begin("last checkpoint")
        trainee.together(lambda: group.on_all(checkpoints.wait))
    except OutOfMemory as cause:  # of a sharded model: the others cannot continue without this process
        rows = {"scored_rows" if cause.scored else "per_device": cause.half}
        LineFile(folder.timings).add(step=_reached(folder, label), elapsed=clock.elapsed(), event="halved", **rows)
        raise
    except Fault as cause:  # decided by numbers that all processes have
        session.note(_reached(folder, label), "stopped")
        raise group.reported_by(0, cause)  # noqa: B904
    finally:
        metrics.close()
        trainee.close()
    if not writes:
        return None
    clock.begin("page")
    session.note(taken.label, "end")
    outcome = outcome_of(trainee, checkpoints, folder, state, evaluation, usage, written, taken)
    folder.check()
    session.seal_lines()
    folder.write(folder.done, outcome)
    write_page(folder, figures, outcome)
    session.note(taken.label, "exit")
    return outcome, evaluation


def finish_of(trainee: Trainee, baselines: float | None) -> Finish:
    return Finish.of(trainee.plan, baselines, trainee.group.device.type == "cuda")


def _is_sparing(group: ProcessGroup) -> bool:
    """Whether the clock may decide on evaluations: not of several processes, which make them at the same steps, nor on
    a CPU, where two runs of one plan write the same lines."""
    return group.world == 1 and group.device.type == "cuda"


def _reached(folder: RunFolder, first: int) -> int:
    """The last step in the metrics of a session that began at `first`."""
    return max((line["step"] for line in read_lines(folder.metrics) if "loss" in line), default=first)


@contextlib.contextmanager
def _written(checkpoints: Checkpoints, trainee: Trainee) -> Iterator[None]:
    """Finish writing a checkpoint of this process alone, also where an error ends the run."""
    try:
        yield
    except BaseException:
        if not trainee.saveable.sharded:
            with contextlib.suppress(StorageError):
                checkpoints.wait()
        raise


def _take_steps(session: _Session, state: State) -> State:
    """Run the loop to the end of the schedule."""
    trainee = session.trainee

    def halved(step: int, rows: int) -> None:
        session.timings.add(step=step, elapsed=session.clock.elapsed(), event="halved", per_device=rows)
        session.reporter.say(f"step {step} did not fit the memory; it is repeated with per_device = {rows}")

    with _more_rows(session) as more, hooks.listening(session.requests):
        return loop.Loop(trainee, _hooks(session, state, more), session.requests, halved).run(state)


@contextlib.contextmanager
def _more_rows(session: _Session) -> Iterator[MoreRows]:
    more = MoreRows(
        session.trainee,
        partial(Child, session.folder),
        session.requests,
        session.metrics,
        session.reporter.say,
        first=session.trainee.group.rank == 0,
    )
    with contextlib.closing(more):
        yield more


def _rows_that_fitted(folder: RunFolder, name: str, planned: int) -> int:
    """The micro-batch, or rows per scoring pass: as planned, or what was left after memory ran out before."""
    halved = (line for line in read_lines(folder.timings) if line.get("event") == "halved")
    return min([planned, *(int(line[name]) for line in halved if name in line)])


def _hooks(session: _Session, state: State, more: MoreRows) -> Sequence[loop.AnyHook]:
    """The hooks from `state` on, in order: a changed schedule is known before the step is logged and saved."""
    trainee, deadline, metrics, requests = session.trainee, session.deadline, session.metrics, session.requests
    logged = trainee.hooks(metrics, session.timings, session.clock)

    samples = texts_of(trainee, session.folder, state, session.clock, session.reporter.say)

    def score() -> dict[str, float]:
        samples.wanted = True
        with session.clock.during("evaluations"):
            return trainee.score()

    def write(state: State, wait: bool) -> None:
        with session.clock.during("checkpoints"):
            save(state, wait)

    def save(state: State, wait: bool) -> None:
        session.folder.check()
        session.seal_lines()
        session.keep_finish()
        last = state.step >= state.schedule.total
        state = replace(state, lines=metrics.lines, task=trainee.saved_values())
        waits = trainee.waits_for_disk or (wait and not (last and session.finish.beside))
        trainee.together(lambda: session.checkpoints.save(trainee.saveable, state, waits))

    every = max(1, trainee.planned_steps // LOOKS)

    def began(state: State, _: loop.Report) -> State:
        session.clock.begin("train")
        return state

    def show(state: State, report: loop.Report) -> State:
        session.folder.check()
        if state.step % every == 0:
            session.meter.look()
        if report.consolidated:
            session.reporter.training(_progress(session, state, report, watch.forecast))
        return state

    def keep_best(state: State, report: loop.Report) -> State:
        if state.step == state.best_step and report.settled(state.step):
            trainee.keep_scores(state.step)
        return state

    settling = deadline.settling = trainee.settling

    def settle(state: State, _: loop.Report) -> State:
        nonlocal settling
        if settling and not trainee.settling:
            settling = False
            deadline.begin_again()
            session.meter.reset()
            session.timings.add(step=trainee.label(state), elapsed=session.clock.elapsed(), event="compiled")
        return state

    keep, wanted = _keep_deadline(session), trainee.evaluates(state)
    notes = Notes(session.timings, session.clock)
    telling = session.reporter.say, notes, trainee.counted_loss, lambda: trainee.unrecorded
    watch = Watch(trainee.recipe, metrics.path, *telling, aside=session.meter.aside)
    return (
        began,
        settle,
        keep,
        more,
        *logged,
        hooks.Evaluate(score, metrics, deadline, wanted, trainee.label),
        samples,
        keep_best,
        EndOverfitting(trainee, session.checkpoints, metrics, wanted, deadline, session.reporter.say),
        hooks.Save(
            write,
            requests,
            deadline,
            lambda: checkpoint_interval(trainee.recipe, session.checkpoints.slowest),
            partial(_out_of_time, session),
            lambda state: session.until is not None and state.schedule.progress(state.step) >= session.until - 1e-9,
            trainee.recipe.train.is_saved,
        ),
        *_first_steps(session, keep),
        watch,
        show,
    )


def _keep_deadline(session: _Session) -> hooks.KeepDeadline:
    trainee = session.trainee
    return hooks.KeepDeadline(
        session.deadline,
        session.requests,
        session.metrics,
        session.reporter.say,
        planned=trainee.planned_steps,
        most=trainee.most_steps,
        label=trainee.label,
        decays=trainee.decays,
        unit=trainee.step_unit,
    )


def _first_steps(session: _Session, keep: hooks.KeepDeadline) -> list[loop.AnyHook]:
    """What makes the plan final, if it was counted."""
    trainee, first = session.trainee, session.trainee.group.rank == 0
    if not trainee.plan.estimated or trainee.recipe.kind == "hmm":
        return []

    def write(plan: Plan, settled: bool) -> None:
        trainee.plan, trainee.planned_steps = plan, plan.steps or trainee.planned_steps
        session.keep_finish()
        folder = session.folder
        if first:
            folder.write(folder.plan, plan)
        if first and folder.profile.is_file():
            folder.write(folder.profile, final_profile(Profile.read(folder.profile), plan, trainee.recipe))
        if first and settled:
            session.reporter.settled(plan)

    session.deadline.estimated = on_gpu = trainee.group.device.type == "cuda"
    page = partial(draw, session.folder) if on_gpu and first else None  # a CPU may be slow at any time
    parts = trainee.plan, trainee, session.deadline, keep, session.meter, session.clock

    def copied() -> int:
        return 0 if on_gpu else session.checkpoints.copied

    return [FirstSteps(*parts, write, page, copied, session.baseline_seconds)]


def _progress(session: _Session, state: State, report: loop.Report, forecast: Forecast | None) -> TrainingProgress:
    """The state of the run, for a progress display."""
    trainee, budget = session.trainee, session.trainee.recipe.budget.time
    done, total = trainee.progress(state)
    left, settled = state.schedule.total - state.step, session.deadline.settled or state.step == state.schedule.total
    return TrainingProgress(
        done=done,
        total=total,
        loss=report.loss.mean,
        tokens_per_second=trainee.tokens_per_step / (session.deadline.seconds_per_step or report.seconds),
        seconds_left=session.deadline.seconds_left(left, state.schedule.progress(state.step)) if settled else None,
        budget_left=None if budget is None else float(budget) - session.clock.elapsed(),
        unit=trainee.unit,
        forecast=forecast,
    )


def _out_of_time(session: _Session) -> bool:
    """Whether a session with a limit must begin to end.

    Ending takes some steps until all processes know of it, an evaluation, two checkpoints, and a margin.
    """
    if session.limit is None:
        return False
    plan, agreeing = session.trainee.plan, session.trainee.steps_to_agree
    steps = agreeing * (session.deadline.seconds_per_step or 0.0)
    evaluation = plan.parts.get("evaluations", 0.0) / (plan.evaluations or 1)
    margin = min(60.0, max(1.0, 0.01 * session.limit))
    return session.clock.elapsed() >= session.limit - (steps + evaluation + 2 * session.checkpoints.slowest + margin)
