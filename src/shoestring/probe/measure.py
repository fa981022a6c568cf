"""Timing a workload, smallest batch first: what small batches show keeps large ones from failing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shoestring.core.records import MemoryModel
from shoestring.core.units import Bytes, Seconds
from shoestring.planning.split import divisors_of
from shoestring.probe.child import Died, OutOfTime
from shoestring.probe.search import line, upper_bytes
from shoestring.probe.trials import Trial, Trials

_WORSE = 1.10
"""Timing ends where a row takes this many times as long as at the best batch so far."""
_BETTER = 0.98
"""Beyond the effective batch, a row must take less than this share of the best time so far, or timing ends."""
PASSES = 3
"""Timed at each batch, at least."""
_UNSTEADY = 2.0
"""Passes of one batch that differ by this factor are timed again."""
_BUSY = 3.0
"""Passes that still differ by this factor were disturbed; short ones differ by less on any machine."""
_AGAIN = 2
"""How often a batch is timed again, at most."""


class Timings(NamedTuple):
    """The result of timing a sequence of batches."""

    trials: tuple[Trial, ...]
    stopped: str
    """Why no larger batch was tried."""
    out_of_memory: int
    late: bool = False
    """Whether the time was over."""

    def unsteady(self) -> Trial | None:
        """The trial whose passes differ most, if they do even after others were timed."""
        odd = [trial for trial in self.trials if _spread(trial) > _BUSY]
        return max(odd, key=_spread, default=None)

    @property
    def others(self) -> float | None:
        """Processors that other processes used, in the mean over the trials; None: unknown."""
        known = [trial.others for trial in self.trials if trial.others is not None]
        return statistics.fmean(known) if known else None


def _spread(trial: Trial) -> float:
    return max(trial.times) / max(1e-9, min(trial.times))


def candidate_batches(batch: int, factor: int = 2) -> list[int]:
    """Divisors of the effective batch to try, smallest first: the largest below each power of two, 1 and the whole.

    `factor`, a power of two, is about the ratio of neighbours, where each size must be compiled.
    """
    every = factor.bit_length() - 1
    divisors = divisors_of(batch)
    chosen = {max(d for d in divisors if d <= 2**k) for k in range(batch.bit_length())} | {batch}
    spaced = sorted(chosen)[::-every]
    return sorted({1, batch, *(size for size in spaced if size >= factor)})


def beyond(batch: int, largest: int, factor: int = 2) -> list[int]:
    """Multiples of the effective batch up to the largest that fits, to see how much faster a row could be."""
    found = []
    while batch * factor <= largest:
        batch *= factor
        found.append(batch)
    return found


def time_batches(
    trials: Trials,
    batches: Sequence[int],
    effective: int,
    room: int | None,
    seconds: float,
    over: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda _: None,
) -> Timings:
    """Passes at each batch, for about `seconds` in total; none at a further batch when the time is `over`.

    A batch whose passes differ much, or whose rows take longer than at a smaller batch, is timed again: most likely
    another process was busy. The faster of its trials counts.

    A batch that is unlikely to fit `room`, or whose pass would take longer than `seconds`, is replaced by the largest
    divisor of the effective batch that is likely to fit; then it is considered again. A batch that runs out of memory
    or kills the process ends the sequence.
    """
    found: list[Trial] = []
    left = list(batches)
    while left:
        batch = left[0]
        if found and over():
            return Timings(tuple(found), f"the time for measuring was over before batch {batch:,}", 0, late=True)
        if why := _no_better(found, batch, effective):
            return Timings(tuple(found), why, 0)
        if why := _out_of_reach(found, batch, room, seconds):
            batch = _instead(found, batch, effective, room, seconds)
            if not batch:
                return Timings(tuple(found), why, 0)
        else:
            left.pop(0)
        say(f"batch {batch:,}")
        try:
            trial = _timed(trials, batch, seconds / len(batches), found, over)
        except MemoryError as cause:
            detail = f" ({cause})" if str(cause) else ""
            return Timings(tuple(found), f"batch {batch:,} ran out of memory{detail}", 1)
        except OutOfTime:
            return Timings(tuple(found), f"the time for measuring was over at batch {batch:,}", 0, late=True)
        except Died as cause:
            return Timings(tuple(found), f"batch {batch:,} ended the process ({cause})", 0)
        found.append(trial)
    return Timings(tuple(found), f"batch {batches[-1]:,} is the largest there was to try", 0)


def _timed(trials: Trials, batch: int, seconds: float, found: Sequence[Trial], over: Callable[[], bool]) -> Trial:
    """The fastest of up to three trials of a batch; of one, where that is as it should be."""
    best = min((_row(trial) for trial in found), default=math.inf)
    trial = trials.trial(batch, seconds, PASSES)
    for _ in range(_AGAIN):
        if over() or (_spread(trial) <= _UNSTEADY and _row(trial) <= _WORSE * best):
            break
        try:
            again = trials.trial(batch, seconds, PASSES)
        except OutOfTime:
            break
        trial = min(trial, again, key=lambda each: statistics.fmean(each.times))
    return trial


def _row(trial: Trial) -> float:
    """Seconds per row."""
    return statistics.median(trial.times) / trial.batch


def _out_of_reach(found: Sequence[Trial], batch: int, room: int | None, seconds: float) -> str | None:
    return _too_large(found, batch, room) or _too_long(found, batch, seconds)


def _instead(found: Sequence[Trial], batch: int, effective: int, room: int | None, seconds: float) -> int:
    """The largest divisor within reach that is clearly larger than the last batch; 0 where there is none.

    A single trial does not show what a row takes; then twice its rows are tried.
    """
    last = found[-1].batch
    least = last + max(1, last // 4)
    smaller = [d for d in divisors_of(effective) if least <= d < batch and not _out_of_reach(found, d, room, seconds)]
    if not smaller and len(found) == 1 and 2 * last < batch and not _too_long(found, 2 * last, seconds):
        return 2 * last
    return max(smaller, default=0)


def _too_large(found: Sequence[Trial], batch: int, room: int | None) -> str | None:
    known = [trial for trial in found if trial.usage is not None]
    if room is None or not known or (len(known) == 1 and batch <= 2 * known[0].batch):
        return None  # the smallest batches are measured wherever they fit at all
    if (needed := upper_bytes(known, batch)) <= room:
        return None
    return f"batch {batch:,} would need {Bytes(int(needed)).short()}, and {Bytes(room).short()} may be used"


def _too_long(found: Sequence[Trial], batch: int, seconds: float) -> str | None:
    if not found or (expected := _row(found[-1]) * batch) <= seconds:
        return None
    return f"a pass at batch {batch:,} would take {Seconds(expected).short()}, longer than the whole measurement"


def _no_better(found: Sequence[Trial], batch: int, effective: int) -> str | None:
    if not found:
        return None
    rows = [_row(trial) for trial in found]
    if rows[-1] > _WORSE * min(rows):
        return f"a row takes longer at batch {found[-1].batch:,} than at a smaller one"
    if len(rows) > 1 and batch > effective and rows[-1] > _BETTER * min(rows[:-1]):
        return f"a row is no faster at batch {found[-1].batch:,} than at a smaller one"
    return None


def law_of(timings: Timings, limit: int | None, margin: int) -> MemoryModel | None:
    """The memory model of the timed batches; it does not say which batch is the largest that fits."""
    known = [trial for trial in timings.trials if trial.usage is not None]
    if len(known) < 2:
        return None
    fixed, row = line(known)
    return MemoryModel(
        fixed_bytes=fixed,
        row_bytes=row,
        limit_bytes=limit,
        margin_bytes=margin,
        largest=None,
        verified=known[-1].batch,
        trials=len(timings.trials) + timings.out_of_memory,
        out_of_memory=timings.out_of_memory,
        trial_seconds=sum(trial.seconds for trial in timings.trials),
    )
