"""Jobs in several processes that meet over gloo, with a time limit: what hangs is killed."""

from __future__ import annotations

import datetime
import multiprocessing
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shoestring.parallel.team import Team

SECONDS = 100
Job = Callable[..., Any]


def together(job: Job, world: int, folder: Path, *arguments: Any, seconds: float = SECONDS) -> list[Any]:
    """What `job(team, *arguments)`, a function of a module, returns in each of so many processes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meeting").unlink(missing_ok=True)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_run, args=(job, rank, world, folder, arguments)) for rank in range(world)]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(seconds)
        codes = [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()
    errors = "\n".join(path.read_text() for path in folder.glob("error-*"))
    assert codes == [0] * world, f"exit codes {codes} (None: it hung)\n{errors}"
    return [torch.load(folder / f"result-{rank}.pt", weights_only=False) for rank in range(world)]


def _run(job: Job, rank: int, world: int, folder: Path, arguments: tuple[Any, ...]) -> None:
    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/meeting",
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=60),
        )
        found = job(Team.of(torch.device("cpu")), *arguments)
        torch.save(found, folder / f"result-{rank}.pt")
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        (folder / f"error-{rank}").write_text(traceback.format_exc())
        raise
