"""Workers of asynchronous steps until they have their order: forks of the run, or new processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NamedTuple

from shoestring.runs.forks import Fork, Worker, can_fork
from shoestring.runs.launch import THREADS, threads_each
from shoestring.runs.task import Task


class Waiting(NamedTuple):
    """A worker, and the line to it; it ends when that is closed."""

    worker: Worker
    line: Connection

    def end(self) -> None:
        self.line.close()
        self.worker.wait()


def fork_workers(task: Task, open_here: Iterable[Connection]) -> list[Waiting]:
    """The workers of a task, forked; none if this process may not fork. They close what is open for this one alone."""
    found: list[Waiting] = []
    if can_fork(task):
        for _ in range(task.recipe.workers):
            own, theirs = Pipe()
            closed = [*open_here, *(each.line for each in found), own]
            with theirs:
                found.append(Waiting(Fork(partial(_wait, theirs, closed, task.recipe.workers)), own))
    return found


def start_worker(workers: int) -> Waiting:
    """One of so many workers, in a new process."""
    own, theirs = Pipe()
    environment = os.environ | {THREADS: os.environ.get(THREADS) or str(threads_each(workers))}
    with theirs:
        worker = subprocess.Popen(  # noqa: S603 - this Python, with a module of ours
            [sys.executable, "-m", "shoestring.runs.async_worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            start_new_session=True,  # Ctrl-C is for the run, which then ends this
        )
    return Waiting(worker, own)


def _wait(line: Connection, closed: Iterable[Connection], workers: int) -> int:
    """In a fork: as a process of `start_worker`."""
    import torch

    from shoestring.runs.async_worker import answer

    for each in closed:
        each.close()
    os.setsid()
    if not os.environ.get(THREADS):
        torch.set_num_threads(threads_each(workers))
    answer(line)
    return 0
