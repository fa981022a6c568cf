"""More rows for a run that grows: its store is extended beside it, by a process of the lowest priority.

The run never waits for this. Until the rows are there it repeats those that it has, and where they do not come, it
continues to do so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from shoestring.core.errors import ShoestringError
from shoestring.core.files import unnamed_file
from shoestring.core.host import what_failed
from shoestring.core.registry import dump_added
from shoestring.core.run_folder import RunFolder
from shoestring.runs.trainee import Trainee
from shoestring.track import LineFile
from shoestring.training.checkpoint import State
from shoestring.training.loop import Report, Requests


class Extending(Protocol):
    """The extension of a store, under way."""

    def result(self) -> str | None:
        """None: not yet done; "": done; else why it failed."""

    def close(self) -> None:
        """End it, if it is not done."""


class Child:
    """Extends the store of a run in a process that ends with this one."""

    def __init__(self, folder: RunFolder, share: float):
        arguments = [str(folder.path), repr(share), dump_added()]
        self._stderr = unnamed_file()
        self._process = subprocess.Popen(  # noqa: S603 - this Python, with a module of ours
            [sys.executable, "-m", "shoestring.runs.extend", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            start_new_session=True,  # Ctrl-C is for the run, which then ends this
        )

    def result(self) -> str | None:
        code = self._process.poll()
        if not code:
            return None if code is None else ""
        self._stderr.seek(0)
        return what_failed(self._stderr.read()) or (f"signal {-code}" if code < 0 else f"exit code {code}")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._stderr.close()


@dataclass
class MoreRows:
    """A hook: has more of the corpus prepared when the schedule needs more rows than there are, and begins to read them
    at the same step in all processes."""

    trainee: Trainee
    start: Callable[[float], Extending]
    requests: Requests
    metrics: LineFile
    say: Callable[[str], None]
    first: bool = True
    """Whether this is the first process, which has the rows prepared."""
    _extending: Extending | None = field(default=None, init=False)
    _wanted: float = field(default=0.0, init=False)
    _read: float = field(default=0.0, init=False)
    _failed: bool = field(default=False, init=False)

    def __call__(self, state: State, report: Report) -> State:
        if self.first and not self._failed:
            try:
                self._follow(state)
            except (ShoestringError, OSError) as cause:
                self._fail(state, str(cause))
        share = self.requests.share if self.requests.alone else report.consensus.share
        if share > self._read:
            self._read = share
            self._begin_to_read(state, share, max(state.step, report.begun))
        return state

    def _follow(self, state: State) -> None:
        """Start to prepare what is needed, or see whether it is done."""
        if self._extending is None:
            waiting = self.requests.share > self._read
            share = None if waiting else self.trainee.more_rows(state.schedule.total)
            if share is not None:
                self._wanted, self._extending = share, self.start(share)
            return
        result = self._extending.result()
        if result == "":
            self.requests.share = self._wanted
        if result is not None:
            self.close()
        if result:
            self._fail(state, result)

    def _begin_to_read(self, state: State, share: float, step: int) -> None:
        try:
            rows = self.trainee.get_rows(share, step)
        except ShoestringError as cause:
            self._fail(state, str(cause))
            return
        self.metrics.add(step=self.trainee.label(state), event="more rows", share=share, rows=rows)
        self.say(f"step {state.step:,}: more of the corpus was prepared, and {rows:,} rows are read of it from now on")

    def _fail(self, state: State, why: str) -> None:
        self._failed = True
        why = " ".join(why.split())
        self.say(f"step {state.step:,}: no more of the corpus is prepared, so its rows are repeated: {why}")

    def close(self) -> None:
        if self._extending is not None:
            self._extending.close()
            self._extending = None
