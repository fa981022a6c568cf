"""Measuring a workload, smallest batch first, so that what is learned on small ones keeps large ones from failing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from shoestring.core.facts import Point
from shoestring.core.units import Bytes, Seconds
from shoestring.probe.workload import Workload

_WORSE = 1.10
"""A row that takes this many times as long as at the best batch so far ends the search."""
_MEMORY_SHARE = 0.92
"""The share of the free memory that a prediction may use before a batch is not tried."""


def candidate_batches(batch: int) -> list[int]:
    """Divisors of the effective batch to try, smallest first: the largest below each power of two, and the whole."""
    divisors = [d for d in range(1, batch + 1) if batch % d == 0]
    chosen = {max(d for d in divisors if d <= 2**k) for k in range(batch.bit_length())} | {batch}
    return sorted(chosen)


def measure(
    workload: Workload, batches: Sequence[int], limit_bytes: int | None, seconds: float
) -> Iterator[dict[str, Any]]:
    """Yields {"point": …} for each batch that was measured, then {"stopped": why}, then {"update_seconds": …, …}.

    About `seconds` are spent on the points. The findings come one by one, so that a crash loses only the last.
    """
    points: list[Point] = []
    stopped = f"batch {batches[-1]} is the effective batch"
    for batch in batches:
        predicted = predicted_bytes(points, batch)
        if predicted and limit_bytes and predicted > limit_bytes * _MEMORY_SHARE:
            stopped = f"batch {batch} would need {Bytes(int(predicted)).short()} of {Bytes(limit_bytes).short()}"
            break
        expected = points[-1].seconds / points[-1].batch * batch if points else 0.0
        if expected > seconds:
            stopped = f"a pass at batch {batch} would take {Seconds(expected).short()}, longer than all of measuring"
            break
        try:
            workload.accumulate(batch)  # the first pass at a new shape also pays for its set-up
            workload.update()
            workload.reset_peak()
            times = repeat(partial(workload.accumulate, batch), seconds / len(batches))
            workload.update()
        except MemoryError:
            stopped = f"batch {batch} ran out of memory"
            break
        point = Point(
            batch=batch, seconds=statistics.median(times), slowest_seconds=max(times), peak_bytes=workload.peak_bytes()
        )
        points.append(point)
        yield {"point": point}
        fastest = min(p.seconds / p.batch for p in points)
        if point.seconds / point.batch > _WORSE * fastest:
            stopped = f"a row takes longer at batch {batch} than at a smaller one"
            break
    yield {"stopped": stopped}
    if not points:
        return
    best = min(points, key=lambda p: p.seconds / p.batch).batch
    yield {"update_seconds": _update_seconds(workload, best)}
    workload.validate(best)
    yield {"validate_seconds_per_row": statistics.median(repeat(lambda: workload.validate(best), 0.3)) / best}
    started = time.perf_counter()
    size = workload.checkpoint()
    yield {"checkpoint_seconds": time.perf_counter() - started, "checkpoint_bytes": size}


def _update_seconds(workload: Workload, batch: int) -> float:
    times = []
    for _ in range(3):
        workload.accumulate(batch)
        started = time.perf_counter()
        workload.update()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def repeat(work: Callable[[], None], seconds: float) -> list[float]:
    """Times of repeated calls, at least three, for about `seconds` in all."""
    times: list[float] = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 50):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return times


def predicted_bytes(points: Sequence[Point], batch: int) -> float | None:
    """The peak at `batch` by the line through the two largest batches measured; None before there are two."""
    known = [(p.batch, p.peak_bytes) for p in points if p.peak_bytes is not None]
    if len(known) < 2:
        return None
    (b0, y0), (b1, y1) = known[-2:]
    return y1 + max(0.0, (y1 - y0) / (b1 - b0)) * (batch - b1)
