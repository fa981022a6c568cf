"""Measure: bytes and seconds of this recipe's training on this machine, and the density of its corpus.

Profiles are kept in the user's cache by machine, versions and workload, so that nothing is measured twice.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from shoestring.core import recipe_file
from shoestring.core.errors import Fault, RecordError, StorageError
from shoestring.core.files import cache_folder, make_folder, write_whole
from shoestring.core.recipe import Recipe, fingerprint
from shoestring.core.records import Machine, MemoryModel, Point, Profile
from shoestring.core.registry import dump_added
from shoestring.core.run_folder import RunFolder
from shoestring.core.schema import encode
from shoestring.core.throughput import smallest_near
from shoestring.core.units import Seconds
from shoestring.planning.split import margin_bytes
from shoestring.probe.agreement import agree
from shoestring.probe.child import Died, RemoteTrials
from shoestring.probe.load import crowded
from shoestring.probe.measure import Timings, beyond, law_of, time_batches
from shoestring.probe.search import FRAGMENTATION, Found, find_largest, largest_within
from shoestring.probe.trials import Overheads, Trial
from shoestring.runs.prepare import recipe_density, with_own_density
from shoestring.runs.reporter import Reporter
from shoestring.runs.task import Task

if TYPE_CHECKING:
    from shoestring.parallel.process_group import ProcessGroup

_TIMEOUT = 900.0
"""Seconds that one request to the child may take; most of that is compiling."""
_SEARCH_SECONDS = {"cuda": 8.0, "cpu": 1.0}
"""What one pass in a search for the largest batch may take, at least."""
_COMPILED_FACTOR = {False: 16, True: 4}
"""By `thorough`, the factor between timed batches where each must be compiled."""
_AS_MEASURED = ("validate_seconds_per_row", "checkpoint_seconds", "checkpoint_bytes", "write_seconds")
_LATE = 2.0
"""Seconds: where the first steps take this much longer than others, kernels were compiled that a run finds ready."""
_DAYS = {"cuda": 30, "cpu": 1}
"""How long a cached profile is valid: a CPU is shared with everything else that runs."""
_MEASURE_SHARE = 0.04
"""Of the time budget, spent on timed passes."""
_MOST_SHARE = 0.2
"""Of the time budget, spent on measuring in all: then nothing more is refined."""
_LAST_SHARE = 0.5
"""Of that, when the last batch is begun, and the process like a run's: what follows takes time too."""
_SILENCE, _LONG_SILENCE = 5.0, 30.0
"""Seconds after which a person reads what is being measured, and that it still is."""


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
    """Seconds after which nothing more is refined."""


def measuring_of(recipe: Recipe) -> Measuring:
    """How a run measures: within a share of its time."""
    most = math.inf if recipe.budget.time is None else _MOST_SHARE * float(recipe.budget.time)
    return Measuring(seconds=measuring_seconds(recipe), most=most)


class Telling:
    """Says what is being done whenever nothing was said for some seconds."""

    def __init__(self, say: Callable[[str], None]):
        self._say, self._now, self._said, self._when = say, "", "", time.monotonic()
        self._began, self._ended = self._when, threading.Event()

    def __call__(self, text: str) -> None:
        """Note what is done from now on."""
        self._now = text
        self.look()

    def look(self) -> None:
        silence = time.monotonic() - self._when
        if silence >= (_SILENCE if self._now != self._said else _LONG_SILENCE):
            took = Seconds(round(time.monotonic() - self._began)).short()
            self._said, self._when = self._now, time.monotonic()
            self._say(f"measuring: {self._now} ({took} so far)")

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            self.look()


def measuring_seconds(recipe: Recipe) -> float:
    """How long the passes of a measurement may take."""
    return min(20.0, max(0.5, _MEASURE_SHARE * float(recipe.budget.time or 50)))


def ensure_profile(
    task: Task, folder: RunFolder, reporter: Reporter, how: Measuring, measured: Profile | None = None
) -> Profile:
    """The profile of the run folder; else that of the user's cache or a new one, written to the run folder.

    `measured` is a profile that several processes have just agreed on.
    """
    own = None if how.fresh else own_profile(task, folder, how)
    if own is not None and how.here:
        with _open_trials(task.recipe, real=False) as trials:  # the machine as a child process sees it
            elsewhere = own.elsewhere(Machine(**trials.machine()["machine"]))
        if elsewhere:
            reporter.say(f"{folder.profile} was {elsewhere}; measuring again")
            own = None
    if own is not None:
        return with_own_density(task.recipe, own)
    profile = replace(measured or measure_task(task, how, reporter), density=recipe_density(task.recipe))
    profile.write(folder.profile)
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
    return profile if same and (profile.real or not how.real) else None


def measure_task(task: Task, how: Measuring, reporter: Reporter) -> Profile:
    """The profile without density: from the cache, or measured now in child processes."""
    with _open_trials(task.recipe, how.real) as trials, Telling(reporter.say) as telling:
        telling("starting a process")
        cached, file = _kept(trials, task, how, 1)
        if cached is not None:
            reporter.say(f"measured on {cached.date}, kept in {file}; shoestring measure RECIPE --fresh measures again")
            return cached
        profile = _measure(trials, task, how, telling)
    if profile.busy is None:
        keep(profile, file)
    else:
        reporter.say(f"the machine is busy: {profile.busy}; the plan may be off, and the profile is not kept")
    return profile


def measure_together(task: Task, how: Measuring, group: ProcessGroup) -> Profile:
    """As `measure_task`, called by all processes of a group: each measures its own device, and they agree."""
    with _open_trials(task.recipe, how.real, group.device.index or 0) as trials:
        cached, file = group.on_first(_kept, trials, task, how, group.world)
        if cached is not None:
            return cached
        found = agree(group.all_gather(group.on_all(_measure, trials, task, how)))
        profile = replace(found, busy=None)  # the processes of a group keep each other busy, as in the run
    if group.rank == 0:
        keep(profile, file)
    return profile


def _kept(trials: RemoteTrials, task: Task, how: Measuring, devices: int) -> tuple[Profile | None, Path]:
    """The valid profile in the cache, if there is one, and its path."""
    facts = trials.machine()
    file = cache_file(task, Machine(**facts["machine"]), devices, how.real)
    return (None if how.fresh else read_cached(file, how.thorough, facts["available_bytes"])), file


def cache_file(task: Task, machine: Machine, devices: int, real: bool) -> Path:
    """The path of a profile in the cache, by machine (with versions), code and workload; on real rows, by these too."""
    recipe = task.recipe
    memory = None if recipe.budget.memory is None else int(recipe.budget.memory)
    rows = [encode(recipe.data), encode(recipe.stream), recipe.run.seed, str(Path(recipe.data.folder).resolve())]
    key = [machine.fingerprint, code_fingerprint(), task.workload, memory, devices, real, rows if real else None]
    return cache_folder() / "profiles" / f"{fingerprint(key)}.json"


@cache
def code_fingerprint(folder: Path = Path(__file__).parents[1]) -> str:
    """Fingerprint of this package's code, which may change without a new version."""
    files = sorted(folder.rglob("*.py"))
    return fingerprint([[str(file.relative_to(folder)), zlib.crc32(file.read_bytes())] for file in files])


def read_cached(file: Path, thorough: bool, free: int | None) -> Profile | None:
    """The profile in `file`, if it is recent, as thorough as requested, and its largest batch fits the free bytes."""
    if not file.is_file():
        return None
    try:
        profile = Profile.read(file)
    except (RecordError, StorageError):  # of another version, or damaged: measured again
        return None
    if profile.date is None or (thorough and not profile.thorough):
        return None
    age = datetime.date.today() - datetime.date.fromisoformat(profile.date)
    model, peaks = profile.memory, [point.peak_bytes for point in profile.points if point.peak_bytes is not None]
    if age.days > _DAYS[profile.machine.device]:
        return None
    if free is None or model is None or not peaks:
        return profile
    largest = model.predict(model.largest) if model.largest is not None else max(peaks)
    return profile if free >= largest + model.margin_bytes else None


def keep(profile: Profile, file: Path) -> None:
    """Write a profile to the cache, without its corpus' density, where the folder can be written."""
    with contextlib.suppress(StorageError):
        make_folder(file.parent)
        replace(profile, density=None).write(file)


@contextlib.contextmanager
def _open_trials(recipe: Recipe, real: bool, local_rank: int = 0) -> Iterator[RemoteTrials]:
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "recipe.toml"
        write_whole(file, recipe_file.dump(recipe))
        arguments = [str(file), str(local_rank), "real" if real else "random", dump_added()]
        with RemoteTrials([sys.executable, "-m", "shoestring.runs.probe_server", *arguments], _TIMEOUT) as trials:
            yield trials


def _measure(trials: RemoteTrials, task: Task, how: Measuring, tell: Callable[[str], None] = _silent) -> Profile:
    """As `_measured`, with the errors of the child as faults."""
    try:
        return _measured(trials, task, how, tell)
    except MemoryError as cause:
        raise Fault(f"measuring failed: the smallest batch does not fit the memory ({cause})") from cause
    except Died as cause:
        raise Fault(f"measuring failed: {cause}") from cause


def _measured(trials: RemoteTrials, task: Task, how: Measuring, tell: Callable[[str], None] = _silent) -> Profile:
    """The profile; `tell` is told what is measured."""
    recipe, batch, most = task.recipe, task.batch, task.most_rows
    began = time.monotonic()

    def over() -> bool:
        return time.monotonic() - began > _LAST_SHARE * how.most

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
        trials.close()  # so that the largest batch is not in the memory of the others
        if found.law.largest is not None and recipe.train.per_device is None:
            batches += beyond(batch, found.law.largest, factor)
    room = None if limit is None else limit - margin
    timings = time_batches(trials, batches, batch, room, how.seconds, over, tell)
    if not timings.trials:
        raise Fault(f"measuring failed: {timings.stopped}")
    # the batch that a plan chooses; those beyond the effective batch are for people
    best = min(most, smallest_near([trial.point() for trial in timings.trials if trial.batch <= batch]).batch)
    scoring = _search(trials, task, compiles, how.seconds, scoring=True) if search else None
    passes = 1 if best >= most else 2  # passes after the second are like it
    heaped = compiles["machine"]["device"] == "cpu" and recipe.kind != "hmm"  # a CPU's heap depends on earlier work
    again = (how.thorough or heaped or compiles["first_seconds"] > _LATE) and not over()
    tell(f"steps, evaluation and a checkpoint at batch {best:,}")
    if again:  # in a process like a run's: it reuses what others compiled, and has seen no other batch
        trials.close()
    ready = trials.begin(best, passes)
    around = trials.around(best, task.scored_rows(best), passes)
    setup = ready["setup_seconds"] + around.score_late_seconds if again else compiles["setup_seconds"]
    beside = _beside(timings, best, around)
    overlap = _overlap(timings, best, around, passes) if compiles["machine"]["device"] == "cuda" else 1.0
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
        **{name: value for name, value in compiles.items() if name not in ("first_seconds", "peak_bytes")},
        "setup_seconds": setup,
        "workload": task.workload,
        "length": recipe.data.length,
        "points": [
            encode(_as_in_a_run(trial.point(), beside, overlap, {best: around.peak_bytes})) for trial in timings.trials
        ],
        "update_seconds": overlap * around.update_seconds,
        **{name: getattr(around, name) for name in _AS_MEASURED},
        "stopped": stopped,
        "memory": None if law is None else encode(_law_with(law, beside)),
        "validation_memory": None if scoring is None else encode(scoring.law),
        "date": datetime.date.today().isoformat(),
        "real": how.real,
        "thorough": how.thorough,
        "busy": _busy(timings, compiles["machine"]),
    }
    return Profile.from_dict(values, "the measurement")


def _busy(timings: Timings, machine: dict[str, Any]) -> str | None:
    """What disturbed the timing on a CPU, for people; None: nothing."""
    if machine["device"] != "cpu":
        return None
    cores = os.cpu_count() or 1
    if timings.others is not None and crowded(timings.others, machine["threads"], cores):
        return f"other processes used {timings.others:.1f} of its {cores} processors"
    if (odd := timings.unsteady()) is not None:
        fastest, slowest = (Seconds(seconds).short() for seconds in (min(odd.times), max(odd.times)))
        return f"passes at batch {odd.batch:,} took {fastest} to {slowest}"
    return None


def _beside(timings: Timings, batch: int, around: Overheads) -> int:
    """Bytes that scoring, saving and several passes per update take beyond one pass over `batch` rows."""
    one = next(trial for trial in timings.trials if trial.batch == batch).usage
    return 0 if one is None or around.peak_bytes is None else max(0, around.peak_bytes - one.reserved)


def _overlap(timings: Timings, batch: int, around: Overheads, passes: int) -> float:
    """The share of a step's timed parts that it takes in a run, which does not wait for the device after each part."""
    one = next(trial for trial in timings.trials if trial.batch == batch).point().seconds
    return min(1.0, around.step_seconds / (passes * one + around.update_seconds))


def _as_in_a_run(point: Point, beside: int, overlap: float, known: dict[int, int | None]) -> Point:
    """A point with the memory of a whole run, `known` for some batches, and the seconds of uninterrupted steps."""
    times = {name: getattr(point, name) for name in ("seconds", "slowest_seconds", "fastest_seconds")}
    point = replace(point, **{name: value and overlap * value for name, value in times.items()})
    if point.peak_bytes is None:
        return point
    return replace(point, peak_bytes=known.get(point.batch) or point.peak_bytes + beside)


def _law_with(law: MemoryModel, beside: int) -> MemoryModel:
    """The memory model with the other bytes of a run, and the largest batch that still fits."""
    whole = replace(law, fixed_bytes=law.fixed_bytes + beside)
    if law.largest is None or law.limit_bytes is None or not beside:
        return whole
    fits = largest_within(whole.predict, law.limit_bytes - law.margin_bytes, 0)
    return replace(whole, largest=min(fits, law.largest) or None)


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
            trials.close()
        return trials.trial(batch, least=1 if timed else 0, scoring=scoring)

    device, (limit, margin) = facts["machine"]["device"], memory_limit(task.recipe, facts)
    assert limit is not None, "without a limit there is nothing to search"
    longest = max(seconds, _SEARCH_SECONDS[device])
    return find_largest(trial, limit, margin, longest, task.first_rows, FRAGMENTATION[device])
