"""The largest batch that fits, by a line: few trials, none of them meant to fail.

Tensors take a + b · batch bytes. Where that is not exact, a row takes less at larger batches (a full workspace, a whole
chunk), so a line through two trials is never below what a larger batch takes. The allocator adds rounding, at most
ROUNDING per tensor, and fragmentation, a share. So:

1. One small trial. At worst, all that it used above its rest grows with the rows; this bounds the next trial.
2. A trial that takes half of the remaining room by that bound. The line through both gives the batch that fills it.
3. That batch, in a process of its own, as in a run; it must fit and is not timed. Where it is far larger than the
   second, it is reduced by the fragmentation that may be added.
4. A trial of what trial 3 left unused; more of them only where rows turn out far cheaper than small batches showed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

from shoestring.core.numeric import last_that_holds
from shoestring.core.records import MemoryModel
from shoestring.core.units import Bytes, Seconds
from shoestring.probe.child import Died
from shoestring.probe.trials import Trial, Usage

ROUNDING = 2 << 20
"""Torch's allocator rounds a large tensor up to a multiple of these bytes."""
_LEVER = 0.5
"""Share of the room after the first trial that the second may take at worst."""
_NOISE = 4 << 20
"""Bytes: a first trial that used less above its rest may have reused memory that was already there."""
_CLEAR = 4 * _NOISE
"""Bytes between two trials that show what a row takes."""
_CORRECTIONS = 3
"""Trials after the third, at most."""
_LITTLE, _MUCH = 0.005, 0.03
"""Share of rows that the first correction must gain, and that later ones must, where the line was too steep."""
_LONG = 10.0
"""Seconds of all trials; a correction that would exceed them must gain `_MUCH`."""
MOST_ROWS = 1 << 40
"""The largest batch that is reported, where rows take no memory."""
FRAGMENTATION = {"cuda": 0.04, "cpu": 0.0}
"""By device type, the least fragmentation expected of the third trial, as a share of what tensors take. The second may
have had less, since a larger batch fragments differently."""
_FAR, _CAUTION = 8, 1.5
"""A third trial with more than `_FAR` times the rows of the second allows for `_CAUTION` times its fragmentation."""
_BACK = 0.8
"""After a trial that did not fit, the next one is at this share of the distance from the last that fitted."""
_FAR_BACK = 0.125
"""The same for the second trial, before which little is known."""


class Found(NamedTuple):
    """The result of a search."""

    law: MemoryModel
    stopped: str
    """Why no larger batch was tried."""
    trials: tuple[Trial, ...]
    """Those that fitted, smallest batch first."""


def upper_bytes(trials: list[Trial], batch: int, least_holes: float = 0.0) -> float:
    """The most that a `batch` above those tried takes; needs trials with a usage, smallest batch first.

    `least_holes` is the least fragmentation, as a share of what tensors take.
    """
    last = _usage(trials[-1])
    if len(trials) == 1:
        rest = min(last.rest, last.held)
        return rest + (last.held - rest) * batch / trials[-1].batch
    asked = last.asked + _slope(trials) * (batch - trials[-1].batch)
    slack = last.reserved - last.asked
    holes = slack * max(1.0, asked / max(1, last.asked))
    return asked + max(holes, least_holes * asked, last.blocks * ROUNDING) + last.outside


def _slope(trials: list[Trial]) -> float:
    """Bytes of tensors per row, against a trial with at most half the rows of the last: nearer ones show noise."""
    last = trials[-1]
    before = next((trial for trial in reversed(trials) if 2 * trial.batch <= last.batch), trials[0])
    return max(0.0, (_usage(last).asked - _usage(before).asked) / (last.batch - before.batch))


def _usage(trial: Trial) -> Usage:
    assert trial.usage is not None, "a search needs to know the memory"
    return trial.usage


def line(trials: list[Trial]) -> tuple[int, float]:
    """Expected bytes (fixed, per row), through the largest trial; with one trial, its rest is fixed."""
    last = _usage(trials[-1])
    if len(trials) == 1:
        rest = min(last.rest, last.held)
        return rest, (last.held - rest) / trials[-1].batch
    row = _slope(trials)
    return max(0, round(last.held - row * trials[-1].batch)), row


def largest_within(bytes_of: Callable[[int], float], room: float, least: int) -> int:
    """The largest batch whose bytes are within the room, at least `least`; `bytes_of` must not decrease."""
    if bytes_of(least + 1) > room:
        return least
    return last_that_holds(lambda batch: bytes_of(batch) <= room, least + 1, MOST_ROWS) or MOST_ROWS


Try = Callable[[int, bool, bool], Trial]
"""(batch, in a process of its own, timed) → trial. Raises MemoryError where the batch does not fit."""


class _Search:
    """The trials so far."""

    def __init__(self, trial: Try, limit: int, margin: int, seconds: float, most: int):
        self._trial, self.limit, self.margin, self._seconds = trial, limit, margin, seconds
        self.room, self._most = limit - margin, most
        self.fitted: list[Trial] = []
        self.tried = self.out_of_memory = 0
        self._row_seconds = 0.0
        self.died = False
        self.stopped = ""

    def attempt(self, batch: int, apart: bool = False, timed: bool = True) -> bool:
        self.tried += 1
        try:
            trial = self._trial(batch, apart, timed)
        except MemoryError:
            self.out_of_memory += 1
            self.stopped = f"batch {batch:,} ran out of memory"
            return False
        except Died as cause:
            self.died = True
            self.stopped = f"batch {batch:,} ended the process ({cause})"
            return False
        if trial.times:
            self._row_seconds = statistics.median(trial.times) / batch
        else:  # one pass, mostly compiling: assume the seconds per row of the timed trials
            seconds = min(trial.seconds, self.pass_seconds(batch))
            trial = trial._replace(seconds=seconds, compile_seconds=trial.seconds - seconds)
        self.fitted.append(trial)
        return True

    def safe(self, least_holes: float = 0.0) -> int:
        """The largest batch that fits the room at worst."""
        return self._within(lambda batch: upper_bytes(self.fitted, batch, least_holes), self.room)

    def surely(self) -> int:
        """The largest batch that fits if all that the last one used above its rest grows with the rows."""
        return self._within(lambda batch: upper_bytes(self.fitted[-1:], batch), self.room)

    def lever(self) -> int:
        """Rows of the second trial, which may take a part of the room.

        All that the first used above its rest is assumed to grow, except the rounding of small tensors.
        """
        only, first = _usage(self.fitted[-1]), self.fitted[-1].batch
        rest = min(only.rest, only.asked)
        row = max(_NOISE, only.asked - rest) / first
        room = only.held + _LEVER * (self.room - only.held)
        return self._within(lambda batch: rest + row * batch + only.held - only.asked, room)

    def _within(self, bytes_of: Callable[[int], float], room: float) -> int:
        return min(self._most, largest_within(bytes_of, room, self.fitted[-1].batch))

    @property
    def seconds(self) -> float:
        """Of the trials so far."""
        return sum(trial.seconds for trial in self.fitted)

    def pass_seconds(self, batch: int) -> float:
        """At the seconds per row of the last timed trial."""
        return self._row_seconds * batch

    def in_time(self, batch: int) -> int:
        """`batch`, or the most rows that a pass has in the seconds allowed, at the speed of the last timed trial."""
        most = int(min(1e15, self._seconds / max(1e-12, self._row_seconds)))
        if batch > most:
            took = Seconds(self.pass_seconds(batch)).short()
            self.stopped = f"a pass over batch {batch:,}, which may fit, would take {took}"
        return min(batch, most)

    def found(self, complete: bool) -> Found:
        """The result; `complete` where time did not end the search, nor the most rows that are asked for."""
        fixed, row = line(self.fitted) if self.fitted else (0, 0.0)
        verified = self.fitted[-1].batch if self.fitted else None
        if verified == self._most and fixed + row * verified <= self.room:
            self.stopped, complete = f"batch {verified:,} is the largest that is asked for", False
        fits = largest_within(lambda batch: fixed + row * batch, self.room, 0) if complete and verified else 0
        largest = min(verified or 0, fits) or None
        law = MemoryModel(
            fixed_bytes=fixed,
            row_bytes=row,
            limit_bytes=self.limit,
            margin_bytes=self.margin,
            largest=largest,
            verified=verified,
            trials=self.tried,
            out_of_memory=self.out_of_memory,
            trial_seconds=self.seconds,
        )
        return Found(law, self.stopped, tuple(self.fitted))


def find_largest(
    trial: Try,
    limit: int,
    margin: int,
    seconds: float = math.inf,
    first: int = 1,
    holes: float = FRAGMENTATION["cpu"],
    most: int = MOST_ROWS,
) -> Found:
    """Search with three or four trials, rarely up to six, of at most `most` rows and about `seconds` a pass.

    `law.largest` is None where time or `most` ended the search or nothing fits.
    """
    search = _Search(trial, limit, margin, seconds, most)
    first = min(first, most)
    if not search.attempt(first):
        return search.found(complete=True)
    full = f"the next row would pass {Bytes(search.room).short()}: {Bytes(limit).short()} free less the margin"
    lever = search.lever()
    second = lever if lever > first else min(2 * first, search.safe())
    if second == first:
        search.stopped = full
        return search.found(complete=True)
    second = max(first + 1, search.in_time(second))
    search.stopped = ""
    while not search.attempt(second):
        if second == first + 1 or search.died:
            return search.found(complete=True)
        second = max(first + 1, first + int(_FAR_BACK * (second - first)))
    third = search.safe(holes)
    last = _usage(search.fitted[-1])
    if third > _FAR * second:
        third = search.safe(max(holes, _CAUTION * ((last.reserved - last.asked) / max(1, last.asked))))
    timely = search.in_time(third)
    unclear = last.asked - _usage(search.fitted[0]).asked < _CLEAR  # the bytes per row are lost in noise
    if third > timely and unclear and (clearer := min(timely, search.surely())) > second:
        if not search.attempt(clearer):
            return search.found(complete=False)
        second, third = clearer, search.safe(holes)
        timely = search.in_time(third)
    if third > timely:
        return search.found(complete=False)
    search.stopped = full
    if third > second:
        if not search.attempt(third, apart=True, timed=False):
            back = second + int(_BACK * (third - second))
            if back > second and not search.died:
                search.attempt(back, apart=True, timed=False)
            return search.found(complete=True)
        for number in range(_CORRECTIONS):
            largest, following = search.fitted[-1], search.safe()
            little = number == 0 and search.seconds + search.pass_seconds(following) <= _LONG
            least = max(1, _LITTLE * largest.batch) if little else max(2, _MUCH * largest.batch)
            gained = following - largest.batch
            if gained < least or _usage(largest).squeezed or search.in_time(following) < following:
                break
            if not search.attempt(following, apart=True, timed=False):
                break
    return search.found(complete=True)
