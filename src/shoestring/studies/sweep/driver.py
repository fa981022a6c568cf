"""Run a sweep on this machine: each run in a process of its own, as many at a time as there are places.

The driver keeps nothing that is not in a file. If it is killed, the runs that go on are waited for by the next one, and
what is left is started by it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from shoestring.core.clock import Clock
from shoestring.core.errors import Fault
from shoestring.core.files import holder_of, is_locked, make_folder
from shoestring.core.run_folder import RunFolder
from shoestring.core.sweep_folder import SweepFolder, SweepIndex, SweepRun
from shoestring.studies.sweep.slots import Slots
from shoestring.track import LineFile, read_lines

_LOOK_AGAIN = 0.1
"""Seconds between looks at the processes."""
_STOPPED = "Stopped"
"""The kind of the error of a run that has saved and stopped as it was told."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run to start."""

    run: SweepRun
    options: tuple[str, ...] = ()
    """More words of its command."""
    reason: str = ""
    """Why it is its turn, for people; empty: it is the next one."""


class Order(Protocol):
    """Decides what is run next."""

    def next(self, active: Sequence[str], left: float | None) -> Job | None:
        """The next job, beside the runs that are active; None: there is none now. `left` is the time in seconds."""

    def ended(self, run: SweepRun, result: Result) -> str:
        """Note how a session of a run ended; a line for people, or nothing."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a session of a run ended."""

    event: str
    """ended, stopped or failed."""
    why: str = ""
    seconds: float = 0.0
    said: Mapping[str, Any] = field(default_factory=dict)
    """The object that `train --json` printed."""


def command_of(folder: SweepFolder, job: Job, left: float | None) -> list[str]:
    """The command that runs a job, with the time that is left as its limit."""
    limit = [] if left is None else ["--time", f"{max(1.0, left):.0f}s"]
    recipe = str(folder.recipe(job.run.name))
    return [sys.executable, "-m", "shoestring", "train", recipe, "--json", *limit, *job.options]


@dataclass
class _Place:
    """A place in which a run goes; one that another driver has started has no process here."""

    job: Job
    process: subprocess.Popen[bytes] | None
    files: tuple[IO[bytes], ...] = ()
    began: float = field(default_factory=time.monotonic)


class Driver:
    """Runs jobs until the order has none any more, the time is over, or it is told to stop."""

    def __init__(
        self,
        folder: SweepFolder,
        slots: Slots,
        order: Order,
        say: Callable[[str], None],
        clock: Clock,
        limit: float | None = None,
        command: Callable[[SweepFolder, Job, float | None], list[str]] = command_of,
    ):
        self._folder, self._slots, self._order, self._say = folder, slots, order, say
        self._clock, self._limit, self._command = clock, limit, command
        self._places: dict[int, _Place] = {}
        self._events = LineFile(folder.events)
        self._stop: str | None = None

    def run(self, index: SweepIndex) -> None:
        """Run the jobs. Called by the process that holds the lock of the sweep."""
        make_folder(self._folder.logs)
        self._adopt(index)
        told = False
        with self._listening():
            while True:
                self._fill()
                if not self._places:
                    break
                time.sleep(_LOOK_AGAIN)
                if self._stop is not None and not told:
                    told = True
                    for place in self._places.values():
                        _terminate(place, self._folder)
                self._look()
        if self._stop is not None:
            raise Fault(f"stopped by {self._stop}; its runs are saved, and the same command continues")

    def note(self, event: str, **values: Any) -> None:
        """Write a line of the story."""
        self._events.add(event=event, time=time.time(), **values)

    def _adopt(self, index: SweepIndex) -> None:
        """Wait also for runs that another driver has started, and that go on."""
        places = {line["run"]: line["place"] for line in read_lines(self._folder.events) if "place" in line}
        for run in index.runs:
            own = RunFolder(self._folder.run_path(run))
            if is_locked(own.lock_file):
                place = places.get(run.name, 0)
                while place in self._places:  # it was started by hand, or with fewer places
                    place += 1
                self._places[place] = _Place(Job(run=run), None)
                self._say(f"{run.name}: is running already; it is waited for")

    def _fill(self) -> None:
        """Start jobs in the places that are free."""
        while self._stop is None:
            free = [place for place in range(self._slots.at_once) if place not in self._places]
            left = None if self._limit is None else self._limit - self._clock.elapsed()
            if not free or len(self._places) >= self._slots.at_once:
                return
            job = self._order.next([place.job.run.name for place in self._places.values()], left)
            if job is None:
                return
            self._start(free[0], job, left)

    def _start(self, place: int, job: Job, left: float | None) -> None:
        name = job.run.name
        if job.reason:
            self._say(f"{name}: {job.reason}")
        self.note("started", run=name, place=place, reason=job.reason)
        log, said = self._folder.log(name), _said_by(self._folder, name)
        files = (open(said, "wb"), open(log, "ab"))
        process = subprocess.Popen(  # noqa: S603 - our own command, and no shell
            self._command(self._folder, job, left),
            stdin=subprocess.DEVNULL,
            stdout=files[0],
            stderr=files[1],
            env=os.environ | {"COLUMNS": "120", "NO_COLOR": "1"} | self._slots.environment(place),
            start_new_session=True,  # Ctrl-C is for the driver, which lets its runs save
        )
        self._places[place] = _Place(job, process, files)

    def _look(self) -> None:
        """Note which runs have ended."""
        for number, place in list(self._places.items()):
            own = RunFolder(self._folder.run_path(place.job.run))
            if place.process is None:
                if is_locked(own.lock_file):
                    continue
            elif place.process.poll() is None:
                continue
            for file in place.files:
                file.close()
            del self._places[number]
            result = _result(self._folder, own, place)
            name = place.job.run.name
            self.note(result.event, run=name, seconds=result.seconds, **({"why": result.why} if result.why else {}))
            if line := self._order.ended(place.job.run, result):
                self._say(line)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Let the runs save and stop on SIGTERM, SIGUSR1 and Ctrl-C; a second Ctrl-C ends the driver at once."""

        def stop(number: int, _frame: Any) -> None:
            self._stop = signal.Signals(number).name
            if number == signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)

        if threading.current_thread() is not threading.main_thread():  # only that one receives signals
            yield
            return
        kept = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)


def _terminate(place: _Place, folder: SweepFolder) -> None:
    if place.process is not None:
        with contextlib.suppress(ProcessLookupError):
            place.process.terminate()
    else:
        stop_run(folder, place.job.run)


def _said_by(folder: SweepFolder, name: str) -> Path:
    """What the last session of a run printed for programs."""
    return folder.logs / f"{name}.json"


def _result(folder: SweepFolder, own: RunFolder, place: _Place) -> Result:
    """How the session of a run ended, from its folder and the object that it printed."""
    seconds = time.monotonic() - place.began
    said: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        said = json.loads(_said_by(folder, place.job.run.name).read_bytes())
    if own.done.is_file():
        return Result(event="ended", seconds=seconds, said=said)
    code = None if place.process is None else place.process.returncode
    if said.get("kind") == _STOPPED:
        return Result(event="stopped", seconds=seconds, said=said)
    if "error" in said:
        return Result(event="failed", why=str(said["error"]), seconds=seconds, said=said)
    if code is None or code == -signal.SIGTERM:  # before it could listen
        return Result(event="stopped", seconds=seconds)
    ended = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
    return Result(event="failed", why=f"{ended}; see {folder.log(place.job.run.name)}", seconds=seconds)


def stop_run(folder: SweepFolder, run: SweepRun) -> bool:
    """Tell the process of a run on this host to save and stop; whether there was one."""
    holder = holder_of(RunFolder(folder.run_path(run)).lock_file)
    if holder is None or not holder.is_here:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGTERM)
        return True
    return False


@dataclass(frozen=True, kw_only=True)
class Cancelled:
    """What was told to stop."""

    driver: bool
    runs: tuple[str, ...]
    elsewhere: tuple[str, ...]
    """Runs on other hosts, which cannot be told from here."""


def cancel(folder: SweepFolder) -> Cancelled:
    """Tell the driver of a sweep to stop, and the runs that no driver waits for; each saves first."""
    driver, index = holder_of(folder.lock_file), SweepIndex.read(folder.index)
    # before the driver is told, which may have stopped its runs by the time they are looked for
    holders = [(run, holder_of(RunFolder(folder.run_path(run)).lock_file)) for run in index.runs]
    if driver is not None and driver.is_here:
        with contextlib.suppress(ProcessLookupError):
            os.kill(driver.pid, signal.SIGTERM)
    told, elsewhere = [], []
    for run, holder in holders:
        if holder is not None and not holder.is_here:
            elsewhere.append(f"{run.name} on {holder.host}")
        elif stop_run(folder, run) or holder is not None:
            told.append(run.name)
    here = driver is not None and driver.is_here
    if driver is not None and not here:
        elsewhere.append(f"the driver on {driver.host}")
    return Cancelled(driver=here, runs=tuple(told), elsewhere=tuple(elsewhere))
