"""How many threads a run on a CPU has: fewer than cores, where others use these too.

A product waits for the slowest of its threads, and one whose core is taken by another process is slow.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

import torch

from shoestring.core.records import Machine

GIVEN = "OMP_NUM_THREADS"
"""The variable by which a user sets the number."""
SHAPE = (1024, 128, 384)
"""Of the product that is timed: rows, and the width of both sides, as in a small network."""
ROUND_SECONDS, ROUNDS = 0.01, 5
WORTH = 1.15
"""Fewer threads are taken if they are faster by this factor."""


@contextlib.contextmanager
def fastest_threads(
    machine: Machine, kept: Machine | None, say: Callable[[str], object], seconds: Callable[[int], float] | None = None
) -> Iterator[None]:
    """Give torch as many threads as are fastest now, until the end of the context.

    A run that resumes on the machine that it `kept` has as many as before, so that its bits are the same. `seconds` is
    the time of a product with so many threads; default: it is timed.
    """
    before, most = torch.get_num_threads(), machine.threads
    if machine.device != "cpu" or most == 1 or GIVEN in os.environ:
        yield
        return
    try:
        if kept is not None and kept.is_like(machine):
            chosen = min(most, kept.threads)
        else:
            chosen = _fastest(most, seconds or _seconds)
            if chosen < most:
                say(f"{chosen} of {most} threads: others use the cores too, and more would be slower; {GIVEN} sets it")
        torch.set_num_threads(chosen)
        yield
    finally:
        torch.set_num_threads(before)


def _fastest(most: int, seconds: Callable[[int], float]) -> int:
    """The largest of `most`, half of it, …, 1 that is not much slower than the fastest."""
    counts = [most >> halvings for halvings in range(most.bit_length())]
    rounds = [{count: seconds(count) for count in counts} for _ in range(ROUNDS)]  # all see the same busy moments
    medians = {count: sorted(each[count] for each in rounds)[ROUNDS // 2] for count in counts}
    least = min(medians.values())
    return next(count for count in counts if medians[count] <= WORTH * least)


def _seconds(count: int) -> float:
    """Of one product."""
    torch.set_num_threads(count)
    rows, inner, columns = SHAPE
    a, b = torch.ones(rows, inner), torch.ones(inner, columns)
    a @ b  # starts the threads
    started, done = time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < ROUND_SECONDS or not done:
        a @ b
        done += 1
    return passed / done
