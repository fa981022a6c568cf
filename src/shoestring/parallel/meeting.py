"""How processes find each other, also after torchrun has started them again.

torchrun keeps one store for all attempts of a run. The addresses of an attempt's processes stay in it, and those of the
next would connect to them. So every attempt has keys of its own, under a name that its first process makes up and tells
the others. The count of restarts in the environment is no such name: every machine has its own, and does not count when
its processes were stopped because those of another machine failed (pytorch issue 135712).
"""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import NamedTuple

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from shoestring.core.errors import Fault

POLL_SECONDS = 0.01


class Meeting(NamedTuple):
    """What `init_process_group` asks for."""

    store: Store
    rank: int
    world_size: int


def meet(patience: timedelta) -> Meeting:
    """Wait for all processes that the environment tells of, each of which calls this; the store is theirs alone."""
    store, rank, world = next(rendezvous("env://", timeout=patience))
    return Meeting(PrefixStore(agree(store, rank, world, patience), store), rank, world)


def agree(store: Store, rank: int, world: int, patience: timedelta) -> str:
    """A name that all these processes have when they return, and no process had before.

    Keys that earlier processes left do no harm: each one waits for an answer to its own arrival, and the first one
    for a word under the name it has just made up, which only a process that is there can have heard.
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
        time.sleep(POLL_SECONDS)
        missing = {other for other in missing if not store.check([f"heard/{own}/{other}"])}
        if missing and time.monotonic() > until:
            numbers = ", ".join(map(str, sorted(missing)))
            raise Fault(f"after {patience} these of {world} processes are not here: {numbers}; what did they say?")
    return own
