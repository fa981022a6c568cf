"""Measure: bytes and seconds of this recipe's training on this machine, and the density of its corpus.

Everything is asked of `RemoteTrials`: the seconds and bytes of one configuration after the other, in another process,
until all is known or the time for measuring is over. What is not known then is assumed, and the run adapts to its pace.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.core import recipe_file
from shoestring.core.errors import Fault, RecordError
from shoestring.core.files import sweep
from shoestring.core.recipe import Recipe
from shoestring.core.records import Density, Machine, Profile
from shoestring.core.registry import dump_added
from shoestring.core.run_folder import RunFolder
from shoestring.core.schema import encode
from shoestring.core.throughput import smallest_near
from shoestring.core.units import Seconds
from shoestring.planning.room import check_room
from shoestring.planning.split import margin_bytes
from shoestring.probe.agreement import agree
from shoestring.probe.child import Died, OutOfTime, RemoteTrials
from shoestring.probe.load import crowded
from shoestring.probe.measure import Timings, beyond, law_of, time_batches
from shoestring.probe.search import FRAGMENTATION, MOST_ROWS, Found, find_largest
from shoestring.probe.trials import Trial
from shoestring.runs.as_in_a_run import as_in_a_run, below, bytes_beside, law_with, overlap_of, undisturbed
from shoestring.runs.assumptions import assumed_overheads, assumed_profile, ended, first_steps
from shoestring.runs.measure_sums import with_sum_of
from shoestring.runs.prepare import recipe_density, with_own_density
from shoestring.runs.profile_cache import cache_file, keep, read_cached
from shoestring.runs.reporter import Reporter
from shoestring.runs.task import Task
from shoestring.runs.telling import Telling

if TYPE_CHECKING:
    import torch

    from shoestring.parallel.process_group import ProcessGroup

_TIMEOUT = 900.0
"""Seconds that one request to the child may take; most of that is compiling."""
_SEARCH_SECONDS = {"cuda": 8.0, "cpu": 1.0}
"""What one pass in a search for the largest batch may take, at least."""
_SCORING_SECONDS = 1.0
"""What one pass may take in a search for the largest batch to be scored; longer ones would save nothing."""
_COMPILED_FACTOR = {False: 16, True: 4}
"""By `thorough`, the factor between timed batches where each must be compiled."""
_OF_FIRST_STEPS = ("first_seconds", "peak_bytes", "step_seconds")
_AS_MEASURED = ("validate_seconds_per_row", "checkpoint_seconds", "checkpoint_bytes", "write_seconds")
_LATE = 2.0
"""Seconds: where the first steps take this much longer than others, kernels were compiled that a run finds ready."""
_MEASURE_SHARE = 0.04
"""Of the time budget, spent on timed passes."""
_MOST_SHARE = 0.2
"""Of the time budget, spent on measuring in all: then what is known is used."""
_LAST_SHARE, _BATCHES_SHARE = 0.5, 0.7
"""Of that, when the last batch is begun, and when it is ended: what follows takes time too."""


def _silent(_: str) -> None:
    """Tell nothing."""


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How a recipe is measured."""

    seconds: float
    """About how long passes are timed, in total."""
    thorough: bool = False
    """Whether to search for the largest batches that fit, and to time batches beyond the effective one."""
    real: bool = False
    """Measure on the rows of the recipe's own store, read as in training."""
    fresh: bool = False
    """Measure even if there is a profile."""
    here: bool = False
    """Refuse a profile of another machine or other versions."""
    most: float = math.inf
    """Seconds of the whole measurement; a question that is not answered then is ended."""
    count: bool = False
    """Count instead where that can be done, because the first steps of the run will tell."""


def measuring_of(recipe: Recipe) -> Measuring:
    """How a run measures: within a share of its time."""
    most = math.inf if recipe.budget.time is None else _MOST_SHARE * float(recipe.budget.time)
    return Measuring(seconds=measuring_seconds(recipe), most=most, count=True)


def measuring_seconds(recipe: Recipe) -> float:
    """How long the passes of a measurement may take."""
    return min(20.0, max(0.5, _MEASURE_SHARE * float(recipe.budget.time or 50)))


def ensure_profile(
    task: Task,
    folder: RunFolder,
    reporter: Reporter,
    how: Measuring,
    measured: Profile | None = None,
    density: Callable[[], Density | None] | None = None,
) -> Profile:
    """The profile of the run folder; else that of the user's cache or a new one, written to the run folder.

    `measured` is a profile that several processes have just agreed on; `density` samples the corpus.
    """
    if how.count and measured is None and own_profile(task, folder, how) is None:
        measured = at_once(task, how, reporter)
    with _open_trials(task.recipe, how) as trials:
        own = None if how.fresh else own_profile(task, folder, how)
        if own is not None and how.here:
            elsewhere = own.elsewhere(Machine(**trials.machine()["machine"]))  # as a child process sees it
            if elsewhere:
                reporter.say(f"{folder.profile} was {elsewhere}; measuring again")
                own = None
        if own is not None:
            return with_own_density(task.recipe, own)
        profile = measured or measure_task(trials, task, how, reporter)
    if how.thorough and task.recipe.workers > 1 and task.recipe.strategy != "async" and profile.sum_seconds is None:
        profile = with_sum_of(profile, task.recipe.workers)
    profile = replace(profile, density=(density or partial(recipe_density, task.recipe))())
    folder.write(folder.profile, profile)
    if profile.date is not None or not profile.estimated:  # else there is nothing to show
        reporter.measured(profile)
    return profile


def own_profile(task: Task, folder: RunFolder, how: Measuring) -> Profile | None:
    """The profile of the run folder, if it is of this workload, undisturbed, and as thorough as requested."""
    if not folder.profile.is_file():
        return None
    try:
        profile = Profile.read(folder.profile)
    except RecordError:
        return None
    same = profile.workload == task.workload and profile.busy is None and (profile.thorough or not how.thorough)
    counted = profile.estimated and not how.count
    return profile if same and not counted and (profile.real or not how.real) else None


def at_once(task: Task, how: Measuring, reporter: Reporter) -> Profile | None:
    """The profile of this machine without a trial: from the cache, or counted; None: it must be measured."""
    from shoestring.probe.machine import pick_device
    from shoestring.runs.counted import counted_profile

    device = pick_device()
    cached, file = _kept_here(task, how, device, 1)
    if cached is not None:
        reporter.say(_where_kept(cached, file))
    return cached or counted_profile(task, device, task.recipe.workers if task.recipe.strategy == "async" else 1)


def at_once_together(task: Task, how: Measuring, group: ProcessGroup) -> Profile | None:
    """As `at_once`, called by all processes of a group."""
    from shoestring.runs.counted import counted_profile

    cached, _ = group.on_first(_kept_here, task, how, group.device, group.world)
    if cached is not None:
        return cached
    everyone = group.all_gather(group.on_all(counted_profile, task, group.device, group.world))
    known = [profile for profile in everyone if profile is not None]
    return agree(known) if len(known) == group.world else None


def _kept_here(task: Task, how: Measuring, device: torch.device, devices: int) -> tuple[Profile | None, Path]:
    """The valid profile in the cache, if there is one, and its path, as this process sees the machine."""
    from shoestring.probe.machine import available_bytes, describe_machine

    file = cache_file(task, describe_machine(device), devices, how.real)
    return read_cached(file, how.thorough, available_bytes(device)), file


def _where_kept(profile: Profile, file: Path) -> str:
    return f"measured on {profile.date}, kept in {file}; shoestring measure RECIPE --fresh measures again"


def measure_unkept(task: Task, how: Measuring, reporter: Reporter) -> Profile:
    """The profile without density, from the cache or measured now; no run folder is written."""
    with _open_trials(task.recipe, how) as trials:
        return measure_task(trials, task, how, reporter)


def measure_task(trials: RemoteTrials, task: Task, how: Measuring, reporter: Reporter) -> Profile:
    """The profile without density: from the cache, or measured now."""
    with Telling(reporter.say) as telling:
        telling("starting a process")
        cached, file = _kept(trials, task, how, 1)
        if cached is not None and file is not None:
            reporter.say(_where_kept(cached, file))
            return cached
        profile = _measure(trials, task, how, telling)
    if profile.busy is None and file is not None:
        keep(profile, file)
    else:
        reporter.say(f"{profile.busy}; the run adapts to its real pace, and the profile is not kept")
    return profile


def measure_together(task: Task, how: Measuring, group: ProcessGroup) -> Profile:
    """As `measure_task`, called by all processes of a group: each measures its own device, and they agree."""
    if how.count and (found := at_once_together(task, how, group)) is not None:
        return found
    with _open_trials(task.recipe, how, group.device.index or 0) as trials:
        cached, file = group.on_first(_kept, trials, task, how, group.world)
        if cached is not None:
            return cached
        found = agree(group.all_gather(group.on_all(_measure, trials, task, how)))
        profile = replace(found, busy=None)  # the processes of a group keep each other busy, as in the run
    if group.rank == 0 and file is not None and not found.estimated:
        keep(profile, file)
    return profile


def _kept(trials: RemoteTrials, task: Task, how: Measuring, devices: int) -> tuple[Profile | None, Path | None]:
    """The valid profile in the cache, if there is one, and its path, if the time was not over before it was known."""
    try:
        facts = trials.machine()
    except OutOfTime:
        return None, None
    machine = facts["machine"]
    check_room(task.recipe, machine["device"], facts["available_bytes"], f"free on {machine['device_name']}")
    file = cache_file(task, Machine(**machine), devices, how.real)
    return (None if how.fresh else read_cached(file, how.thorough, facts["available_bytes"])), file


@contextlib.contextmanager
def _open_trials(recipe: Recipe, how: Measuring, local_rank: int = 0) -> Iterator[RemoteTrials]:
    """What is asked; the time for measuring begins."""
    arguments = [str(local_rank), "real" if how.real else "random", dump_added()]
    command = [sys.executable, "-m", "shoestring.runs.probe_server", *arguments]
    try:
        with RemoteTrials(command, _TIMEOUT, {"recipe": recipe_file.dump(recipe)}) as trials:
            trials.until = time.monotonic() + how.most
            yield trials
    finally:
        sweep(Path(recipe.run.folder))  # a child that was ended may have been writing a checkpoint there


def _measure(trials: RemoteTrials, task: Task, how: Measuring, tell: Callable[[str], None] = _silent) -> Profile:
    """As `_measured`, with the errors of the child as faults, and assumptions where the time was over too early."""
    try:
        return _measured(trials, task, how, tell)
    except OutOfTime:
        if math.isinf(how.most):
            raise
        return assumed_profile(task, how.most, _MOST_SHARE)
    except MemoryError as cause:
        raise Fault(f"measuring failed: the smallest batch does not fit the memory ({cause})") from cause
    except Died as cause:
        raise Fault(f"measuring failed: {cause}") from cause


def _measured(trials: RemoteTrials, task: Task, how: Measuring, tell: Callable[[str], None] = _silent) -> Profile:
    """The profile; `tell` is told what is measured."""
    recipe, batch, most = task.recipe, task.batch, task.most_rows
    until = trials.until

    def used(share: float) -> float:
        """When this share of the time for measuring is over."""
        return until if math.isinf(how.most) else until - (1 - share) * how.most

    def over() -> bool:
        return time.monotonic() > used(_LAST_SHARE)

    tell(f"the first steps, at batch {task.trial_rows(2)[0]:,}")
    compiles = trials.begin(task.trial_rows(2)[0])
    limit, margin = memory_limit(recipe, compiles)
    factor = 2 if compiles["compile_seconds"] is None else _COMPILED_FACTOR[how.thorough]
    batches = task.trial_rows(factor)
    if not how.thorough:
        batches = [rows for rows in batches if rows <= most]
    found = None
    if search := how.thorough and limit is not None and compiles["peak_bytes"] is not None:
        tell("the largest batch that fits")
        found = _search(trials, task, compiles, how.seconds)
        trials.renew()  # so that the largest batch is not in the memory of the others
        if found.law.largest is not None and recipe.train.per_device is None:
            batches += beyond(batch, found.law.largest, factor)
    room = None if limit is None else limit - margin
    trials.until = used(_BATCHES_SHARE)
    timings = time_batches(trials, batches, batch, room, how.seconds, over, tell)
    trials.until = until
    if not timings.trials and timings.late:
        timings = timings._replace(trials=(first_steps(task, compiles),))
    if not timings.trials:
        raise Fault(f"measuring failed: {timings.stopped}")
    disturbed = _busy(timings, compiles["machine"])
    scoring = _search(trials, task, compiles, how.seconds, scoring=True) if search else None
    heaped = compiles["machine"]["device"] == "cpu" and recipe.kind != "hmm"  # a CPU's heap depends on earlier work
    again = how.thorough or heaped or compiles["first_seconds"] > _LATE
    setup, assumed, fitted = compiles["setup_seconds"], False, False
    while not fitted:
        points = [trial.point() for trial in timings.trials]
        if disturbed:
            points = [replace(point, seconds=point.fastest_seconds or point.seconds) for point in points]
        # the batch that a plan chooses; those beyond the effective batch are for people
        best = min(most, smallest_near([point for point in points if point.batch <= batch]).batch)
        passes = 1 if best >= most else 2  # passes after the second are like it
        tell(f"steps, evaluation and a checkpoint at batch {best:,}")
        if again:  # in a process like a run's: it reuses what others compiled, and has seen no other batch
            trials.renew()
        fitted = True
        try:
            ready = trials.begin(best, passes)
            around = trials.around(best, task.scored_rows(best, compiles["machine"]["device"]), passes)
            setup = ready["setup_seconds"] + around.score_late_seconds if again else setup
            around = undisturbed(around, timings, best) if disturbed else around
        except OutOfTime:
            if math.isinf(how.most):
                raise
            around, assumed = assumed_overheads(task, compiles, points, best, passes), True
            disturbed = disturbed or f"{ended(how.most)} before evaluations and checkpoints were timed"
        except MemoryError as cause:
            timings, fitted = below(timings, best, cause), False
    beside = bytes_beside(timings, best, around)
    overlap = overlap_of(timings, best, around, passes) if compiles["machine"]["device"] == "cuda" else 1.0
    law = law_of(timings, limit, margin)
    if found is not None:  # the trials of the search, and the line through the largest batches that ran
        wider = law is not None and found.law.verified is not None and (law.verified or 0) > found.law.verified
        line = law if wider and law is not None else found.law
        law = replace(found.law, fixed_bytes=line.fixed_bytes, row_bytes=line.row_bytes, verified=line.verified)
    stopped = timings.stopped
    if found is not None and found.law.largest is None:
        stopped += f"; the largest that fits was not found: {found.stopped}"
    values = {
        "schema": Profile.SCHEMA,
        **{name: value for name, value in compiles.items() if name not in _OF_FIRST_STEPS},
        "setup_seconds": setup,
        "workload": task.workload,
        "length": recipe.data.length,
        "points": [encode(as_in_a_run(point, beside, overlap, {best: around.peak_bytes})) for point in points],
        "update_seconds": overlap * around.update_seconds,
        **{name: getattr(around, name) for name in _AS_MEASURED},
        "stopped": stopped,
        "memory": None if law is None else encode(law_with(law, beside)),
        "validation_memory": None if scoring is None else encode(scoring.law),
        "date": datetime.date.today().isoformat(),
        "real": how.real,
        "thorough": how.thorough,
        "busy": disturbed,
        "estimated": assumed,
    }
    return Profile.from_dict(values, "the measurement")


def _busy(timings: Timings, machine: dict[str, Any]) -> str | None:
    """What disturbed the timing on a CPU, for people; None: nothing."""
    if machine["device"] != "cpu":
        return None
    cores, why = os.cpu_count() or 1, None
    if timings.others is not None and crowded(timings.others, machine["threads"], cores):
        why = f"other processes used {timings.others:.1f} of its {cores} processors"
    elif (odd := timings.unsteady()) is not None:
        fastest, slowest = (Seconds(seconds).short() for seconds in (min(odd.times), max(odd.times)))
        why = f"passes at batch {odd.batch:,} took {fastest} to {slowest}"
    return why and f"the machine is busy: {why}; the plan takes the fastest passes"


def memory_limit(recipe: Recipe, facts: dict[str, Any]) -> tuple[int | None, int]:
    """Bytes that may be used, and the margin in them: what is free, or the budget where that is less."""
    available, budget = facts["available_bytes"], recipe.budget.memory
    margin = 0 if available is None else margin_bytes(available, facts["machine"]["device"])
    if budget is not None and (available is None or int(budget) <= available - margin):
        return int(budget), 0
    return available, margin


def _search(trials: RemoteTrials, task: Task, facts: dict[str, Any], seconds: float, scoring: bool = False) -> Found:
    """The largest batch of training, or of scoring beside it; the decisive training trials have their own process."""

    def trial(batch: int, apart: bool, timed: bool) -> Trial:
        if apart and not scoring:
            trials.renew()
        return trials.trial(batch, least=1 if timed else 0, scoring=scoring)

    device, (limit, margin) = facts["machine"]["device"], memory_limit(task.recipe, facts)
    assert limit is not None, "without a limit there is nothing to search"
    longest, most = max(seconds, _SEARCH_SECONDS[device]), MOST_ROWS
    if scoring:  # a run scores no more rows in one pass
        longest, most = _SCORING_SECONDS, task.scored_rows(task.recipe.evaluate.rows, device)
    return find_largest(trial, limit, margin, longest, task.first_rows, FRAGMENTATION[device], most)
