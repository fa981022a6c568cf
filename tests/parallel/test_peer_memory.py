"""Sums in memory that processes map of each other: here that of the host, in place of a GPU's."""

from __future__ import annotations

import mmap
import os
from typing import Any
from unittest.mock import patch

import torch
from processes import together
from torch import Tensor

from shoestring.parallel import peer_memory
from shoestring.parallel.process_group import ProcessGroup
from shoestring.parallel.shared_weights import Mapped, NotShared

CPU = torch.device("cpu")
PLACE, WORLD = 256, 3


def place(*_: Any) -> tuple[Tensor, Mapped]:
    file = os.memfd_create("place")
    os.ftruncate(file, PLACE)
    return torch.frombuffer(mmap.mmap(file, PLACE), dtype=torch.uint8), (reopen, (os.getpid(), file))


def reopen(pid: int, file: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR), PLACE), dtype=torch.uint8)


def refuse(*_: Any) -> Tensor:
    raise NotShared("here")


def numbers(rank: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(131, generator=torch.Generator().manual_seed(rank), dtype=dtype)


def job(group: ProcessGroup) -> dict[str, Any]:
    """Sums that take several pieces; and what becomes of them if the last process cannot map the others."""
    peer_memory.peer_memory.cache_clear()
    with patch.object(peer_memory, "_own_place", place):
        peers = peer_memory.peer_memory(CPU)
        assert peers is not None
        sums = []
        for dtype in (torch.float32, torch.float64, torch.float32):
            sums.append(numbers(group.rank, dtype))
            peers.all_reduce(sums[-1])
        peer_memory.peer_memory.cache_clear()
        last = group.rank == WORLD - 1
        with patch.object(peer_memory, "opened", refuse if last else peer_memory.opened):
            refused = peer_memory.peer_memory(CPU)
    peer_memory.peer_memory.cache_clear()
    return {"sums": sums, "refused": refused}


def test_all_processes_have_the_same_sums_in_pieces_or_none_of_them_maps() -> None:
    found = together(job, WORLD)
    for each in found:
        assert each["refused"] is None, "all must do the same"
        for total, same in zip(each["sums"], found[0]["sums"], strict=True):
            assert total.equal(same), "the same bits"
            exact = sum(numbers(rank, total.dtype).double() for rank in range(WORLD))
            torch.testing.assert_close(total.double(), exact, rtol=1e-6, atol=1e-6)
