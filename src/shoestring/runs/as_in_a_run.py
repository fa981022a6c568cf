"""What trials of batches say about a run, which also scores and saves, and does not wait after each part."""

from __future__ import annotations

import statistics
from dataclasses import replace

from shoestring.core.records import MemoryModel, Point
from shoestring.probe.measure import Timings
from shoestring.probe.search import largest_within
from shoestring.probe.trials import Overheads


def below(timings: Timings, batch: int, cause: MemoryError) -> Timings:
    """The timings of smaller batches, after steps, evaluation or a checkpoint did not fit; raises `cause` if none."""
    smaller = tuple(trial for trial in timings.trials if trial.batch < batch)
    if not smaller:
        raise cause
    stopped = f"steps and evaluation at batch {batch:,} ran out of memory ({cause})"
    return timings._replace(trials=smaller, stopped=stopped, out_of_memory=timings.out_of_memory + 1)


def undisturbed(around: Overheads, timings: Timings, batch: int) -> Overheads:
    """What a run does besides passes, as much faster as the fastest pass of the batch is than the median one."""
    times = next(trial for trial in timings.trials if trial.batch == batch).times
    faster = min(times) / max(1e-9, statistics.median(times))
    names = ("update_seconds", "step_seconds", "validate_seconds_per_row")
    return around._replace(**{name: faster * getattr(around, name) for name in names})


def bytes_beside(timings: Timings, batch: int, around: Overheads) -> int:
    """Bytes that scoring, saving and several passes per update take beyond one pass over `batch` rows."""
    one = next(trial for trial in timings.trials if trial.batch == batch).usage
    return 0 if one is None or around.peak_bytes is None else max(0, around.peak_bytes - one.reserved)


def overlap_of(timings: Timings, batch: int, around: Overheads, passes: int) -> float:
    """The share of a step's timed parts that it takes in a run, which does not wait for the device after each part."""
    one = next(trial for trial in timings.trials if trial.batch == batch).point().seconds
    return min(1.0, around.step_seconds / (passes * one + around.update_seconds))


def as_in_a_run(point: Point, beside: int, overlap: float, known: dict[int, int | None]) -> Point:
    """A point with the memory of a whole run, `known` for some batches, and the seconds of uninterrupted steps."""
    times = {name: getattr(point, name) for name in ("seconds", "slowest_seconds", "fastest_seconds")}
    point = replace(point, **{name: value and overlap * value for name, value in times.items()})
    if point.peak_bytes is None:
        return point
    return replace(point, peak_bytes=known.get(point.batch) or point.peak_bytes + beside)


def law_with(law: MemoryModel, beside: int) -> MemoryModel:
    """The memory model with the other bytes of a run, and the largest batch that still fits."""
    whole = replace(law, fixed_bytes=law.fixed_bytes + beside)
    if law.largest is None or law.limit_bytes is None or not beside:
        return whole
    fits = largest_within(whole.predict, law.limit_bytes - law.margin_bytes, 0)
    return replace(whole, largest=min(fits, law.largest) or None)
