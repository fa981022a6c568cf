"""The processes that torchrun started, or this one alone, and how they find each other.

torchrun keeps one store for all attempts of a run. The addresses of an attempt's processes stay in it, and processes of
the next attempt would connect to them. So every attempt has its own keys, under a name that its first process chooses
and tells the others. The count of restarts in the environment cannot be that name: every machine has its own, and does
not count when its processes were stopped because those of another machine failed (pytorch issue 135712).
"""

from __future__ import annotations

import atexit
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store, _set_pg_timeout
from torch.distributed.rendezvous import rendezvous

from shoestring.core.environment import Launched, launched
from shoestring.core.errors import Fault, ShoestringError, UserError
from shoestring.parallel.peer_memory import LEAST_BYTES, peer_memory

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=ShoestringError)

PATIENCE = timedelta(days=1)
"""How long a process waits for the others: one may measure, or prepare data. torchrun ends all if one dies."""
CONNECTING = timedelta(seconds=60)
"""How long a process waits for others that are about to connect: one that has ended meanwhile is not noticed."""
POLL_SECONDS = 0.01
BUCKET_BYTES = 64 << 20
"""Approximate size of a message."""


class ReportedElsewhere(Exception):
    """The cause of an error that another process reports."""


class NotConnected(RuntimeError):
    """A process ended while the others connected to it."""


def join(device: torch.device, watch: Callable[[], None] = lambda: None) -> ProcessGroup:
    """Connect to the other processes, if there are any; each gets its own GPU where there are as many.

    The first one calls `watch` while it waits for the others; it raises when one of them has ended.
    """
    here = launched()
    if here.world > 1:
        if device.type == "cuda":
            device = torch.device("cuda", own_gpu(here, torch.cuda.device_count()))
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            _check_address(os.environ["MASTER_ADDR"])
            store, rank, world = _open_store()
            own = PrefixStore(agree(store, rank, world, PATIENCE, watch), store)
            try:
                connect(backend_for(device, here), own, rank, world)
            except NotConnected as cause:
                raise Fault(f"{cause}; see their output") from cause
            atexit.register(leave)
    return ProcessGroup.of(device)


def own_gpu(here: Launched, gpus: int) -> int:
    """The number of the GPU of this process; those of one machine share GPUs where there are more of them."""
    if here.local_rank is not None and (here.local_rank < gpus or here.local_world == here.world):
        return here.local_rank % gpus
    raise UserError(
        f"LOCAL_RANK={here.local_rank} in the environment: must be from 0 to {gpus - 1}, a GPU; processes share a GPU "
        f"only if all are on one machine, and LOCAL_WORLD_SIZE says so"
    )


def backend_for(device: torch.device, here: Launched) -> str:
    """NCCL for processes with a GPU each; it refuses two on one GPU. Those, and CPUs, have gloo, and what is large is
    summed in memory that they map (`peer_memory`)."""
    if device.type != "cuda":
        return "gloo"
    shared = here.local_world == here.world and here.world > torch.cuda.device_count()
    return "gloo" if shared else "nccl"


def _open_store() -> tuple[Store, int, int]:
    """The store of all processes, with the rank of this one and their number; waits for nobody."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store, rank, world = next(rendezvous("env://", timeout=PATIENCE))
        return store, rank, world
    here, port = launched(), int(os.environ["MASTER_PORT"])
    place = os.environ["MASTER_ADDR"], port, here.world, here.rank == 0
    store = dist.TCPStore(  # type: ignore[attr-defined]
        *place, timeout=PATIENCE, wait_for_workers=False, multi_tenant=True
    )
    return store, here.rank, here.world


def connect(backend: str, store: Store, rank: int, world: int) -> None:
    """Connect processes that all call this now; after CONNECTING it fails, as one of them has ended."""
    with _connecting():
        dist.init_process_group(backend, timeout=CONNECTING, store=store, rank=rank, world_size=world)
    _set_pg_timeout(PATIENCE)


@contextmanager
def _connecting() -> Iterator[None]:
    """What stops a connection is named so, and without its frames, which would keep what there is of it open."""
    try:
        yield
    except (RuntimeError, dist.DistError) as cause:
        raise NotConnected(f"not all processes connected within {CONNECTING}: {cause}") from None


def _check_address(name: str) -> None:
    """Refuse a machine that does not exist, which torch would look for until its patience ends."""
    try:
        socket.getaddrinfo(name, None)
    except (socket.gaierror, UnicodeError) as cause:
        if getattr(cause, "errno", socket.EAI_NONAME) == socket.EAI_NONAME:
            raise UserError(f"MASTER_ADDR={name!r} in the environment: no machine has this name") from cause


def agree(store: Store, rank: int, world: int, patience: timedelta, watch: Callable[[], None] = lambda: None) -> str:
    """A name for this attempt that is new, and the same on all of its processes.

    Keys of earlier processes do no harm: each process waits for an answer to its own arrival, and the first one waits
    for replies under its new name, which only a present process can know.
    """
    own = uuid.uuid4().hex
    if rank > 0:
        store.set(f"arrived/{rank}", own)
        name: str = store.get(f"answer/{own}").decode()
        store.set(f"heard/{name}/{rank}", own)
        return name
    until, missing = time.monotonic() + patience.total_seconds(), set(range(1, world))
    while missing:
        for other in missing:
            if store.check([f"arrived/{other}"]):
                store.set(f"answer/{store.get(f'arrived/{other}').decode()}", own)
        watch()
        time.sleep(POLL_SECONDS)
        missing = {other for other in missing if not store.check([f"heard/{own}/{other}"])}
        if missing and time.monotonic() > until:
            numbers = ", ".join(map(str, sorted(missing)))
            raise Fault(f"after {patience} these of {world} processes are not here: {numbers}; see their output")
    return own


def leave() -> None:
    """Disconnect from the other processes."""
    if dist.is_initialized():
        dist.destroy_process_group()
    host_group.cache_clear()
    peer_memory.cache_clear()


def is_lost(cause: BaseException) -> bool:
    """Whether an error says that another process ended."""
    return isinstance(cause, (dist.DistError, NotConnected)) or (
        isinstance(cause, RuntimeError) and "/gloo/" in str(cause)
    )


@contextmanager
def sharing_work(device: torch.device, watch: Callable[[], None] = lambda: None) -> Iterator[ProcessGroup]:
    """As `join`; after an error this process ends without waiting for the others, which may never answer."""
    group = join(device, watch)
    try:
        yield group
    except BaseException as cause:
        atexit.unregister(leave)
        if is_lost(cause):
            raise Fault("another process ended, and this one cannot continue alone") from cause
        raise


@cache
def host_group() -> dist.ProcessGroup:
    """A second group of all processes, for a thread that communicates while the first is in use; a collective call."""
    ProcessGroup.of(torch.device("cpu")).all_gather(None)  # all are here; one that is not would not connect in time
    with _connecting():
        found: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=CONNECTING)
    _set_pg_timeout(PATIENCE, found)
    return found


@dataclass
class ProcessGroup:
    """This process among all that share the work; where workers may leave, `members` changes rank and world."""

    rank: int
    world: int
    device: torch.device

    @classmethod
    def of(cls, device: torch.device) -> ProcessGroup:
        """All processes of `torch.distributed`, or this one alone."""
        together = dist.is_available() and dist.is_initialized()
        return cls(dist.get_rank() if together else 0, dist.get_world_size() if together else 1, device)

    @property
    def shares_gpus(self) -> bool:
        """Whether several of its processes have one GPU."""
        return self.world > 1 and self.device.type == "cuda" and dist.get_backend() == "gloo"

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, in few large messages; does not wait for the device."""
        if self.world == 1:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            large = self.shares_gpus and flat.numel() * flat.element_size() >= LEAST_BYTES
            if large and (peers := peer_memory(self.device)) is not None:
                peers.all_reduce(flat)
            else:
                dist.all_reduce(flat)
            for tensor, part in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def on_first(self, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `make` in the first process, or its error, on all processes."""
        if self.world == 1:
            return make(*args, **kwargs)
        message: list[Any] = [None, None]
        if self.rank == 0:
            message[:] = _outcome(make, *args, **kwargs)
        dist.broadcast_object_list(message, src=0, device=self.device if dist.get_backend() == "nccl" else None)
        if message[1] is not None:
            raise self.reported_by(0, message[1])
        result: T = message[0]
        return result

    def on_all(self, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `make` in this process; an error in one process is raised by all."""
        if self.world == 1:
            return make(*args, **kwargs)
        found: Any
        found, own = _outcome(make, *args, **kwargs)
        for rank, error in enumerate(self.all_gather(own)):
            if error is not None:
                raise self.reported_by(rank, error)
        result: T = found
        return result

    def all_gather(self, value: T) -> list[T]:
        """The values of all processes, by rank."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value)
        return found

    def reported_by(self, rank: int, error: E) -> E:
        """The error of process `rank`, marked on all others so that only that one prints it."""
        if self.rank != rank:
            error.__cause__ = ReportedElsewhere(f"process {rank} reports it")
        return error


def _outcome(make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T | None, ShoestringError | None]:
    """The result, or the error."""
    try:
        return make(*args, **kwargs), None
    except ShoestringError as error:
        return None, error


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Consecutive tensors of one type, up to about BUCKET_BYTES."""
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
