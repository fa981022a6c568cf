"""Runs of a sweep that train nothing: processes that hold the lock of their folder, and do as a file says."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from shoestring.core.sweep_folder import SweepFolder, SweepIndex, SweepRun
from shoestring.studies.sweep.driver import Driver, Job, Result
from shoestring.studies.sweep.slots import Slots

PROCESS = """
import json, os, signal, sys, time
from pathlib import Path
from shoestring.core.run_folder import RunFolder

path, does, starts = sys.argv[1:]
with open(starts, "a") as file:
    file.write(f"{Path(path).name} {os.environ['OMP_NUM_THREADS']}\\n")
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
run = RunFolder(path)
with run.lock():
    (run.path / "begun").touch()
    while does == "wait" and not told and not Path(starts).with_name("go").exists():
        time.sleep(0.01)
    if told:
        print(json.dumps({"error": "stopped by SIGTERM", "exit_code": 1, "kind": "Stopped"}))
        sys.exit(1)
    if does == "fail":
        print(json.dumps({"error": "the loss is not finite", "exit_code": 1, "kind": "Fault"}))
        sys.exit(1)
    if does == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    run.done.touch()
"""


class Listed:
    """The jobs of a list, in order; keeps how they ended."""

    def __init__(self, runs: Sequence[SweepRun]):
        self.waiting, self.results = list(runs), dict[str, Result]()
        self.most, self.left = 0, list[float | None]()

    def next(self, active: Sequence[str], left: float | None) -> Job | None:
        self.most = max(self.most, len(active) + 1)
        self.left.append(left)
        self.waiting = [run for run in self.waiting if run.name not in active]
        return Job(run=self.waiting.pop(0)) if self.waiting else None

    def ended(self, run: SweepRun, result: Result) -> str:
        self.results[run.name] = result
        self.waiting = [each for each in self.waiting if each.name != run.name]
        return f"{run.name} {result.event}"


def make_sweep(folder: Path, *names: str) -> tuple[SweepFolder, SweepIndex]:
    sweep = SweepFolder(folder / "sweep")
    runs = tuple(SweepRun(name=name, folder=f"../runs/{name}", values={}) for name in names)
    index = SweepIndex(name="sweep", fields=(), runs=runs)
    index.write(sweep.index)
    return sweep, index


def command(folder: SweepFolder, job: Job, _left: float | None) -> list[str]:
    """What a run does is the first part of its name."""
    does = job.run.name.partition("-")[0]
    starts = folder.path.parent / "starts"
    return [sys.executable, "-c", PROCESS, str(folder.run_path(job.run)), does, str(starts)]


def started(folder: Path) -> list[str]:
    """The names of the runs in the order of their starts."""
    file = folder / "starts"
    return [line.split()[0] for line in file.read_text().splitlines()] if file.is_file() else []


def drive(folder: Path, at_once: int, *names: str) -> Listed:
    """Run a sweep as a driver does, which holds its lock."""
    from shoestring.core.clock import Clock

    sweep, index = make_sweep(folder, *names)
    order = Listed([run for run in index.runs if not (sweep.run_path(run) / "DONE").exists()])
    with sweep.lock():
        Driver(sweep, Slots(at_once=at_once, threads=1), order, print, Clock(0.0), None, command).run(index)
    return order
