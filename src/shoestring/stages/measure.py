"""Measure: what this machine does with this recipe's training, and how dense its corpus is."""

from __future__ import annotations

import contextlib
import datetime
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.core import recipe_file
from shoestring.core.errors import Fault, RecordError
from shoestring.core.facts import Density, Machine, MemoryLaw, Point, Profile
from shoestring.core.files import write_whole
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.core.schema import encode
from shoestring.core.throughput import smallest_near
from shoestring.data.density import measure_density
from shoestring.data.prepare import with_all_passes
from shoestring.data.sources import open_source
from shoestring.probe.agreement import agree
from shoestring.probe.child import Died, RemoteTrials
from shoestring.probe.measure import Timings, beyond, candidate_batches, law_of, time_batches
from shoestring.probe.search import HOLES, Found, find_largest, largest_within, margin_bytes
from shoestring.probe.trials import Around, Trial
from shoestring.stages.profile_cache import cache_file, keep, read_cached
from shoestring.stages.voice import Voice

if TYPE_CHECKING:
    from shoestring.parallel.team import Team

_TIMEOUT = 900.0
"""Seconds that one request to the child may take; compiling is the longest part of it."""
_SEARCH_SECONDS = {"cuda": 8.0, "cpu": 1.0}
"""At the least, what one pass in a search for the largest batch may take."""


_COMPILED_FACTOR = {False: 16, True: 4}
"""Between batches that are timed where each is compiled anew: for a run that is waiting, and where it was asked for."""
_AS_MEASURED = ("validate_seconds_per_row", "checkpoint_seconds", "checkpoint_bytes", "write_seconds")
_LATE = 2.0
"""Seconds that the first steps may take longer than others: more of it was compiled, and a run finds that done."""


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How a recipe is measured."""

    seconds: float
    """About how long passes are timed."""
    thorough: bool = False
    """Whether the largest batches that fit are looked for, and batches beyond the effective one timed."""
    real: bool = False
    """On the rows of the recipe's own store, read as in training."""
    fresh: bool = False
    """Even if there is a profile."""
    here: bool = False
    """A profile of another machine or of other versions will not do."""


def ensure_profile(
    recipe: Recipe, folder: RunFolder, voice: Voice, how: Measuring, measured: Profile | None = None
) -> Profile:
    """The profile of the run folder, of the user's cache, or measured anew; it is in the run folder then.

    `measured` is one that several processes have just agreed on.
    """
    there = None if how.fresh else own_profile(recipe, folder, how)
    if there is not None and how.here and (elsewhere := there.elsewhere(_this_machine(recipe))):
        voice.say(f"{folder.profile} was {elsewhere}; measuring again")
        there = None
    if there is not None:
        return there
    profile = measured or measure_recipe(recipe, how, voice)
    profile = replace(profile, density=_density(recipe))
    profile.write(folder.profile)
    voice.measured(profile)
    return profile


def own_profile(recipe: Recipe, folder: RunFolder, how: Measuring) -> Profile | None:
    """What the run folder has, if it can be read, is of this workload and as thorough as asked for."""
    if not folder.profile.is_file():
        return None
    try:
        profile = Profile.read(folder.profile)
    except RecordError:
        return None
    same = profile.workload == recipe.workload and (profile.thorough or not how.thorough)
    return profile if same and (profile.real or not how.real) else None


def _this_machine(recipe: Recipe) -> Machine:
    """As a child process sees it, which is gone before anything is measured."""
    with _open_trials(recipe, real=False) as trials:
        return Machine(**trials.machine()["machine"])


def measure_recipe(recipe: Recipe, how: Measuring, voice: Voice) -> Profile:
    """Without density: measured before on such a machine and kept, or measured now in child processes."""
    with _open_trials(recipe, how.real) as trials:
        cached, file = _kept(trials, recipe, how, 1)
        if cached is not None:
            voice.say(f"measured on {cached.date}, kept in {file}; shoestring measure RECIPE --fresh measures again")
            return cached
        profile = _measure(trials, recipe, how)
    keep(profile, file)
    return profile


def measure_together(recipe: Recipe, how: Measuring, team: Team) -> Profile:
    """As `measure_recipe`, called by all processes of a team: each measures its own device at the same time, and they
    agree."""
    with _open_trials(recipe, how.real, team.device.index or 0) as trials:
        cached, file = team.first(_kept, trials, recipe, how, team.world)
        if cached is not None:
            return cached
        profile = agree(team.gather(team.each(_measure, trials, recipe, how)))
    if team.rank == 0:
        keep(profile, file)
    return profile


def _kept(trials: RemoteTrials, recipe: Recipe, how: Measuring, devices: int) -> tuple[Profile | None, Path]:
    """A profile in the cache, if there is one that holds; and its place there."""
    told = trials.machine()
    file = cache_file(recipe, Machine(**told["machine"]), devices, how.real)
    return (None if how.fresh else read_cached(file, how.thorough, told["available_bytes"])), file


@contextlib.contextmanager
def _open_trials(recipe: Recipe, real: bool, local_rank: int = 0) -> Iterator[RemoteTrials]:
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "recipe.toml"
        write_whole(file, recipe_file.dump(recipe))
        arguments = [str(file), str(local_rank), "real" if real else "random"]
        with RemoteTrials([sys.executable, "-m", "shoestring.stages.trial", *arguments], _TIMEOUT) as trials:
            yield trials


def _measure(trials: RemoteTrials, recipe: Recipe, how: Measuring) -> Profile:
    """A child that dies costs its last batch."""
    try:
        return _measured(trials, recipe, how)
    except MemoryError as cause:
        raise Fault(f"measuring failed: the smallest batch does not fit the memory ({cause})") from cause
    except Died as cause:
        raise Fault(f"measuring failed: {cause}") from cause


def _measured(trials: RemoteTrials, recipe: Recipe, how: Measuring) -> Profile:
    compiles = trials.begin(_batches(recipe)[0])
    limit, margin = memory_limit(recipe, compiles)
    searched = how.thorough and limit is not None and compiles["peak_bytes"] is not None
    factor = 2 if compiles["compile_seconds"] is None else _COMPILED_FACTOR[how.thorough]
    batches, most = _batches(recipe, factor), _most_at_once(recipe)
    if not how.thorough:
        batches = [batch for batch in batches if batch <= most]
    found: Found | None = None
    if searched and limit is not None:
        found = _search(trials, compiles, limit, margin, how.seconds, first=_first(recipe))
        trials.close()  # the largest batch is not in the memory of the others
        if found.law.largest is not None and recipe.train.per_device is None:
            batches += beyond(recipe.batch, found.law.largest, factor)
    room = None if limit is None else limit - margin
    timings = time_batches(trials, batches, recipe.batch, room, how.seconds)
    if not timings.trials:
        raise Fault(f"measuring failed: {timings.stopped}")
    # of those that a plan takes, its own choice; those beyond the effective batch are for people
    best = smallest_near([trial.point() for trial in timings.trials if trial.batch <= recipe.batch]).batch
    best = min(best, most)
    scored = recipe.evaluate.rows if recipe.hmm else min(recipe.evaluate.per_device or best, recipe.evaluate.rows)
    scoring: Found | None = None
    if searched and limit is not None:
        scoring = _search(trials, compiles, limit, margin, how.seconds, first=_first(recipe), scoring=True)
    passes = 1 if best >= most else 2  # those after the second are like it
    heaped = compiles["machine"]["device"] == "cpu" and recipe.hmm is None  # its holes depend on what was there before
    again = how.thorough or heaped or compiles["first_seconds"] > _LATE
    if again:  # in a process like a run: it takes over what others have compiled, and has seen no other batch
        trials.close()
    ready = trials.begin(best, passes)
    around = trials.around(best, scored, passes)
    setup = ready["setup_seconds"] + around.score_late_seconds if again else compiles["setup_seconds"]
    beside = _beside(timings, best, around)
    overlap = _overlap(timings, best, around, passes) if compiles["machine"]["device"] == "cuda" else 1.0
    spent = {
        "update_seconds": overlap * around.update_seconds,
        **{name: getattr(around, name) for name in _AS_MEASURED},
    }
    law = law_of(timings, limit, margin)
    if found is not None:  # its trials, and the line through the largest batches that ran
        wider = law is not None and found.law.verified is not None and (law.verified or 0) > found.law.verified
        line = law if wider and law is not None else found.law
        law = replace(found.law, fixed_bytes=line.fixed_bytes, row_bytes=line.row_bytes, verified=line.verified)
    values = {
        "schema": Profile.SCHEMA,
        **{name: value for name, value in compiles.items() if name not in ("first_seconds", "peak_bytes")},
        "setup_seconds": setup,
        "workload": recipe.workload,
        "length": recipe.data.length,
        "points": [
            encode(_as_in_a_run(trial.point(), beside, overlap, {best: around.peak_bytes})) for trial in timings.trials
        ],
        **spent,
        "stopped": _stopped(timings, found),
        "memory": None if law is None else encode(_law_with(law, beside)),
        "validation_memory": None if scoring is None else encode(scoring.law),
        "date": datetime.date.today().isoformat(),
        "real": how.real,
        "thorough": how.thorough,
    }
    return Profile.from_dict(values, "the measurement")


def _beside(timings: Timings, batch: int, around: Around) -> int:
    """Bytes that scoring, saving and several passes an update take beyond one pass over `batch` rows."""
    one = next(trial for trial in timings.trials if trial.batch == batch).usage
    return 0 if one is None or around.peak_bytes is None else max(0, around.peak_bytes - one.reserved)


def _overlap(timings: Timings, batch: int, around: Around, passes: int) -> float:
    """Of a step whose parts are waited for one by one, as they were timed: what it takes where they are not."""
    one = next(trial for trial in timings.trials if trial.batch == batch).point().seconds
    return min(1.0, around.step_seconds / (passes * one + around.update_seconds))


def _as_in_a_run(point: Point, beside: int, overlap: float, known: dict[int, int | None]) -> Point:
    """With the memory of all that a run does, `known` by batch or not, and the seconds of steps that follow at once."""
    times = {name: getattr(point, name) for name in ("seconds", "slowest_seconds", "fastest_seconds")}
    point = replace(point, **{name: value and overlap * value for name, value in times.items()})
    if point.peak_bytes is None:
        return point
    return replace(point, peak_bytes=known.get(point.batch) or point.peak_bytes + beside)


def _law_with(law: MemoryLaw, beside: int) -> MemoryLaw:
    """What does not fit any more with the rest of a run is not called the largest that fits."""
    whole = replace(law, fixed_bytes=law.fixed_bytes + beside)
    if law.largest is None or law.limit_bytes is None or not beside:
        return whole
    fits = largest_within(whole.predict, law.limit_bytes - law.margin_bytes, 0)
    return replace(whole, largest=min(fits, law.largest) or None)


def _batches(recipe: Recipe, factor: int = 2) -> list[int]:
    """Rows at a time that are timed."""
    if recipe.hmm is not None:
        return sorted({_most_at_once(recipe), *(recipe.batch >> shift for shift in range(10, -1, -2))})
    given = recipe.train.per_device
    return candidate_batches(recipe.batch, factor) if given is None else [given]


def _most_at_once(recipe: Recipe) -> int:
    """Rows that a run has at once, however many would be faster: those of an update."""
    hmm = recipe.hmm
    return recipe.batch if hmm is None or hmm.update == "all" else min(recipe.batch, hmm.update_every)


def _first(recipe: Recipe) -> int:
    """Rows of the first trial; those of an HMM are small, and as nothing against what is fixed."""
    return 1 if recipe.hmm is None else recipe.batch >> 10


def memory_limit(recipe: Recipe, facts: dict[str, Any]) -> tuple[int | None, int]:
    """Bytes that may be used and the margin in them: what is free, or the budget where that is less."""
    available, budget = facts["available_bytes"], recipe.budget.memory
    margin = 0 if available is None else margin_bytes(available, facts["machine"]["device"])
    if budget is not None and (available is None or int(budget) <= available - margin):
        return int(budget), 0
    return available, margin


def _search(
    trials: RemoteTrials,
    facts: dict[str, Any],
    limit: int,
    margin: int,
    seconds: float,
    first: int,
    scoring: bool = False,
) -> Found:
    """The largest batch of training, or of scoring beside it; the decisive trials have a process of their own."""

    def trial(batch: int, apart: bool, timed: bool) -> Trial:
        if apart and not scoring:
            trials.close()
        return trials.trial(batch, least=1 if timed else 0, scoring=scoring)

    device = facts["machine"]["device"]
    return find_largest(trial, limit, margin, max(seconds, _SEARCH_SECONDS[device]), first, HOLES[device])


def _stopped(timings: Timings, found: Found | None) -> str:
    """Why larger batches were not timed; and why the largest that fits is not known, where it was looked for."""
    if found is None or found.law.largest is not None:
        return timings.stopped
    return f"{timings.stopped}; the largest that fits was not found: {found.stopped}"


def _density(recipe: Recipe) -> Density | None:
    if recipe.data.stream is not None or recipe.data.source.startswith("store:"):
        return None
    found = measure_density(open_source(recipe.data, recipe.run.seed), recipe.data, recipe.run.seed)
    return with_all_passes(found, recipe.data)
