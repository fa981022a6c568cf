"""The corpus of a run, sampled and prepared: in a forked process while this one loads torch and builds the model.

The fork is taken before torch is loaded, and serves both requests. Where a process cannot be forked safely, as one with
threads, the same work is done in this one when its result is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import select
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any, Self

from shoestring.core.errors import Fault
from shoestring.core.records import Density, Plan
from shoestring.data.store.pool import begin_loading
from shoestring.runs.prepare import recipe_density
from shoestring.runs.reporter import Reporter
from shoestring.runs.task import Task

_SET_DEATH_SIGNAL = 1
_MANY_CORES = 4
"""With so many, a process may load what preparing needs before it is known whether several will prepare."""
_PATIENCE = 5.0
"""Seconds that the process has to remove what it was writing, before it is killed."""


class CorpusWork:
    """What a run needs of its corpus; `close` ends what is under way."""

    def __init__(self, task: Task, reporter: Reporter, fork: bool | None = None):
        """`fork`: None decides by whether it is safe, and there is a core for it."""
        self._task, self._reporter = task, reporter
        self._fork = can_fork() if fork is None else fork
        self._process: Any = None
        self._pipe: Connection | None = None
        self._sampled: Density | None = None
        self._is_sampled = False
        self._plan: Plan | None = None
        self._asked = 0
        """Requests under way."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def open_here(self) -> list[Connection]:
        """What must be open in this process alone: it ends the other one by closing it."""
        return [] if self._pipe is None else [self._pipe]

    def begin_sampling(self) -> None:
        """Begin to look how much the corpus holds."""
        if not self._is_sampled and self._start():
            self._send("sample", None)
            self._is_sampled = True

    def density(self) -> Density | None:
        """How much the corpus holds; None where there is none to prepare."""
        if not self._is_sampled:
            return recipe_density(self._task.recipe)
        if self._pipe is not None and self._sampled is None:
            self._sampled = self._result()
        return self._sampled

    def begin_preparing(self, plan: Plan) -> None:
        """Begin to make the rows that the plan reads."""
        self._plan = plan
        if self._start():
            self._send("prepare", plan)

    def wait(self) -> None:
        """Return when the rows are there."""
        if self._plan is None:
            return
        if self._pipe is None:
            self._task.prepare(self._plan, self._reporter)
        else:
            from shoestring.data.store.shards import trust  # loads numpy

            while self._asked > 1:  # a sample that nobody needed, because there was a profile
                self._result()
            trust(self._result())
            self.close()
        self._plan = None

    def close(self) -> None:
        """End the process, if there is one: it removes what it was writing."""
        if self._process is None or self._pipe is None:
            return
        self._pipe.close()  # it ends when it reads the next request
        if self._asked and self._process.is_alive():
            os.kill(self._process.pid, signal.SIGINT)
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process = self._pipe = None

    def _start(self) -> bool:
        """Whether there is a process for it; it is started if need be."""
        if self._process is None and self._fork:
            context = multiprocessing.get_context("fork")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, self._pipe, self._task))
            self._process.start()
            theirs.close()
        return self._process is not None

    def _send(self, request: str, plan: Plan | None) -> None:
        assert self._pipe is not None
        self._asked += 1
        with contextlib.suppress(BrokenPipeError):  # it has died; the missing answer shows it
            self._pipe.send((request, plan))

    def _result(self) -> Any:
        """The answer to the request under way; what it says meanwhile is passed on."""
        assert self._pipe is not None
        while True:
            try:
                kind, value = self._pipe.recv()
            except (EOFError, ConnectionResetError) as cause:
                self._process.join()
                code = self._process.exitcode
                raise Fault(f"the process that prepares the corpus died (exit code {code}); run again") from cause
            if kind in ("done", "failed"):
                self._asked -= 1
            if kind == "done":
                return value
            if kind == "failed":
                raise value
            getattr(self._reporter, kind)(*value)


def can_fork() -> bool:
    """Whether this process has no thread and no torch that a fork would tear, and there is a second core."""
    alone = threading.active_count() == 1 and "torch" not in sys.modules
    return sys.platform == "linux" and alone and len(os.sched_getaffinity(0)) > 1


class _Forwarding(Reporter):
    """Sends what a person should read to the process that shows it; progress only where it is read at once."""

    def __init__(self, pipe: Connection):
        self._pipe = pipe

    def say(self, text: str) -> None:
        self._pipe.send(("say", (text,)))

    def preparing(self, documents: int, total: int | None) -> None:
        if select.select([], [self._pipe], [], 0)[1]:
            self._pipe.send(("preparing", (documents, total)))


def _serve(pipe: Connection, theirs: Connection, task: Task) -> None:
    """Answer the two requests, in the fork."""
    theirs.close()
    os.setpgid(0, 0)  # Ctrl-C is for the run, which then ends this
    with contextlib.suppress(OSError, AttributeError):  # only Linux has this call
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt):
        while True:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # while it waits, the end of the pipe ends it
            request, plan = pipe.recv()
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                if request == "sample":
                    done: object = recipe_density(task.recipe)
                else:
                    from shoestring.data.store.shards import checked_shards  # loads numpy

                    task.prepare(plan, _Forwarding(pipe))
                    done = checked_shards()
            except Exception as cause:
                cause.add_note(traceback.format_exc())
                pipe.send(("failed", cause))
            else:
                pipe.send(("done", done))
                if request == "sample" and len(os.sched_getaffinity(0)) >= _MANY_CORES:
                    begin_loading()
