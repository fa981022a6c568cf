"""A sweep before it starts: which runs there are, how they stand, what they take, and what fits the time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from shoestring.core import recipe_file
from shoestring.core.errors import ShoestringError, UserError
from shoestring.core.files import make_folder, write_whole
from shoestring.core.host import free_host_bytes
from shoestring.core.run_folder import RunFolder
from shoestring.core.sweep_folder import SweepFolder, SweepIndex, SweepRun
from shoestring.core.units import Interval, Seconds, counted
from shoestring.runs.prepare import is_prepared, rows_key
from shoestring.runs.reporter import Reporter
from shoestring.studies.sweep.crowd import WORTH, Crowd, crowd
from shoestring.studies.sweep.crowd import shown as crowd_shown
from shoestring.studies.sweep.grid import Grid, Planned
from shoestring.studies.sweep.pilots import Candidate, Pilots, fly, hand_over
from shoestring.studies.sweep.plans import Forecast, estimates, forecasts, schedule, total, work_key
from shoestring.studies.sweep.slots import Slots, this_machine, within_memory
from shoestring.studies.sweep.states import Standing, failures, standing

START_SECONDS = 0.5
"""Of a process, before it loads torch."""
SHOWN = 40
"""Lines of a table of runs."""
HEAD = ("run", "is", "epochs", "seconds", "from")
NONE = Interval(0.0, 0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Survey:
    """All that is known of a sweep before it starts."""

    folder: SweepFolder
    index: SweepIndex
    grid: Grid
    standings: Mapping[str, Standing]
    """By run."""
    forecasts: Mapping[str, Forecast]
    """By run, of those that are to be run."""
    slots: Slots
    limit: float | None
    """Seconds for the whole sweep."""
    ready: frozenset[str] = frozenset()
    """Runs whose text others will have prepared when they start."""
    late: Mapping[str, float] = field(default_factory=dict)
    """More seconds of runs that are the first of their kind, and compile what the others find."""
    notes: tuple[str, ...] = ()
    """What was measured, for people."""

    @property
    def to_do(self) -> list[SweepRun]:
        """The runs that are neither done nor refused, in order."""
        return [run for run in self.index.runs if run.name in self.forecasts and not self.problem(run)]

    def problem(self, run: SweepRun) -> str | None:
        """Why a run cannot be run."""
        now = self.standings[run.name]
        if now.state == "changed":
            return f"its folder holds a run of another recipe ({now.why})"
        found = self.forecasts.get(run.name)
        return None if found is None else found.refusal

    def seconds(self, run: SweepRun) -> Interval:
        """What is left of a run."""
        if (found := self.forecasts.get(run.name)) is None or self.problem(run) is not None:
            return NONE
        left = found.seconds_left(1 - self.standings[run.name].share, run.name in self.ready)
        return Interval(*(each + self.late.get(run.name, 0.0) for each in left))

    @property
    def total(self) -> Interval:
        return total([self.seconds(run) for run in self.to_do], self.slots.at_once)

    def fits(self) -> list[SweepRun]:
        """The runs that end within the limit, if they start in order."""
        runs = self.to_do
        ends = schedule([self.seconds(run).expected for run in runs], self.slots.at_once)
        return [run for run, end in zip(runs, ends) if self.limit is None or end <= self.limit]


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Where the runs of a sweep go, if not on this machine."""

    gpu: str | None = None
    """Plans are estimated for this one; None: nodes are as this machine."""
    devices: int = 1
    """Of each run."""


def survey(
    grid: Grid,
    reporter: Reporter,
    at_once: int | None = None,
    limit: float | None = None,
    elsewhere: Elsewhere | None = None,
) -> Survey:
    """Look at every run of a grid, and plan those that are not done.

    Nothing is written but rows of HMMs, whose number their plans need.
    """
    folder = SweepFolder(Path(grid.sweep.folder) / grid.name)
    index = index_of(grid, folder)
    failed = failures(folder)
    found = {
        run.name: standing(run, RunFolder.of(planned.recipe), planned.recipe, failed)
        for run, planned in zip(index.runs, grid.runs)
    }
    open_runs = [planned for planned in grid.runs if found[planned.name].state not in ("done", "changed")]
    started = time.perf_counter()
    slots = this_machine(len(open_runs), at_once)
    _use_threads(slots)
    spent = START_SECONDS + time.perf_counter() - started  # each run loads torch, as this process has just done
    recipes = [planned.recipe for planned in open_runs]
    if elsewhere is not None and elsewhere.gpu is not None:
        made = estimates(recipes, elsewhere.gpu, elsewhere.devices)
    else:
        made = forecasts(recipes, reporter, spent)
    if elsewhere is None:
        slots = within_memory(slots, [each.peak_bytes for each in made], free_host_bytes())
    else:
        slots = replace(slots, at_once=at_once or max(1, len(open_runs)), reason="if Slurm has room for them")
    notes, late = [], dict[str, float]()
    if elsewhere is None and (tried := _pilots(slots, made)) is not None:
        made = _each(made, partial(_by_pilots, tried))
        late = _late(open_runs, made, tried)
        notes.append(tried.shown())
    elif elsewhere is None and (measured := _crowd(slots, made)) is not None:
        made = _each(made, lambda each: replace(each, crowd=measured))
        notes.append(crowd_shown(measured, slots.at_once))
    by_name = {planned.name: each for planned, each in zip(open_runs, made)}
    return Survey(
        folder=folder,
        index=index,
        grid=grid,
        standings=found,
        forecasts=by_name,
        slots=slots,
        limit=limit if limit is not None else None if grid.sweep.time is None else float(grid.sweep.time),
        ready=_ready(open_runs, made, slots.at_once),
        late=late,
        notes=tuple(notes),
    )


def _pilots(slots: Slots, made: Sequence[Forecast]) -> Pilots | None:
    """What short runs showed; None: they are not worth their time, or failed."""
    candidates = [
        Candidate(recipe=each.recipe, plan=each.plan, profile=each.profile)
        for each in {id(each): each for each in made}.values()
        if each.plan is not None and each.recipe is not None and each.profile is not None
    ]
    return fly(candidates, slots, _expected(slots, made))


def _by_pilots(tried: Pilots, each: Forecast) -> Forecast:
    """The forecast with what short runs showed; a run with a time takes it."""
    if each.plan is None or each.plan.binding == "time":
        return each
    plan, process = tried.seen.corrected(each.plan)
    return replace(each, plan=plan, crowd=process, how="measured")


def _late(runs: Sequence[Planned], made: Sequence[Forecast], tried: Pilots) -> dict[str, float]:
    """More seconds of the first run of each kind that no short run was of; none where nothing is compiled."""
    seen, found = set(tried.keys), dict[str, float]()
    for planned, each in zip(runs, made) if tried.seen.late else ():
        if each.recipe is not None and (key := work_key(each.recipe)) not in seen:
            seen.add(key)
            found[planned.name] = tried.seen.late
    return found


def _expected(slots: Slots, made: Sequence[Forecast]) -> float:
    """Seconds of the sweep, before anything is measured for it."""
    return max(schedule([each.seconds.expected for each in made], slots.at_once), default=0.0)


def _crowd(slots: Slots, made: Sequence[Forecast]) -> Crowd | None:
    """What processes take on this machine; None: not worth measuring, or on GPUs, which they do not share."""
    if slots.gpus or _expected(slots, made) < WORTH:
        return None
    from shoestring.probe.machine import describe_machine, pick_device

    return crowd(slots.at_once, slots.threads, describe_machine(pick_device()).fingerprint)


def _each(made: Sequence[Forecast], change: Callable[[Forecast], Forecast]) -> list[Forecast]:
    """The forecasts with a change; those that were one are one again."""
    known = {id(each): change(each) for each in {id(each): each for each in made}.values()}
    return [known[id(each)] for each in made]


def _ready(runs: Sequence[Planned], made: Sequence[Forecast], at_once: int) -> frozenset[str]:
    """The runs whose rows are on disk when they start: there already, or made by an earlier run; the first ones wait
    for each other."""
    there: dict[str, bool] = {}
    found = set()
    for number, (planned, each) in enumerate(zip(runs, made)):
        if each.plan is None:
            continue
        key = rows_key(planned.recipe)
        if key not in there:
            there[key] = is_prepared(planned.recipe, each.plan)
        elif number >= at_once:
            there[key] = True
        if there[key]:
            found.add(planned.name)
    return frozenset(found)


def _use_threads(slots: Slots) -> None:
    """Count and measure with as many threads as each run will have."""
    import torch

    os.environ["OMP_NUM_THREADS"] = str(slots.threads)
    torch.set_num_threads(slots.threads)


def index_of(grid: Grid, folder: SweepFolder) -> SweepIndex:
    """The index of a grid."""
    place = folder.path.resolve()
    runs = [
        SweepRun(
            name=planned.name,
            folder=os.path.relpath(RunFolder.of(planned.recipe).path.resolve(), place),
            values=planned.values,
        )
        for planned in grid.runs
    ]
    return SweepIndex(name=grid.name, fields=grid.axes.fields, runs=tuple(runs))


def keep(found: Survey) -> list[str]:
    """Write the index and the recipes; lines on runs that are no longer part of the sweep, whose folders stay."""
    said = []
    if found.folder.index.is_file():
        try:
            before = {run.name for run in SweepIndex.read(found.folder.index).runs}
        except ShoestringError as cause:
            raise UserError(f"{found.folder.index}: cannot be read; remove it to begin again ({cause})") from cause
        if gone := sorted(before - set(found.standings)):
            said.append(f"no longer part of the sweep, and kept as they are: {', '.join(gone)}")
    make_folder(found.folder.recipes)
    for planned in found.grid.runs:
        file, text = found.folder.recipe(planned.name), recipe_file.dump(planned.recipe)
        if not file.is_file() or file.read_text() != text:
            write_whole(file, text)
        made = found.forecasts.get(planned.name)
        if made is not None and made.profile is not None and found.standings[planned.name].state == "waiting":
            hand_over(made.profile, planned.recipe, RunFolder.of(planned.recipe))
    found.index.write(found.folder.index)
    return said


def table(found: Survey) -> list[tuple[str, ...]]:
    """A line for each run, at most `SHOWN`: those with a problem first."""
    runs = sorted(found.index.runs, key=lambda run: found.problem(run) is None)
    lines = [_line(found, run) for run in runs[:SHOWN]]
    if len(runs) > SHOWN:
        lines.append((f"… and {len(runs) - SHOWN:,} more", "", "", "", ""))
    return lines


def _line(found: Survey, run: SweepRun) -> tuple[str, ...]:
    now, made = found.standings[run.name], found.forecasts.get(run.name)
    if (problem := found.problem(run)) is not None:
        return run.name, now.state if now.state == "changed" else "refused", "", "", problem
    if made is None or made.plan is None:
        return run.name, now.state, "", "", ""
    state = f"{now.state}, {now.share:.0%} done" if now.share else now.state
    epochs = "" if made.plan.epochs is None else f"{made.plan.epochs:.3g}"
    return run.name, state, epochs, shown(found.seconds(run)), made.how


def shown(seconds: Interval) -> str:
    return seconds.show(lambda value: Seconds(value).short())


def sentences(found: Survey) -> list[str]:
    """How long the sweep takes, and what of it fits."""
    runs, done = found.to_do, sum(now.state == "done" for now in found.standings.values())
    counts = counted(len(found.index.runs), "run") + (f", {done:,} done" if done else "")
    slots = f"{found.slots.at_once} at a time ({found.slots.reason})"
    said = [*found.notes, f"{counts}; {counted(len(runs), 'run')} to do, {slots}: {shown(found.total)} in all"]
    if not runs:
        said = [f"{counts}; nothing to do"]
    if found.limit is not None and runs:
        fitting, limit = len(found.fits()), Seconds(found.limit)
        spare = Seconds(max(0.0, found.limit - found.total.expected)).short()
        if fitting == len(runs):
            said.append(f"all of it fits --time {limit}, with {spare} to spare")
        else:
            said.append(
                f"{fitting:,} of {len(runs):,} runs fit --time {limit}; the same command continues with the others"
            )
    return said


def refusal(problems: Sequence[str]) -> UserError:
    """The error where some runs cannot be run."""
    some = "\n  ".join([f"{counted(len(problems), 'run')} cannot be run, and nothing was started", *problems[:SHOWN]])
    return UserError(f"{some}\nchange them, or run the others with --keep-going")
