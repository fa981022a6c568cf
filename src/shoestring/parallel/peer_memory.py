"""Sums over processes that share GPUs: each maps the memory of the others (CUDA IPC), so that nothing leaves the GPU.

NCCL takes one process per GPU, and gloo copies through the host and its network. Here each process writes its numbers
into its own place, and reads those of all, in the order of their ranks: so all get the same bits.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shoestring.parallel.shared_weights import Mapped, NotShared, mapped_by_another, opened

PLACE_BYTES = 64 << 20
LEAST_BYTES = 1 << 20
"""Less than that is left to gloo, which then takes no longer."""


class PeerMemory:
    """The place of every process, by rank."""

    def __init__(self, places: list[Tensor], rank: int):
        self._places, self._own = places, places[rank]

    def all_reduce(self, flat: Tensor) -> None:
        """Replace flat numbers by their sum over all processes."""
        for part in flat.split(self._own.numel() // flat.element_size()):
            size = part.numel() * part.element_size()
            self._own[:size].view(part.dtype).copy_(part)
            self._meet()
            first, *rest = (place[:size].view(part.dtype) for place in self._places)
            part.copy_(first)
            for each in rest:
                part += each.to(part.device)
            self._meet()

    def _meet(self) -> None:
        """Wait for the device, and for the others: all have written, or all have read."""
        if self._own.is_cuda:
            torch.cuda.current_stream(self._own.device).synchronize()
        dist.barrier()


@cache
def peer_memory(device: torch.device) -> PeerMemory | None:
    """What all processes have mapped, None if one of them cannot; a collective call."""
    own, mapped = _own_place(device)
    rank, everyone = dist.get_rank(), _all_gather(mapped)
    places: list[Tensor] = []
    with suppress(NotShared):
        if None not in everyone:
            places = [own if number == rank else opened(each) for number, each in enumerate(everyone)]
    return PeerMemory(places, rank) if all(_all_gather(bool(places))) else None


def _own_place(device: torch.device) -> tuple[Tensor, Mapped | None]:
    """The place of this process, and how another one maps it; None: it cannot."""
    own = torch.zeros(PLACE_BYTES, dtype=torch.uint8, device=device)
    try:
        return own, mapped_by_another(own)
    except NotShared:
        return own, None


def _all_gather(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found
