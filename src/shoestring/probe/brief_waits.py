"""Threads that wait for each other only briefly while other programs need the processors, too."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import torch

from shoestring.probe.load import Load, load, own_processors, used_by_others

PERIOD = 0.5
"""Seconds between two looks at the processors."""
CROWD, CROWD_SHARE = 0.5, 1 / 16
"""Of the processors that the threads need, so many are others', or such a share if that is more, and they are crowded.
Where others used half of one of two, either way of waiting took about as long (results/log.md)."""
CALM = 0.5
"""Of that, the share below which they no longer are."""
OWN_POLICY = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""Variables with which a user says how long threads wait."""
MOST_TEAMS = 64


@contextmanager
def idle_teams() -> Iterator[None]:
    """Teams of threads that do nothing, so that there are more threads in all than processors."""
    over, made = threading.Event(), list[threading.Thread]()
    count, processors = torch.get_num_threads(), len(own_processors())
    _rehearse(count)
    try:
        while count <= processors and len(made) < MOST_TEAMS:
            ready, sizes = threading.Event(), list[int]()
            made.append(threading.Thread(target=_idle, args=(ready, over, sizes), daemon=True))
            made[-1].start()
            ready.wait()
            if not sizes or sizes[0] < 2:  # a team of one has no threads
                break
            count += sizes[0] - 1
        yield
    finally:
        over.set()
        for thread in made:
            thread.join()


def _rehearse(count: int) -> None:
    """Begin and end so many threads: RuntimeError where the system has no more, for which OpenMP ends the process."""
    over, made = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(count):
            made.append(threading.Thread(target=over.wait, daemon=True))
            made[-1].start()
    finally:
        over.set()
        for thread in made:
            if thread.ident is not None:
                thread.join()


def _idle(ready: threading.Event, over: threading.Event, sizes: list[int]) -> None:
    """Make a team by an operation that is large enough for all its threads, and keep it."""
    try:
        size = torch.get_num_threads()
        torch.zeros(size << 16, dtype=torch.uint8).add_(1)
        sizes.append(size)
    finally:
        ready.set()
    over.wait()


@contextmanager
def brief_waits(
    look: Callable[[], Load] | None = None,
    team: Callable[[], AbstractContextManager[None]] = idle_teams,
    given: Mapping[str, str] = os.environ,
) -> Iterator[None]:
    """While processors are crowded, let torch's threads sleep soon where they wait for each other.

    After every operation the threads of OpenMP (GNU's) wait awake for about a millisecond, which is fastest where the
    processors are theirs. Where another process has one of them, they wait awake for the thread that it stopped: a step
    of a small network took 50 ms alone on two cores, and 1,700 beside another run. A process with more threads than
    processors waits a three-hundredth of that. So while others need the processors, there is a second team of threads
    that does nothing. Operations have as many threads as before, and the same results.
    """
    threads = torch.get_num_threads()
    if threads < 2 or any(name in given for name in OWN_POLICY):
        yield
        return
    over, look = threading.Event(), look or partial(load, only=own_processors())
    watcher = threading.Thread(target=_watch, args=(over, look, team, threads), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(
    over: threading.Event, look: Callable[[], Load], team: Callable[[], AbstractContextManager[None]], threads: int
) -> None:
    """Keep an idle team while others crowd the processors."""
    before, brief = look(), False
    spare, crowd = max(0, len(own_processors()) - threads), max(CROWD, CROWD_SHARE * threads)
    with ExitStack() as kept:
        while not over.wait(PERIOD):
            after = look()
            others = used_by_others(before, after)
            if others is None:
                return
            before = after
            if not brief and others > spare + crowd:
                try:
                    kept.enter_context(team())
                except RuntimeError:  # no more threads for this user
                    return
                brief = True
            elif brief and others < spare + CALM * crowd:
                kept.close()
                brief = False
