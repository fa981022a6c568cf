"""The workers of a run on this machine: started by the run itself, with what torchrun would put into the environment.

Unlike torchrun, it leaves the others alone when one ends; what they do then is theirs to decide.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from shoestring.core import recipe_file
from shoestring.core.clock import Clock
from shoestring.core.errors import Fault, ShoestringError
from shoestring.core.host import end_with_parent
from shoestring.core.reading import parse_toml
from shoestring.core.recipe import Recipe
from shoestring.core.registry import dump_added, load_added
from shoestring.runs.forks import Fork, Worker, can_fork
from shoestring.runs.reporter import Reporter
from shoestring.runs.task import task_of

_GRACE = 30.0
"""Seconds that the others have to end after this process."""
THREADS = "OMP_NUM_THREADS"
READY = "ready\n"


@contextmanager
def started(
    recipe: Recipe, plan_file: Path | None, clock: Clock, open_here: Sequence[Connection] = ()
) -> Iterator[Callable[[], None]]:
    """Start the other workers of a recipe; this process is the first one while it lasts, and they end with it.

    What it gives raises Fault if one of them has ended. They close what is open for this process alone.
    """
    kept, (own, *rest) = dict(os.environ), environments(recipe.workers)
    os.environ |= own
    others: list[Worker] = []
    try:
        if can_fork(task_of(recipe)):
            others += [Fork(partial(_work, recipe, plan_file, clock, ranks, open_here)) for ranks in rest]
        else:
            _start(others, recipe, plan_file, rest)
        yield partial(_watch, others)
    finally:
        _end(others)
        os.environ.clear()
        os.environ |= kept


def _start(others: list[Worker], recipe: Recipe, plan_file: Path | None, rest: Sequence[Mapping[str, str]]) -> None:
    """Start a new process with each of these environments, and wait until all are about to connect."""
    begun: list[subprocess.Popen[str]] = []
    for ranks in rest:
        command = [sys.executable, "-m", "shoestring.runs.launch", str(plan_file or ""), dump_added()]
        pipe, environment = subprocess.PIPE, os.environ | ranks
        worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True)  # noqa: S603
        begun.append(worker)
        others.append(worker)
        assert worker.stdin is not None, "it is a pipe"
        with suppress(BrokenPipeError), worker.stdin as line:  # one that has ended is noticed below
            line.write(recipe_file.dump(recipe))
    _await(begun)


def environments(workers: int) -> list[dict[str, str]]:
    """What torchrun would put into the environment of each of so many workers on this machine."""
    threads = os.environ.get(THREADS) or str(threads_each(workers))
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    shared |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(workers))
    return [shared | {THREADS: threads, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(workers)]


def _await(others: list[subprocess.Popen[str]]) -> None:
    """Wait until the other workers are about to connect: one that ended before would be waited for in vain."""
    import shoestring.parallel.process_group  # noqa: F401 - loads torch, as they do

    for rank, worker in enumerate(others, 1):
        assert worker.stdout is not None, "it is a pipe"
        with worker.stdout as line:
            if line.read(len(READY)) != READY:
                raise Fault(f"worker {rank} ended before it began, exit code {worker.wait()}; see its output")


def _watch(others: list[Worker]) -> None:
    """Raise Fault if one has ended; the rest, which would wait for it, is ended too."""
    ended = [(rank, worker.returncode) for rank, worker in enumerate(others, 1) if worker.poll() is not None]
    if not ended:
        return
    for worker in others:
        worker.kill()
    rank, code = ended[0]
    raise Fault(f"worker {rank} ended before all were connected, exit code {code}; see its output")


def _end(others: list[Worker]) -> None:
    """Wait for the other workers, which end by themselves."""
    if (group := sys.modules.get("shoestring.parallel.process_group")) is not None:  # torch is loaded
        group.leave()
    for worker in others:
        with suppress(subprocess.TimeoutExpired):
            worker.wait(_GRACE)
        worker.kill()
        worker.wait()


def threads_each(workers: int) -> int:
    """Threads for each of so many processes."""
    return max(1, len(os.sched_getaffinity(0)) // workers)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _work(
    recipe: Recipe,
    plan_file: Path | None,
    clock: Clock,
    ranks: Mapping[str, str],
    open_here: Sequence[Connection],
) -> int:
    """Be a worker that is not the first, in a fork of it; its exit code."""
    from shoestring.parallel.process_group import leave
    from shoestring.runs.runner import run

    for each in open_here:
        each.close()
    os.environ |= ranks
    try:
        return _exit_code(partial(run, recipe, Reporter(), clock, plan_file))
    finally:
        leave()


def _exit_code(work: Callable[[], object]) -> int:
    """Of a worker after its work; an error that the first worker has too is reported by that one."""
    try:
        work()
    except ShoestringError as error:
        if type(error.__cause__).__name__ != "ReportedElsewhere":
            print(f"worker {os.environ['RANK']}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def main(plan_file: str, added: str) -> None:
    """A worker that is not the first, in a process of its own: its recipe comes by standard input."""
    from shoestring.runs.runner import run

    end_with_parent()
    load_added(added)
    recipe = recipe_file.build(parse_toml(sys.stdin.read(), Path("the recipe")), "the recipe")
    import shoestring.parallel.process_group  # noqa: F401 - loads torch

    sys.stdout.write(READY)
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nobody reads what follows
    run(recipe, Reporter(), Clock(), Path(plan_file) if plan_file else None)


if __name__ == "__main__":
    sys.exit(_exit_code(partial(main, *sys.argv[1:])))
