"""Trials of a workload: a few real steps at one batch, with their seconds by kind and the memory they took."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from shoestring.core.facts import Point
from shoestring.probe.workload import Usage, Workload

_MOST_PASSES = 50
_MOST_STEPS = 1000
"""One after the other."""
_STEPS_SECONDS = 0.5


class Trial(NamedTuple):
    """One batch that was tried, and that fitted."""

    batch: int
    times: tuple[float, ...]
    """Seconds of each steady pass; none where the trial was of memory alone, and compiled."""
    seconds: float
    """Of the whole trial, without what the first pass took longer than a steady one, where one is known: compiling,
    loading of kernels."""
    compile_seconds: float
    """The first pass less a steady one, where something is compiled; else 0."""
    warmup_seconds: float
    """What the other passes before the steady ones took longer than those."""
    usage: Usage | None

    def point(self) -> Point:
        return Point(
            batch=self.batch,
            seconds=statistics.median(self.times),
            slowest_seconds=max(self.times),
            peak_bytes=None if self.usage is None else self.usage.reserved,
            fastest_seconds=min(self.times),
        )


class Around(NamedTuple):
    """What a run does besides passes."""

    update_seconds: float
    step_seconds: float
    """Of the passes of a step and their update, where the device is not waited for in between."""
    validate_seconds_per_row: float
    checkpoint_seconds: float
    """That a run goes on later for saving: what passes beside it do not hide."""
    checkpoint_bytes: int
    write_seconds: float
    """From the beginning of a checkpoint until it is on disk."""
    score_late_seconds: float
    """What the first scoring took longer than others: compiling, loading of kernels."""
    peak_bytes: int | None
    """Of all since the process began as a run does: of passes, updates, scoring, and saving beside the next pass. None
    where the system does not tell."""


class Trials(Protocol):
    """What a search asks for; here or in another process. What does not fit raises MemoryError."""

    def trial(self, batch: int, seconds: float = 0.0, least: int = 1, scoring: bool = False) -> Trial:
        """Steps at `batch`, with at least so many steady passes, for about `seconds`; or scoring passes.

        With none of them it is memory that is asked for: what is compiled passes over the rows once.
        """
        ...

    def around(self, batch: int, scored: int, passes: int = 1) -> Around:
        """With steps of some passes over `batch` rows, after a beginning with them; `scored` at a time are scored."""
        ...


class LocalTrials:
    """Trials in this process."""

    def __init__(self, workload: Workload):
        self._workload = workload

    def trial(self, batch: int, seconds: float = 0.0, least: int = 1, scoring: bool = False) -> Trial:
        return self._scoring(batch, seconds, least) if scoring else self._training(batch, seconds, least)

    def begin(self, batch: int, passes: int = 1) -> Trial:
        """The first steps of a run that has so many passes to a step; what is timed are steps.

        No gradient is there when a step begins. A trial adds one pass to another, for a batch that fits is to fit in
        steps of any number of them.
        """
        work, one_step = self._workload, partial(self._workload.steps, batch, 1, passes)
        work.forget()
        work.reset_peak()
        began = time.perf_counter()
        first = timed(one_step)
        others = [timed(one_step), timed(one_step)] if work.compiled else []  # recorded, as in a trial
        return _trial(work, batch, began, first, others, repeat(one_step, 0.0, 1 if work.compiled else 2))

    def _training(self, batch: int, seconds: float, least: int) -> Trial:
        """The peak is that of all passes, the first one too: compiling and optimizer state are in it.

        A recording of the same batch is dropped first: its replays ask for nothing, and would tell of nothing.
        """
        work, one_pass = self._workload, partial(self._workload.accumulate, batch)
        work.forget()
        work.reset_peak()
        began = time.perf_counter()
        first = timed(one_pass)
        work.update()
        others: list[float] = []
        if work.compiled and not least and work.rehearse(batch):
            return Trial(batch, (), time.perf_counter() - began, 0.0, 0.0, work.usage())
        if work.compiled:  # the second pass over a shape is recorded where it writes gradients, the third where it adds
            others = [timed(one_pass), timed(one_pass)]
            work.update()
        # without recordings it is the second of these that adds to a gradient, beside the optimizer's state
        times = repeat(one_pass, seconds, max(1 if work.compiled else 2, least))
        work.update()
        return _trial(work, batch, began, first, others, times)

    def _scoring(self, batch: int, seconds: float, least: int) -> Trial:
        """Beside weights and optimizer state; what training keeps for its next pass is dropped first."""
        work, one_pass = self._workload, partial(self._workload.validate, batch)
        work.forget()
        work.reset_peak()
        began = time.perf_counter()
        first = timed(one_pass)
        return _trial(work, batch, began, first, [], repeat(one_pass, seconds, max(1, least)))

    def around(self, batch: int, scored: int, passes: int = 1) -> Around:
        work = self._workload
        updates = []
        for _ in range(3):
            work.accumulate(batch)
            updates.append(timed(work.update))
        late = timed(lambda: work.validate(scored))
        scoring = statistics.median(repeat(lambda: work.validate(scored), 0.3, 3))
        steady = timed(lambda: work.steps(batch, 1, passes))
        several = min(_MOST_STEPS, max(3, math.ceil(_STEPS_SECONDS / steady)))
        steady = statistics.median(repeat(lambda: work.steps(batch, several, passes), 0.0, 3)) / several
        started = time.perf_counter()
        size = work.checkpoint()
        took = time.perf_counter() - started
        enough = min(_MOST_STEPS, math.ceil(took / steady))  # the writing is over before so many steps are
        beside = timed(lambda: work.checkpoint(lambda: work.steps(batch, enough, passes)))
        usage = work.usage()
        return Around(
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
    """Times of repeated calls, at least so many, for about `seconds` in all."""
    times: list[float] = []
    while len(times) < least or (sum(times) < seconds and len(times) < _MOST_PASSES):
        times.append(timed(work))
    return times
