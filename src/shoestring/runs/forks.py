"""Workers as forks of the run, which has loaded torch once for all of them, and has not used it yet.

A process cannot be forked safely with threads, or after it looked for a GPU; the caller then starts new processes.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Protocol

from shoestring.core.host import end_with_parent
from shoestring.probe.child import looked_for_gpu
from shoestring.runs.task import Task


class Worker(Protocol):
    """A process, as much of it as is asked for."""

    pid: int

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class Fork:
    """A process forked from this one, which ends with it; as much of `subprocess.Popen` as a worker needs."""

    def __init__(self, work: Callable[[], int]):
        """It does `work`, which returns its exit code, and nothing of what this process has yet to do."""
        self._process = multiprocessing.get_context("fork").Process(target=_do, args=(work, os.getpid()))
        self._process.start()
        assert self._process.pid is not None, "it was started"
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout or 0.0)
        return self.returncode

    def kill(self) -> None:
        self._process.kill()


def can_fork(task: Task) -> bool:
    """Load what the steps of a task need, and return whether this process may be forked now.

    Nothing is loaded where it may not be.
    """
    if sys.platform != "linux" or "torch" in sys.modules or threading.active_count() > 1:
        return False
    from shoestring.runs import session  # noqa: F401 - loads torch

    if not task.recipe.autos:  # until its numbers are chosen, its network is not known
        task.load()
    if threading.active_count() > 1 or looked_for_gpu():
        return False
    gc.freeze()  # a worker that looked for garbage among it would copy all of it
    return True


def _do(work: Callable[[], int], parent: int) -> None:
    """In the fork."""
    end_with_parent()
    if os.getppid() != parent:  # it ended before that call
        os._exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the output is the run's
    sys.exit(work())
