"""Jobs in several processes that meet over gloo, with a time limit: what hangs is killed.

The processes stay for the next job, until one fails.
"""

from __future__ import annotations

import datetime
import io
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from commands import forks

from shoestring.parallel.process_group import ProcessGroup, host_group

SECONDS = 100
Job = Callable[..., Any]


class Worker(NamedTuple):
    """A process that waits for jobs."""

    process: BaseProcess
    pipe: Connection


_WORKERS: list[Worker] = []


def as_torchrun(patch: pytest.MonkeyPatch, group: ProcessGroup) -> None:
    """Put into the environment what torchrun puts there, for processes that have met already."""
    names = {"WORLD_SIZE": group.world, "RANK": group.rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    for name, value in names.items():
        patch.setenv(name, str(value))


def together(job: Job, world: int, *arguments: Any, seconds: float = SECONDS) -> list[Any]:
    """What `job(group, *arguments)`, a function of a module, returns in each of so many processes."""
    while len(_WORKERS) < world:
        _WORKERS.append(_hire())
    workers, until = _WORKERS[:world], time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        for rank, worker in enumerate(workers):
            worker.pipe.send((sys.path, os.getcwd()))  # a job's module may lie where this process looks since it began
            worker.pipe.send((job, rank, world, f"{folder}/meeting", arguments))
        replies = [_reply(worker, until) for worker in workers]
    errors = [f"process {rank}: {said}" for rank, (said, _) in enumerate(replies) if said is not None]
    if errors:
        dismiss()
    assert not errors, "\n".join(errors)
    return [torch.load(io.BytesIO(found), weights_only=False) for _, found in replies]


def dismiss() -> None:
    """End the processes; the next job has new ones."""
    for worker in _WORKERS:
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
    _WORKERS.clear()


def _hire() -> Worker:
    pipe, theirs = forks().Pipe()
    process = forks().Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return Worker(process, pipe)


def _reply(worker: Worker, until: float) -> tuple[str | None, bytes]:
    """What went wrong, if anything did, and the result."""
    try:
        if not worker.pipe.poll(max(0.0, until - time.monotonic())):
            return "it hung", b""
        said, found = pickle.loads(worker.pipe.recv_bytes())
        return said, found
    except (EOFError, OSError) as cause:
        worker.process.join(1)
        return f"it ended, exit code {worker.process.exitcode} ({cause})", b""


def _work(pipe: Connection) -> None:
    """Do jobs until the other end of the pipe is closed."""
    torch.set_num_threads(1)
    while True:
        try:
            path, folder = pipe.recv()
            sys.path[:] = path
            os.chdir(folder)
            reply = None, _do(*pipe.recv())
        except (EOFError, KeyboardInterrupt):
            return
        except BaseException:
            reply = traceback.format_exc(), b""
        pipe.send_bytes(pickle.dumps(reply))


def _do(job: Job, rank: int, world: int, meeting: str, arguments: tuple[Any, ...]) -> bytes:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=60),
    )
    found = io.BytesIO()
    torch.save(job(ProcessGroup.of(torch.device("cpu")), *arguments), found)
    dist.barrier()
    dist.destroy_process_group()
    host_group.cache_clear()  # of the processes of this job
    return found.getvalue()
