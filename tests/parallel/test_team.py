"""A team of processes: sums, what the first one makes, errors that all of them raise; and a team of one."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from shoestring.core.errors import DataError, RunError, ShoestringError
from shoestring.parallel import team as teams
from shoestring.parallel.team import Elsewhere, Lost, Team, sharing_work

CPU = torch.device("cpu")
ALONE = Team(0, 1, CPU)


def test_one_process_is_a_team() -> None:
    tensor = torch.arange(3.0)
    ALONE.add_up([tensor])
    assert tensor.tolist() == [0, 1, 2]
    assert ALONE.first(lambda x: x + 1, 2) == ALONE.each(lambda x: x + 1, x=2) == 3
    for together in (ALONE.first, ALONE.each):
        with pytest.raises(RunError, match="no"):
            together(_refuse, RunError("no"))


def _refuse(error: ShoestringError) -> None:
    raise error


def test_buckets_hold_one_type_each_and_every_tensor_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "BUCKET_BYTES", 40)
    sizes = [(3, torch.float32), (7, torch.float32), (1, torch.float32), (2, torch.float64), (50, torch.float64)]
    tensors = [torch.zeros(size, dtype=dtype) for size, dtype in sizes]
    buckets = teams._buckets(tensors)
    assert [[len(tensor) for tensor in bucket] for bucket in buckets] == [[3, 7], [1], [2], [50]]
    assert all(len({tensor.dtype for tensor in bucket}) == 1 for bucket in buckets)
    assert teams._buckets([]) == []


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (RuntimeError("[/x/gloo/transport/tcp/pair.cc:1] Connection closed by peer"), Lost),
        (dist.DistBackendError("NCCL error"), Lost),
        (RuntimeError("another"), RuntimeError),
        (DataError("row 7"), DataError),
    ],
)
def test_a_process_that_is_left_alone_says_so(error: Exception, found: type[Exception]) -> None:
    with pytest.raises(found), sharing_work(CPU):
        raise error


def job(team: Team) -> dict[str, Any]:
    found: dict[str, Any] = {}
    tensors = [torch.full((n,), float(team.rank + 1), dtype=dtype) for n in (0, 1, 9) for dtype in (torch.float64,)]
    tensors.append(torch.ones(2, 3).T * (team.rank + 1))  # not contiguous
    team.add_up(tensors)
    found["sums"] = [tensor.tolist() for tensor in tensors]
    found["first"] = team.first(lambda: f"made by {team.rank}")
    found["each"] = team.each(lambda: f"made by {team.rank}")
    for name, together, whom in (("first", team.first, 0), ("each", team.each, 2)):
        try:
            together(_refuse_in, team, whom)
        except RunError as error:
            found[f"{name} error"] = str(error), isinstance(error.__cause__, Elsewhere)
    return found


def _refuse_in(team: Team, rank: int) -> None:
    if team.rank == rank:
        raise RunError(f"no, says {rank}")


CHILD = """
import sys
from pathlib import Path
import torch
sys.path.insert(0, str(Path(sys.argv[1])))
import test_team
test_team.work(Path(sys.argv[2]), int(sys.argv[3]))
"""


def work(folder: Path, rank: int) -> None:
    patience = datetime.timedelta(seconds=60)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=3, timeout=patience
    )  # fmt: skip
    torch.save(job(Team.of(CPU)), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_three_processes_are_a_team(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(Path(__file__).parent), str(tmp_path)]
    processes = [subprocess.Popen([*command, str(rank)]) for rank in range(3)]
    try:
        assert [process.wait(timeout=100) for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
    for rank in range(3):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found["sums"] == [[], [6.0], [6.0] * 9, [[6.0, 6.0]] * 3]
        assert (found["first"], found["each"]) == ("made by 0", f"made by {rank}")
        assert found["first error"] == ("no, says 0", rank != 0), "all raise it, and one tells"
        assert found["each error"] == ("no, says 2", rank != 2)
