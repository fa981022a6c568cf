"""A group of processes: sums, what the first one makes, errors that all of them raise; and a group of one."""

from __future__ import annotations

import socket
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist
from processes import together

from shoestring.core.environment import Launched
from shoestring.core.errors import DataError, Fault, RunError, ShoestringError, UserError
from shoestring.parallel import process_group
from shoestring.parallel.process_group import (
    ProcessGroup,
    ReportedElsewhere,
    backend_for,
    join,
    own_gpu,
    sharing_work,
)

CPU = torch.device("cpu")
ALONE = ProcessGroup(0, 1, CPU)


def test_one_process_is_a_group() -> None:
    tensor = torch.arange(3.0)
    ALONE.all_reduce([tensor])
    assert tensor.tolist() == [0, 1, 2]
    assert ALONE.on_first(lambda x: x + 1, 2) == ALONE.on_all(lambda x: x + 1, x=2) == 3
    assert ALONE.all_gather(7) == [7]
    for run in (ALONE.on_first, ALONE.on_all):
        with pytest.raises(RunError, match="no"):
            run(_refuse, RunError("no"))


def _refuse(error: ShoestringError) -> None:
    raise error


def test_more_processes_than_gpus_share_them_on_one_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL refuses two processes on one GPU; on several machines each must know that all others have one."""
    four = [Launched(4, rank, rank, 4) for rank in range(4)]
    apart = [Launched(4, rank, rank % 2, 2) for rank in range(4)]
    gpu = torch.device("cuda", 0)
    for gpus, numbers, backend in ((1, [0, 0, 0, 0], "gloo"), (2, [0, 1, 0, 1], "gloo"), (4, [0, 1, 2, 3], "nccl")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert [own_gpu(here, gpus) for here in four] == numbers
        assert {backend_for(gpu, here) for here in four} == {backend}
        assert {backend_for(CPU, here) for here in four} == {"gloo"}
    assert [own_gpu(here, 2) for here in apart] == [0, 1, 0, 1]
    for here in (apart[1], Launched(4, 1, 1, None), Launched(4, 1, None, 4)):
        with pytest.raises(UserError, match="must be from 0 to 0, a GPU; processes share a GPU only if all are on one"):
            own_gpu(here, 1)


def test_buckets_hold_one_type_each_and_every_tensor_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "BUCKET_BYTES", 40)
    sizes = [(3, torch.float32), (7, torch.float32), (1, torch.float32), (2, torch.float64), (50, torch.float64)]
    tensors = [torch.zeros(size, dtype=dtype) for size, dtype in sizes]
    buckets = process_group._buckets(tensors)
    assert [[len(tensor) for tensor in bucket] for bucket in buckets] == [[3, 7], [1], [2], [50]]
    assert all(len({tensor.dtype for tensor in bucket}) == 1 for bucket in buckets)
    assert process_group._buckets([]) == []


@pytest.mark.parametrize(
    ("error", "found", "message"),
    [
        (RuntimeError("[/x/gloo/transport/tcp/pair.cc:1] Connection closed by peer"), Fault, "cannot continue alone"),
        (dist.DistBackendError("NCCL error"), Fault, "cannot continue alone"),
        (RuntimeError("another"), RuntimeError, "another"),
        (DataError("row 7"), DataError, "row 7"),
    ],
)
def test_a_process_that_is_left_alone_says_so(error: Exception, found: type[Exception], message: str) -> None:
    with pytest.raises(found, match=message), sharing_work(CPU):
        raise error


def job(group: ProcessGroup) -> dict[str, Any]:
    found: dict[str, Any] = {}
    tensors = [torch.full((n,), float(group.rank + 1), dtype=dtype) for n in (0, 1, 9) for dtype in (torch.float64,)]
    tensors.append(torch.ones(2, 3).T * (group.rank + 1))  # not contiguous
    group.all_reduce(tensors)
    found["sums"] = [tensor.tolist() for tensor in tensors]
    found["first"] = group.on_first(lambda: f"made by {group.rank}")
    found["all"] = group.on_all(lambda: f"made by {group.rank}")
    found["gathered"] = group.all_gather(group.rank)
    for name, run, whom in (("first", group.on_first, 0), ("all", group.on_all, 2)):
        try:
            run(_refuse_in, group, whom)
        except RunError as error:
            found[f"{name} error"] = str(error), isinstance(error.__cause__, ReportedElsewhere)
    return found


def _refuse_in(group: ProcessGroup, rank: int) -> None:
    if group.rank == rank:
        raise RunError(f"no, says {rank}")


def test_three_processes_are_a_group() -> None:
    for rank, found in enumerate(together(job, 3)):
        assert found["sums"] == [[], [6.0], [6.0] * 9, [[6.0, 6.0]] * 3]
        assert (found["first"], found["all"]) == ("made by 0", f"made by {rank}")
        assert found["gathered"] == [0, 1, 2]
        assert found["first error"] == ("no, says 0", rank != 0), "all raise it, and one tells"
        assert found["all error"] == ("no, says 2", rank != 2)


def test_a_machine_that_does_not_exist_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch would look for it for a day; a name server that does not answer is left to it."""
    errors = {"absent": socket.EAI_NONAME, "later": socket.EAI_AGAIN}

    def look_up(name: str, _: object) -> NoReturn:
        raise socket.gaierror(errors[name], "as told")

    def begin(*_: object, **__: object) -> NoReturn:
        raise InterruptedError("torch looks for it")

    monkeypatch.setattr(process_group.socket, "getaddrinfo", look_up)  # type: ignore[attr-defined]
    monkeypatch.setattr(process_group.dist, "TCPStore", begin)  # type: ignore[attr-defined]
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "MASTER_PORT": "29500", "MASTER_ADDR": "absent"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="MASTER_ADDR='absent' in the environment: no machine has this name"):
        join(CPU)
    monkeypatch.setenv("MASTER_ADDR", "later")
    with pytest.raises(InterruptedError):
        join(CPU)
