"""A sweep on Slurm: rows are prepared, arrays have a task for each run, and a job reports."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoestring.core.errors import Fault, UserError
from shoestring.core.files import make_folder, remove, write_whole
from shoestring.core.recipe import Recipe
from shoestring.core.sweep_folder import SweepRun
from shoestring.core.units import counted
from shoestring.planning.make import reserve_seconds
from shoestring.planning.sbatch_array import (
    Array,
    Sweeping,
    array_script,
    prepare_script,
    report_script,
    submit_script,
)
from shoestring.studies.sweep.slurm_jobs import queue
from shoestring.studies.sweep.survey import Survey

MOST_TASKS = 1000
"""Of an array: Slurm's own limit, where nobody has changed it."""
_LEAST_PREPARING = 600.0
"""Seconds of the job that prepares rows, at least."""
_PATIENCE = 600.0
"""Seconds to wait for sbatch."""
_SIMILAR = 2.0
"""Runs whose times and whose bytes lie within this factor share an array."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """How a sweep is to run on Slurm."""

    at_once: int | None = None
    nodes: int = 1
    processes: int = 1
    on_gpu: bool = False
    options: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a run asks for."""

    run: str
    seconds: float
    bytes: int | None


def write_scripts(found: Survey, asked: Asked) -> Path:
    """Write the scripts of the runs that are to do and not queued; returns the one that submits them."""
    queued = queue(found.folder).runs
    runs = [run for run in found.to_do if run.name not in queued]
    if not runs:
        why = (
            f"{counted(len(queued), 'run')} queued already; see shoestring sweep status"
            if queued
            else "all runs are done"
        )
        raise UserError(f"--slurm, --sbatch: there is nothing to do: {why}")
    folder = found.folder
    for place in (folder.slurm, folder.logs):
        make_folder(place)
    for old in folder.slurm.glob("array-*.sh"):
        remove(old)
    sweep = Sweeping(
        name=found.grid.name,
        folder=str(folder.path.resolve()),
        working_folder=str(Path.cwd()),
        python=sys.executable,
        on_gpu=asked.on_gpu,
        threads=found.slots.threads,
        nodes=asked.nodes,
        processes=asked.processes,
        options=asked.options,
    )
    arrays, chains = arrays_of([_need(found, run) for run in runs], asked.at_once)
    scripts = {}
    for number, array in enumerate(arrays):
        script = (folder.slurm / f"array-{number}.sh").resolve()
        write_whole(script, array_script(sweep, array))
        scripts[str(script)] = array.runs
    report, submit = ((folder.slurm / f"{name}.sh").resolve() for name in ("report", "submit"))
    write_whole(report, report_script(sweep))
    prepare = _write_prepare(found, runs, sweep)
    jobs = str(folder.jobs.resolve())
    write_whole(submit, submit_script(scripts, chains, str(report), jobs, None if prepare is None else str(prepare)))
    return folder.slurm / "submit.sh"


def _need(found: Survey, run: SweepRun) -> Need:
    longest = found.seconds(run).high
    return Need(run=run.name, seconds=longest + reserve_seconds(longest), bytes=found.forecasts[run.name].peak_bytes)


def arrays_of(needs: Sequence[Need], at_once: int | None) -> tuple[list[Array], list[int]]:
    """Arrays of runs with similar needs, together at most `at_once` tasks at a time; and to which group each belongs.

    Where there are more groups than tasks at a time, those that are most alike become one. The arrays of one group, as
    one alone may be too large for Slurm, come one after the other.
    """
    groups = _groups(needs)
    while at_once is not None and len(groups) > at_once:
        groups.sort(key=lambda group: (max(need.seconds for need in group), max(need.bytes or 0 for need in group)))
        waste = [_waste(one, other) for one, other in itertools.pairwise(groups)]
        first = waste.index(min(waste))
        groups[first : first + 2] = [groups[first] + groups[first + 1]]
    limits = _limits([sum(need.seconds for need in group) for group in groups], at_once)
    arrays, chains = [], []
    for number, (group, limit) in enumerate(zip(groups, limits)):
        peaks = [need.bytes for need in group if need.bytes is not None]
        whole = Array(
            runs=tuple(need.run for need in group),
            at_once=limit,
            seconds=max(need.seconds for need in group),
            peak_bytes=max(peaks, default=None),
        )
        for first in range(0, len(group), MOST_TASKS):
            arrays.append(replace(whole, runs=whole.runs[first : first + MOST_TASKS]))
            chains.append(number)
    return arrays, chains


def _groups(needs: Sequence[Need]) -> list[list[Need]]:
    """Needs of similar time and memory together, in the order of the first of each."""
    found: dict[tuple[int, int], list[Need]] = {}
    for need in needs:
        minutes, size = max(1.0, need.seconds / 60), max(1.0, (need.bytes or 0) / 2**28)
        key = math.ceil(math.log(minutes, _SIMILAR)), math.ceil(math.log(size, _SIMILAR))
        found.setdefault(key, []).append(need)
    return list(found.values())


def _waste(one: Sequence[Need], other: Sequence[Need]) -> float:
    """Seconds that are asked for in vain where two groups become one."""
    return abs(max(need.seconds for need in one) - max(need.seconds for need in other)) * min(len(one), len(other))


def _limits(work: Sequence[float], at_once: int | None) -> list[int | None]:
    """How many tasks of each group go at a time: one each, and the others to who has most work for each of its own."""
    if at_once is None:
        return [None] * len(work)
    found = [1] * len(work)
    for _ in range(at_once - len(work)):
        shares = [total / count for total, count in zip(work, found)]
        found[shares.index(max(shares))] += 1
    return list(found)


def _write_prepare(found: Survey, runs: Sequence[SweepRun], sweep: Sweeping) -> Path | None:
    """Write the script that prepares the text of the runs, once for each, as much as the largest of them reads."""
    recipes = {planned.name: planned.recipe for planned in found.grid.runs}
    largest: dict[str, str] = {}
    for run in runs:
        recipe = recipes[run.name]
        if not _is_prepared_first(recipe):
            continue
        other = largest.setdefault(recipe.corpus, run.name)
        if _tokens(found, run.name) > _tokens(found, other):
            largest[recipe.corpus] = run.name
    if not largest:
        return None
    files, seconds = {}, 0.0
    for name in largest.values():
        plan = found.forecasts[name].plan
        assert plan is not None, "it is to do"
        file = found.folder.slurm / f"plan-{name}.json"
        write_whole(file, plan.to_text())
        files[str(found.folder.recipe(name).resolve())] = str(file.resolve())
        seconds += plan.parts.get("prepare", 0.0)
    script = (found.folder.slurm / "prepare.sh").resolve()
    write_whole(script, prepare_script(sweep, files, max(_LEAST_PREPARING, 2 * seconds)))
    return script


def _is_prepared_first(recipe: Recipe) -> bool:
    """Whether a run reads a token store; the rows of HMMs are prepared by their plans."""
    data = recipe.data
    return recipe.kind != "hmm" and data.stream is None and data.label is None and data.source.kind != "store"


def _tokens(found: Survey, name: str) -> float:
    plan = found.forecasts[name].plan
    return 0.0 if plan is None else float(plan.tokens or 0)


def submit(script: Path) -> str:
    """Submit what `write_scripts` wrote; returns what it says."""
    try:
        done = subprocess.run(  # noqa: S603 - our own script
            ["bash", str(script)],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
        )
    except subprocess.TimeoutExpired as cause:
        raise Fault(
            f"--slurm: sbatch did not answer in {_PATIENCE:.0f} s; what it took: shoestring sweep status"
        ) from cause
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Fault(f"--slurm: not everything could be submitted ({why}); sweep cancel takes back what was")
    return done.stdout.strip()
