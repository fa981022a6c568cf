"""Trials of a workload: a few real steps at one batch size, with their seconds by kind and the memory they used."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from shoestring.core.records import Point

_MOST_PASSES = 50
_MOST_STEPS = 1000
"""Steps in one timed sequence, at most."""
_STEPS_SECONDS = 0.5


class Usage(NamedTuple):
    """Memory in bytes, on top of what was in use before the workload was built."""

    asked: int
    """The peak of what tensors took: a straight line in the batch size."""
    reserved: int
    """The peak of what the allocator held for them: `asked` with rounding and fragmentation."""
    outside: int
    """What the device's driver and libraries took beside the allocator."""
    rest: int
    """Between steps: weights, optimizer state, and what is kept for the next pass."""
    blocks: int = 0
    """Tensors that were alive at once and have a memory block of their own, each of them rounded up."""
    squeezed: bool = False
    """Whether the allocator had to return cached memory before it could serve a request."""

    @property
    def held(self) -> int:
        """What must be free on the device."""
        return self.reserved + self.outside


class Workload(Protocol):
    """Steps at any batch size. Methods return when the device has finished, and raise MemoryError where it is full."""

    compiled: bool
    """Whether a new batch size is compiled first, and passes may be recorded."""

    def accumulate(self, batch: int) -> None:
        """Run one forward and backward pass over `batch` rows."""

    def rehearse(self, batch: int) -> bool:
        """Record the passes over `batch` rows without running them, after one was run; whether that was possible."""

    def update(self) -> None:
        """Take the optimizer step that follows the passes."""

    def validate(self, batch: int) -> None:
        """Run one scoring pass over `batch` rows."""

    def forget(self) -> None:
        """Drop what is kept for the next training pass: gradients and recordings."""

    def steps(self, batch: int, count: int, passes: int = 1) -> None:
        """Take `count` steps of so many passes and an update each, as a run does: waits for the device once."""

    def checkpoint(self, beside: Callable[[], object] = lambda: None) -> int:
        """Save everything once, as a run does, and call `beside` meanwhile; returns the bytes written."""

    def reset_peak(self) -> None:
        """Start a new memory peak."""

    def usage(self) -> Usage | None:
        """Memory used since `reset_peak`; None where the system does not report it."""


class Trial(NamedTuple):
    """One batch size that was tried and fitted."""

    batch: int
    times: tuple[float, ...]
    """Seconds of each steady pass; empty where the trial was for memory only and compiled."""
    seconds: float
    """Of the whole trial, without the extra time of the first pass (compiling, loading kernels) where that is known."""
    compile_seconds: float
    """The first pass less a steady one where something is compiled; else 0."""
    warmup_seconds: float
    """The extra time of the other passes before the steady ones."""
    usage: Usage | None
    others: float | None = None
    """Processors that other processes used meanwhile; None: unknown."""

    def point(self) -> Point:
        return Point(
            batch=self.batch,
            seconds=statistics.median(self.times),
            slowest_seconds=max(self.times),
            peak_bytes=None if self.usage is None else self.usage.reserved,
            fastest_seconds=min(self.times),
        )


class Overheads(NamedTuple):
    """What a run does besides passes."""

    update_seconds: float
    step_seconds: float
    """A step's passes and update, without waiting for the device in between."""
    validate_seconds_per_row: float
    checkpoint_seconds: float
    """The delay that saving causes: what concurrent passes do not hide."""
    checkpoint_bytes: int
    write_seconds: float
    """From the beginning of a checkpoint until it is on disk."""
    score_late_seconds: float
    """The extra time of the first scoring pass: compiling, loading kernels."""
    peak_bytes: int | None
    """Peak of passes, updates, scoring, and saving during the next pass; None where the system does not report it."""


class Trials(Protocol):
    """What a search calls, in this process or another. Batches that do not fit raise MemoryError."""

    def trial(self, batch: int, seconds: float = 0.0, least: int = 1, scoring: bool = False) -> Trial:
        """Steps at `batch`, or scoring passes: at least `least` steady passes, for about `seconds`.

        With `least` = 0 the trial is for memory only: compiled passes run over the rows once.
        """

    def around(self, batch: int, scored: int, passes: int = 1) -> Overheads:
        """Overheads of steps with `passes` passes over `batch` rows; `scored` rows are scored in one pass."""


class LocalTrials:
    """Trials in this process."""

    def __init__(self, workload: Workload):
        self._workload = workload

    def trial(self, batch: int, seconds: float = 0.0, least: int = 1, scoring: bool = False) -> Trial:
        return self._scoring(batch, seconds, least) if scoring else self._training(batch, seconds, least)

    def begin(self, batch: int, passes: int = 1) -> Trial:
        """The first steps of a run with so many passes per step; times are those of steps.

        A step begins without a gradient. A trial, by contrast, adds one pass to another, because a batch that fits must
        fit in steps of any number of passes.
        """
        work, one_step = self._workload, partial(self._workload.steps, batch, 1, passes)
        began, first = self._first(one_step)
        others = [timed(one_step), timed(one_step)] if work.compiled else []  # recorded, as in a trial
        return _trial(work, batch, began, first, others, repeat(one_step, 0.0, 1 if work.compiled else 2))

    def _first(self, work: Callable[[], object]) -> tuple[float, float]:
        """Drop recordings, whose replays allocate nothing, and start a new peak; when it began, seconds of a call."""
        self._workload.forget()
        self._workload.reset_peak()
        return time.perf_counter(), timed(work)

    def _training(self, batch: int, seconds: float, least: int) -> Trial:
        """The peak covers all passes, including the first: compiling and optimizer state are in it."""
        work, one_pass = self._workload, partial(self._workload.accumulate, batch)
        began, first = self._first(one_pass)
        work.update()
        others: list[float] = []
        if work.compiled and not least and work.rehearse(batch):
            return Trial(batch, (), time.perf_counter() - began, 0.0, 0.0, work.usage())
        if work.compiled:  # the second pass over a shape is recorded where it writes gradients, the third where it adds
            others = [timed(one_pass), timed(one_pass)]
            work.update()
        # without recordings, the second of these adds to a gradient, beside the optimizer's state
        times = repeat(one_pass, seconds, max(1 if work.compiled else 2, least))
        work.update()
        return _trial(work, batch, began, first, others, times)

    def _scoring(self, batch: int, seconds: float, least: int) -> Trial:
        """Beside weights and optimizer state, without what training keeps for its next pass."""
        one_pass = partial(self._workload.validate, batch)
        began, first = self._first(one_pass)
        return _trial(self._workload, batch, began, first, [], repeat(one_pass, seconds, max(1, least)))

    def around(self, batch: int, scored: int, passes: int = 1) -> Overheads:
        work = self._workload
        updates = []
        for _ in range(3):
            work.accumulate(batch)
            updates.append(timed(work.update))
        score = partial(work.validate, scored)
        late, scoring = timed(score), statistics.median(repeat(score, 0.3, 3))
        steady = timed(lambda: work.steps(batch, 1, passes))
        several = min(_MOST_STEPS, max(3, math.ceil(_STEPS_SECONDS / steady)))
        steady = statistics.median(repeat(lambda: work.steps(batch, several, passes), 0.0, 3)) / several
        started = time.perf_counter()
        size = work.checkpoint()
        took = time.perf_counter() - started
        enough = min(_MOST_STEPS, math.ceil(took / steady))  # writing ends before these steps do
        beside = timed(lambda: work.checkpoint(lambda: work.steps(batch, enough, passes)))
        usage = work.usage()
        return Overheads(
            update_seconds=statistics.median(updates),
            step_seconds=steady,
            validate_seconds_per_row=scoring / scored,
            checkpoint_seconds=min(took, max(0.0, beside - enough * steady)),
            checkpoint_bytes=size,
            write_seconds=took,
            score_late_seconds=max(0.0, late - scoring),
            peak_bytes=None if usage is None else usage.reserved,
        )


def _trial(work: Workload, batch: int, began: float, first: float, others: list[float], times: list[float]) -> Trial:
    wall, steady = time.perf_counter() - began, statistics.median(times)
    late = max(0.0, first - steady)
    compiling = late if work.compiled else 0.0
    return Trial(
        batch=batch,
        times=tuple(times),
        seconds=wall - late,
        compile_seconds=compiling,
        warmup_seconds=late - compiling + sum(max(0.0, other - steady) for other in others),
        usage=work.usage(),
    )


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def repeat(work: Callable[[], object], seconds: float, least: int) -> list[float]:
    """Seconds of each of at least `least` calls that take about `seconds` in total."""
    times: list[float] = []
    while len(times) < least or (sum(times) < seconds and len(times) < _MOST_PASSES):
        times.append(timed(work))
    return times
