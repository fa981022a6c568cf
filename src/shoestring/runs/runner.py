"""The runner: a run from its recipe to DONE, of a network or an HMM. It resumes wherever it was interrupted.

Measure, plan, prepare, train, evaluate, report: each writes a file, and a file that exists is not made again.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoestring.core.clock import Clock, allocation_end
from shoestring.core.environment import launched, slurm_job
from shoestring.core.errors import RunError, UserError
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan, Profile
from shoestring.core.results import Evaluation, Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.runs.corpus_work import CorpusWork
from shoestring.runs.launch import started
from shoestring.runs.measure import ensure_profile, measure_together, measuring_of, own_profile
from shoestring.runs.measure_sums import with_sum
from shoestring.runs.plan import plan_task, read_plan
from shoestring.runs.reporter import Reporter
from shoestring.runs.settle import keep_choices, settled
from shoestring.runs.task import Task, task_of
from shoestring.track import read_outcome

if TYPE_CHECKING:
    from shoestring.parallel.process_group import ProcessGroup

SLURM_RESERVE = 10.0
"""Seconds before the end of an allocation, when the session must have ended."""


@dataclass(frozen=True)
class Finished:
    """A finished run."""

    folder: RunFolder
    plan: Plan
    outcome: Outcome
    evaluation: Evaluation


def run(
    recipe: Recipe,
    reporter: Reporter,
    clock: Clock,
    plan_file: Path | None = None,
    limit: float | None = None,
    until: float | None = None,
) -> Finished | None:
    """Measure, plan, prepare, train, evaluate and report, except what is already done.

    Under torchrun all processes call this; the first one writes, and the others return None. After `limit` seconds, or
    before a Slurm allocation ends, or after the share `until` of the steps, the session saves and stops.
    """
    slurm_job()  # one that has ended is refused before anything is written
    if recipe.strategy == "async":
        if launched().world > 1:
            raise UserError(
                'parallel.strategy = "async": its workers share the memory of one machine; start it without torchrun, '
                'with parallel.workers, or take parallel.strategy = "local", which is the one for several machines'
            )
        return _run(recipe, reporter, clock, plan_file, limit, until)
    if recipe.workers > 1 and launched().world == 1:
        with CorpusWork(task_of(recipe), reporter) as work:
            if plan_file is None and recipe.hmm is None and not RunFolder.of(recipe).plan.is_file():
                work.begin_sampling()  # before torch is loaded
            with started(recipe, plan_file, clock, work.open_here) as watch:
                return _run_together(recipe, reporter, clock, plan_file, limit, until, watch, work)
    if launched().world > 1:
        return _run_together(recipe, reporter, clock, plan_file, limit, until)
    return _run(recipe, reporter, clock, plan_file, limit, until)


def _run_together(
    recipe: Recipe,
    reporter: Reporter,
    clock: Clock,
    plan_file: Path | None,
    limit: float | None,
    until: float | None,
    watch: Callable[[], None] = lambda: None,
    work: CorpusWork | None = None,
) -> Finished | None:
    """As `run`, in one of several processes; `watch` raises when another has ended. `work` may have begun."""
    from shoestring.parallel.peer_memory import peer_memory
    from shoestring.parallel.process_group import sharing_work
    from shoestring.probe.machine import pick_device

    with sharing_work(pick_device(), watch) as group:
        reporter = reporter if group.rank == 0 else Reporter()
        if group.shares_gpus:
            if recipe.parallel is not None and recipe.parallel.shard:
                raise UserError(f"parallel.shard: each of its processes needs its own GPU, and {group.world} share one")
            how = "through the host" if peer_memory(group.device) is None else "in memory that each maps"
            reporter.say(f"{group.world} workers share the GPUs; NCCL takes one per GPU, so they sum {how} (gloo)")
        finished = _run(recipe, reporter, clock, plan_file, limit, until, group, work)
        return finished if group.rank == 0 else None


def _run(
    recipe: Recipe,
    reporter: Reporter,
    clock: Clock,
    plan_file: Path | None,
    limit: float | None,
    until: float | None,
    group: ProcessGroup | None = None,
    work: CorpusWork | None = None,
) -> Finished | None:
    """As `run`, in one process of a group, or in a single process, which loads torch only for training."""
    alone = recipe.workers if recipe.strategy == "async" else 1
    folder, devices = RunFolder.of(recipe), alone if group is None else group.world
    with contextlib.ExitStack() as stack:
        work = stack.enter_context(work or CorpusWork(task_of(recipe), reporter))

        def settle() -> Task:
            if recipe.autos:
                work.begin_sampling()
            return settled(recipe, folder, devices, work.density, plan_file=plan_file)

        with clock.during("plan"):
            task = settle() if group is None else group.on_first(settle)
        stack.callback(task.end_workers)
        with clock.during("measure"):
            measured = None if group is None else _measured_by_all(task, folder, plan_file, group)

        def begin() -> Plan | None:
            """Lock the run, plan it and begin to prepare its data; None where the run is finished."""
            clock.begin("plan")
            task.check(devices)
            given = read_plan(task.recipe, plan_file) if plan_file else None
            stack.enter_context(folder.lock())
            with folder.claiming(recipe):
                keep_choices(task, folder)
                if folder.has_begun:  # its plan is made, and needs no profile
                    folder.check_records(*(path for path in folder.records if path != folder.profile))
                if read_outcome(folder) is not None:
                    return None
                plan = ensure_plan(task, folder, reporter, clock, work, given, devices, measured)
            reporter.planned(plan)
            work.begin_preparing(plan)
            task.fork_workers(work.open_here)  # of a plan that needed no profile
            if group is not None:
                prepared()
            return plan

        def prepared() -> None:
            """Return when the rows are there."""
            with clock.during("prepare"):
                work.wait()
            folder.check()

        plan = begin() if group is None else group.on_first(begin)
        clock.begin("set-up")
        if plan is None:
            plan, outcome = Plan.read(folder.plan), Outcome.read(folder.done)
            if not folder.report.is_file():  # it is written after DONE
                from shoestring.report.page import draw, write_page

                write_page(folder, draw(folder), outcome)
            finished = Finished(folder, plan, outcome, Evaluation.read(folder.evaluation))
            reporter.say(f"{folder.path} is finished; its page is {folder.report}")
            return finished
        from shoestring.parallel.process_group import ProcessGroup
        from shoestring.probe.machine import pick_device
        from shoestring.runs.session import train

        allocated = allocation_end(clock)
        ends = [limit, None if allocated is None else allocated - SLURM_RESERVE]
        end = min((end for end in ends if end is not None), default=None)
        one = group or ProcessGroup.of(pick_device())
        results = train(task, folder, plan, one, reporter, clock, end, prepared, until)
        return None if results is None else Finished(folder, Plan.read(folder.plan), *results)  # it may be final now


def _measured_by_all(task: Task, folder: RunFolder, plan_file: Path | None, group: ProcessGroup) -> Profile | None:
    """The profile that the devices of a group agree on; None where it is not needed."""
    how = measuring_of(task.recipe)

    def needed() -> bool:
        task.check(group.world)
        if plan_file is not None or folder.plan.is_file() or folder.done.is_file():
            return False
        task.before_measuring()
        return own_profile(task, folder, how) is None

    return with_sum(measure_together(task, how, group), group) if group.on_first(needed) else None


def ensure_plan(
    task: Task,
    folder: RunFolder,
    reporter: Reporter,
    clock: Clock,
    work: CorpusWork,
    given: Plan | None = None,
    devices: int = 1,
    measured: Profile | None = None,
) -> Plan:
    """The run's plan: made once, before the first step, and kept, because two runs of one plan are the same run."""
    if folder.plan.is_file():
        plan = read_plan(task.recipe, folder.plan)
        if given is not None and given != plan and not plan.is_final_of(given):
            raise RunError(f"{folder.path} already has another plan than the one given; choose another run.name")
        return plan
    if given is None:
        with clock.during("prepare"):
            task.before_measuring()
        work.begin_sampling()
        with clock.during("measure"):
            task.fork_workers(work.open_here)
            profile = ensure_profile(task, folder, reporter, measuring_of(task.recipe), measured, work.density)
        given = plan_task(task, profile, clock.elapsed(), devices, loaded="torch" in sys.modules)
    folder.write(folder.plan, given)
    return given
