"""The processes that torchrun started, or this one alone."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from shoestring.core.errors import Fault, ShoestringError
from shoestring.parallel.meeting import meet

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=ShoestringError)

PATIENCE = timedelta(days=1)
"""How long a process waits for the others: one may be measuring, or preparing data. torchrun ends all if one dies."""
BUCKET_BYTES = 64 << 20
"""About as much as is sent in one message."""


class Elsewhere(Exception):
    """The cause of an error that another process tells of."""


class Lost(Fault):
    """Another process ended in the middle of something that all do together."""

    def __init__(self) -> None:
        super().__init__("another process ended, and this one cannot go on alone")


def join(device: torch.device) -> Team:
    """Meet the other processes, if there are any; on GPUs each process takes one of its own."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=PATIENCE, **meet(PATIENCE)._asdict())
            atexit.register(dist.destroy_process_group)
    return Team.of(device)


@contextmanager
def sharing_work(device: torch.device) -> Iterator[Team]:
    """As `join`; after an error this process ends without a word to the others, who may never answer."""
    team = join(device)
    try:
        yield team
    except BaseException as cause:
        atexit.unregister(dist.destroy_process_group)
        if isinstance(cause, dist.DistError) or (isinstance(cause, RuntimeError) and "/gloo/" in str(cause)):
            raise Lost from cause
        raise


@cache
def host_group() -> dist.ProcessGroup:
    """All processes once more, for a thread that talks while the first group is in use; all make it together."""
    found: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=PATIENCE)
    return found


class Team(NamedTuple):
    """One process among all that share the work."""

    rank: int
    world: int
    device: torch.device

    @classmethod
    def of(cls, device: torch.device) -> Team:
        """All processes of `torch.distributed`, or this one alone."""
        together = dist.is_available() and dist.is_initialized()
        return cls(dist.get_rank() if together else 0, dist.get_world_size() if together else 1, device)

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes: few large messages, none of them waited for here."""
        if self.world == 1:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            dist.all_reduce(flat)
            for tensor, part in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def first(self, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the first process makes, or the error it meets, on all of them."""
        if self.world == 1:
            return make(*args, **kwargs)
        message: list[Any] = [None, None]
        if self.rank == 0:
            message[:] = _outcome(make, *args, **kwargs)
        dist.broadcast_object_list(message, src=0, device=self.device if dist.get_backend() == "nccl" else None)
        if message[1] is not None:
            raise self.told_by(0, message[1])
        result: T = message[0]
        return result

    def each(self, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What this process makes; if one of them meets an error, all raise it."""
        if self.world == 1:
            return make(*args, **kwargs)
        found: Any
        found, own = _outcome(make, *args, **kwargs)
        errors: list[Any] = [None] * self.world
        dist.all_gather_object(errors, own)
        for rank, error in enumerate(errors):
            if error is not None:
                raise self.told_by(rank, error)
        result: T = found
        return result

    def gather(self, value: T) -> list[T]:
        """What every process has, by rank."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value)
        return found

    def told_by(self, rank: int, error: E) -> E:
        """An error that all processes raise, and only one of them tells a person."""
        if self.rank != rank:
            error.__cause__ = Elsewhere(f"process {rank} tells")
        return error


def _outcome(make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T | None, ShoestringError | None]:
    """A result or an error."""
    try:
        return make(*args, **kwargs), None
    except ShoestringError as error:
        return None, error


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Tensors of one type, side by side, up to about BUCKET_BYTES."""
    found: list[list[Tensor]] = []
    room = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if not found or size > room or found[-1][0].dtype != tensor.dtype:
            found.append([])
            room = BUCKET_BYTES
        found[-1].append(tensor)
        room -= size
    return found
