"""What the runs of a sweep take, before any of them starts.

Runs that differ only in what costs nothing, as the seed, share a plan. A network is counted; what cannot be counted is
measured, for a few runs, and scaled by FLOPs for the others. No run folder is written.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shoestring.core.errors import ShoestringError
from shoestring.core.recipe import Recipe, fingerprint
from shoestring.core.records import Density, Plan, Profile
from shoestring.core.run_folder import RunFolder
from shoestring.core.schema import encode
from shoestring.core.units import Interval
from shoestring.planning.alternatives import ESTIMATE_ERROR, scaled_profile
from shoestring.planning.history import Correction
from shoestring.runs.measure import measure_unkept, measuring_of, own_profile
from shoestring.runs.plan import corrected_plan, learned
from shoestring.runs.prepare import is_prepared, recipe_density, specials_per_row
from shoestring.runs.profile_cache import cache_file, read_cached
from shoestring.runs.reporter import Reporter
from shoestring.runs.settle import settled
from shoestring.runs.task import Task
from shoestring.studies.sweep.crowd import Crowd, of_plan

if TYPE_CHECKING:
    from shoestring.runs.counted import Here

FREE = {
    "run": ("name", "seed"),
    "train": ("lr", "weight_decay", "beta1", "beta2", "warmup", "least_warmup", "final_lr", "clip"),
    "hmm": ("prior", "concentration"),
}
"""Fields that change neither the seconds nor the bytes of a run."""
MOST_MEASURED = 3
"""Workloads that are measured where none can be counted: the smallest, the largest, and one between."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a run takes; where its plan is refused, why."""

    plan: Plan | None
    how: str
    """counted, measured or scaled; empty for a refusal."""
    refusal: str | None = None
    recipe: Recipe | None = None
    """With numbers in place of "auto"; None for a refusal."""
    profile: Profile | None = None
    """That it was planned by."""
    crowd: Crowd | None = None
    """What processes take besides; None: not measured."""

    @property
    def seconds(self) -> Interval:
        """Of the whole run, in a process of its own."""
        return self.seconds_left(1.0)

    def seconds_left(self, left: float, ready: bool = False) -> Interval:
        """Of a share of the run, in a process of its own; `ready`: another run prepares its rows."""
        if self.plan is None or self.plan.seconds is None:
            return Interval(0.0, 0.0, 0.0)
        found = (self.crowd or of_plan(self.plan)).seconds(self.plan, left)
        if not ready or left < 1 or self.plan.binding == "time":
            return found
        spared = min(found.low, self.plan.parts.get("prepare", 0.0))
        return Interval(*(each - spared for each in found))

    @property
    def peak_bytes(self) -> int | None:
        return None if self.plan is None else self.plan.peak_bytes


def forecasts(recipes: Sequence[Recipe], reporter: Reporter, spent: float = 0.0) -> list[Forecast]:
    """The forecast of each run on one device of this machine, with as many threads as this process has.

    A process takes `spent` seconds before it plans.
    """
    planner = _Planner(reporter, spent)
    keys = [cost_key(recipe) for recipe in recipes]
    first = dict(zip(reversed(keys), reversed(recipes)))
    found = planner.plan_all({key: first[key] for key in dict.fromkeys(keys)})
    return [found[key] for key in keys]


def estimates(recipes: Sequence[Recipe], gpu: str, devices: int) -> list[Forecast]:
    """The forecast of each run on GPUs that are not here, by arithmetic alone."""
    from shoestring.runs.estimate import plan_on_gpu
    from shoestring.runs.prepare import vocabulary_of

    found: dict[str, Forecast] = {}
    keys = [cost_key(recipe) for recipe in recipes]
    for key, recipe in zip(keys, recipes):
        if key in found:
            continue
        with _refused(found, key):
            plan = plan_on_gpu(recipe, vocabulary_of(recipe, None), gpu, devices)
            found[key] = Forecast(plan=plan, how="estimated")
    return [found[key] for key in keys]


def cost_key(recipe: Recipe) -> str:
    """What determines the cost of a run."""
    parts = {section: fields for section, fields in encode(recipe).items() if fields is not None}
    for section, names in FREE.items():
        if section in parts:
            parts[section] = {name: value for name, value in parts[section].items() if name not in names}
    return fingerprint(parts)


def work_key(recipe: Recipe) -> str:
    """What decides the seconds of each part of a run, however many steps and evaluations it has."""
    parts = {section: fields for section, fields in encode(recipe).items() if fields is not None}
    for section in ("run", "budget", "track"):
        parts.pop(section, None)
    for section, names in (*FREE.items(), ("evaluate", ("every",)), ("data", ("folder",))):
        if section in parts:
            parts[section] = {name: value for name, value in parts[section].items() if name not in names}
    return fingerprint(parts)


class _Planner:
    """Plans recipes, and looks up once what they share."""

    def __init__(self, reporter: Reporter, spent: float):
        self._reporter, self._spent = reporter, spent
        self._densities: dict[str, Density | None] = {}
        self._making: dict[str, float] = {}
        """Seconds in which rows of HMMs were made, by their text."""
        self._corrections: dict[tuple[str, str, str], Correction] = {}
        self._here: Here | None = None

    def plan_all(self, recipes: Mapping[str, Recipe]) -> dict[str, Forecast]:
        """The forecast of each recipe; those that can neither be counted nor are measured come last."""
        found: dict[str, Forecast] = {}
        open_tasks: dict[str, Task] = {}
        measured: dict[str, Profile] = {}
        for key, recipe in recipes.items():
            with _refused(found, key):
                task = self._task(recipe)
                profile = self._known(task, RunFolder.of(recipe))
                if profile is None:
                    open_tasks[key] = task
                    continue
                if not profile.estimated:
                    measured[task.workload] = profile
                found[key] = self._forecast(task, profile, "counted" if profile.estimated else "measured")
        self._measure(open_tasks, measured, found)
        for key, task in open_tasks.items():
            if key in found:
                continue
            with _refused(found, key):
                own = measured.get(task.workload)
                profile = own or _scaled(task, list(measured.values()))
                found[key] = self._forecast(task, profile, "measured" if own is not None else "scaled")
        return found

    def _task(self, recipe: Recipe) -> Task:
        task = settled(recipe, RunFolder.of(recipe), density=lambda: self._density(recipe), speed=self._speed)
        task.check(1)
        if recipe.hmm is not None and not is_prepared(recipe):
            began = time.perf_counter()
            task.before_measuring()
            self._making[recipe.corpus] = time.perf_counter() - began
        return task

    def _known(self, task: Task, folder: RunFolder) -> Profile | None:
        """The profile of the run folder or the cache, or a counted one; None: it must be measured."""
        from shoestring.runs.counted import counted_profile

        if (own := own_profile(task, folder, measuring_of(task.recipe))) is not None:
            return own
        here = self.here()
        kept = read_cached(cache_file(task, here.machine, 1, real=False), thorough=False, free=here.free)
        found = kept or counted_profile(task, here.device, here=here)
        if found is None and task.recipe.kind != "hmm":  # memory is tight, which the run measures; its time is counted
            found = counted_profile(task, here.device, here=here._replace(free=None))
        return found

    def _measure(self, tasks: dict[str, Task], measured: dict[str, Profile], found: dict[str, Forecast]) -> None:
        """Measure some of the workloads; one that fails is told of, and another one is measured."""
        sizes: dict[str, tuple[float, str]] = {}
        for key, task in tasks.items():
            sizes.setdefault(task.workload, (task.cost().train_flops_per_token * task.recipe.data.length, key))
        ordered = [key for _, key in sorted(sizes.values())]
        chosen = dict.fromkeys(ordered[at] for at in (0, -1, len(ordered) // 2)) if ordered else {}
        for key in list(chosen)[: max(0, MOST_MEASURED - len(measured))]:
            task = tasks[key]
            with _refused(found, key):
                task.before_measuring()
                measured[task.workload] = measure_unkept(task, measuring_of(task.recipe), self._reporter)

    def _forecast(self, task: Task, profile: Profile, how: str) -> Forecast:
        recipe, density = task.recipe, self._density(task.recipe)
        if density is not None:
            density = replace(density, row_specials=specials_per_row(recipe))
        profile = replace(profile, density=density)
        error = ESTIMATE_ERROR if how == "scaled" else 0.0
        correction = self._correction(recipe, profile)
        plan = corrected_plan(task, profile, correction, self._spent, 1, error, True)
        if (making := self._making.get(recipe.corpus)) is not None:  # as others of the sweep will, with another seed
            plan = with_part(plan, "prepare", making)
        return Forecast(plan=plan, how=how, recipe=recipe, profile=profile)

    def _density(self, recipe: Recipe) -> Density | None:
        key = recipe.corpus
        if recipe.data.stream is not None:
            return None
        if key not in self._densities:
            self._densities[key] = recipe_density(recipe)
        return self._densities[key]

    def _correction(self, recipe: Recipe, profile: Profile) -> Correction:
        key = (recipe.run.folder, recipe.kind, profile.machine.fingerprint)
        if key not in self._corrections:
            self._corrections[key] = learned(recipe, profile)
        return self._corrections[key]

    def here(self) -> Here:
        if self._here is None:
            from shoestring.probe.machine import pick_device
            from shoestring.runs.counted import look

            self._here = look(pick_device())
        return self._here

    def _speed(self, recipe: Recipe) -> tuple[str, float]:
        from shoestring.runs.counted import PASS_SHARE

        here = self.here()
        return here.device.type, PASS_SHARE[here.device.type] * here.flops(recipe)


def with_part(plan: Plan, name: str, seconds: float) -> Plan:
    """The plan with one more part."""
    assert plan.seconds is not None, "a plan that was made has seconds"
    low, high = plan.intervals.get("seconds", (plan.seconds, plan.seconds))
    return replace(
        plan,
        parts=plan.parts | {name: seconds},
        seconds=plan.seconds + seconds,
        intervals=plan.intervals | {"seconds": (low + seconds, high + seconds)},
    )


@contextlib.contextmanager
def _refused(found: dict[str, Forecast], key: str) -> Iterator[None]:
    """Keep the message of a plan that is refused as the forecast of its run."""
    try:
        yield
    except ShoestringError as error:
        found[key] = Forecast(plan=None, how="", refusal=str(error))


def _scaled(task: Task, measured: Sequence[Profile]) -> Profile:
    """The nearest measured profile by FLOPs, scaled as seconds grow between the two nearest."""
    cost, length = task.cost(), task.recipe.data.length
    flops = cost.train_flops_per_token * length

    def work(profile: Profile) -> float:
        return profile.cost.train_flops_per_token * profile.length

    def row(profile: Profile) -> float:
        return min(point.seconds / point.batch for point in profile.points)

    nearest, *others = sorted(measured, key=lambda profile: abs(math.log(flops / work(profile))))
    exponent = 1.0
    for other in others[:1]:
        if work(other) != work(nearest) and row(other) > 0 and row(nearest) > 0:
            found = math.log(row(other) / row(nearest)) / math.log(work(other) / work(nearest))
            exponent = min(1.0, max(0.0, found))
    return scaled_profile(nearest, cost, length, task.workload, exponent)[0]


def schedule(seconds: Sequence[float], at_once: int) -> list[float]:
    """When each run ends, if they start in this order and so many run at a time."""
    free = [0.0] * max(1, at_once)
    ends = []
    for each in seconds:
        end = heapq.heappop(free) + each
        heapq.heappush(free, end)
        ends.append(end)
    return ends


def total(forecast: Sequence[Interval], at_once: int) -> Interval:
    """The time of the whole sweep; its ends are those of all runs together."""
    return Interval(*(max(schedule([each[part] for each in forecast], at_once), default=0.0) for part in range(3)))
