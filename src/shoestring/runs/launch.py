"""The workers of a run on this machine: started by the run itself, with what torchrun would put into the environment.

Unlike torchrun, it leaves the others alone when one ends; what they do then is theirs to decide.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from shoestring.core import recipe_file
from shoestring.core.clock import Clock
from shoestring.core.errors import Fault, ShoestringError
from shoestring.core.host import end_with_parent
from shoestring.core.reading import parse_toml
from shoestring.core.recipe import Recipe
from shoestring.core.registry import dump_added, load_added
from shoestring.runs.reporter import Reporter

_GRACE = 30.0
"""Seconds that the others have to end after this process."""
THREADS = "OMP_NUM_THREADS"
READY = "ready\n"


@contextmanager
def started(recipe: Recipe, plan_file: Path | None) -> Iterator[Callable[[], None]]:
    """Start the other workers of a recipe; this process is the first one while it lasts, and they end with it.

    What it gives raises Fault if one of them has ended.
    """
    kept, (own, *rest) = dict(os.environ), environments(recipe.workers)
    os.environ |= own
    arguments = [str(plan_file or ""), dump_added()]
    others = []
    try:
        for ranks in rest:
            command = [sys.executable, "-m", "shoestring.runs.launch", *arguments]
            pipe, environment = subprocess.PIPE, os.environ | ranks
            worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True)  # noqa: S603
            others.append(worker)
            assert worker.stdin is not None, "it is a pipe"
            with suppress(BrokenPipeError), worker.stdin as line:  # one that has ended is noticed below
                line.write(recipe_file.dump(recipe))
        _await(others)
        yield partial(_watch, others)
    finally:
        _end(others)
        os.environ.clear()
        os.environ |= kept


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


def _watch(others: list[subprocess.Popen[str]]) -> None:
    """Raise Fault if one has ended; the rest, which would wait for it, is ended too."""
    ended = [(rank, worker.returncode) for rank, worker in enumerate(others, 1) if worker.poll() is not None]
    if not ended:
        return
    for worker in others:
        worker.kill()
    rank, code = ended[0]
    raise Fault(f"worker {rank} ended before all were connected, exit code {code}; see its output")


def _end(others: list[subprocess.Popen[str]]) -> None:
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


def main(plan_file: str, added: str) -> None:
    """A worker that is not the first: its recipe comes by standard input, and its errors are reported by the first."""
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
    try:
        main(*sys.argv[1:])
    except ShoestringError as error:
        if type(error.__cause__).__name__ != "ReportedElsewhere":
            print(f"worker {os.environ['RANK']}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
