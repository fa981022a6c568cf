"""The largest batch that fits, by a line: few trials, none of them meant to fail.

Tensors take a + b · batch bytes. Where that is not quite so, they take less by the row at larger batches (a workspace
that is full, a chunk that is whole), so a line through two trials is never below what a larger batch takes. What the
allocator adds is rounding, at most ROUNDING a tensor, and holes, a share. So:

1. One small trial. All that it took above its rest may be of its rows, which says what is safe to try next.
2. A trial that takes half of the room left, by that account. The line through both says which batch fills the room.
3. That batch, in a process of its own, as a run would be; it is seen to fit, not timed. Where it is far larger than the
   second, less by what more its holes may be.
4. What trial 3 left unused, once more; and again only where rows came to cost far less than small batches said.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

from shoestring.core.bisection import last_that_holds
from shoestring.core.facts import MemoryLaw
from shoestring.core.units import Bytes, Seconds
from shoestring.probe.child import Died
from shoestring.probe.trials import Trial
from shoestring.probe.workload import Usage

ROUNDING = 2 << 20
"""Bytes to whose multiple torch's allocator rounds a large tensor up."""
_LEVER = 0.5
"""Of the room that the first trial left, what the second may take by the worst account."""
_NOISE = 4 << 20
"""Bytes: a first trial that took less above its rest may have found them lying about."""
_CLEAR = 4 * _NOISE
"""Bytes between two trials that tell what a row takes."""
_CORRECTIONS = 3
"""Trials after the third at most."""
_LITTLE, _MUCH = 0.005, 0.03
"""Of the rows, what the first of them must bring, and what the others must: those where the line was far too steep."""
_LONG = 10.0
"""Seconds of all trials; one that would make them longer must bring much."""
_MOST_ROWS = 1 << 40
"""Of any batch: where rows take nothing, this many are said to fit."""
HOLES = {"cuda": 0.04, "cpu": 0.0}
"""Of what tensors take, by type of device: the holes of the third trial at the least. The second may have had fewer, as
those of a larger batch are others."""
_FAR, _CAUTION = 8, 1.5
"""Of a third trial with more than so many times the rows of the second: how many times its share of holes at least."""
_BACK = 0.8
"""Of the way from the last trial that fitted, where one that did not is followed by another."""
_FAR_BACK = 0.125
"""The same of the second trial, before which little is known."""


class Found(NamedTuple):
    """What a search came to."""

    law: MemoryLaw
    stopped: str
    """Why no larger batch was tried."""
    trials: tuple[Trial, ...]
    """Those that fitted."""


def margin_bytes(limit: int, device: str) -> int:
    """What is left unused on purpose: for holes that many steps leave, and for others who use the same memory."""
    return max(32 << 20, limit // 200) if device == "cuda" else max(256 << 20, limit // 20)


def upper_bytes(trials: list[Trial], batch: int, least_holes: float = 0.0) -> float:
    """What a `batch` above those tried takes at most; needs trials with a usage, smallest batch first.

    `least_holes` is a share of what tensors take.
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
    """Bytes of tensors by the row, from a trial of at most half the rows of the last: nearer ones tell noise."""
    last = trials[-1]
    before = next((trial for trial in reversed(trials) if 2 * trial.batch <= last.batch), trials[0])
    return max(0.0, (_usage(last).asked - _usage(before).asked) / (last.batch - before.batch))


def _usage(trial: Trial) -> Usage:
    assert trial.usage is not None, "a search needs to know the memory"
    return trial.usage


def line(trials: list[Trial]) -> tuple[int, float]:
    """(fixed, by the row): what is expected, through the largest trial; of one trial, its rest is what is fixed."""
    last = _usage(trials[-1])
    if len(trials) == 1:
        rest = min(last.rest, last.held)
        return rest, (last.held - rest) / trials[-1].batch
    row = _slope(trials)
    return max(0, round(last.held - row * trials[-1].batch)), row


def largest_within(bytes_of: Callable[[int], float], room: float, least: int) -> int:
    """The largest batch from `least` on whose bytes are within the room, `least` where none is; bytes never fall."""
    if bytes_of(least + 1) > room:
        return least
    return last_that_holds(lambda batch: bytes_of(batch) <= room, least + 1, _MOST_ROWS) or _MOST_ROWS


Try = Callable[[int, bool, bool], Trial]
"""Of a batch: in a process of its own or not, timed or not. What does not fit raises MemoryError."""


class _Search:
    """The trials so far."""

    def __init__(self, trial: Try, limit: int, margin: int, seconds: float):
        self._trial, self.limit, self.margin, self._seconds = trial, limit, margin, seconds
        self.room = limit - margin
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
        else:  # one pass, most of it compiling: as long as its rows took where they were timed
            seconds = min(trial.seconds, self.pass_seconds(batch))
            trial = trial._replace(seconds=seconds, compile_seconds=trial.seconds - seconds)
        self.fitted.append(trial)
        return True

    def safe(self, least_holes: float = 0.0) -> int:
        """The largest batch that takes no more than what there is, by the worst account."""
        return largest_within(
            lambda batch: upper_bytes(self.fitted, batch, least_holes), self.room, self.fitted[-1].batch
        )

    def surely(self) -> int:
        """The largest batch that fits where all that the last one took above its rest is of its rows."""
        return largest_within(lambda batch: upper_bytes(self.fitted[-1:], batch), self.room, self.fitted[-1].batch)

    @property
    def holes(self) -> float:
        """Of the last trial, as a share of what its tensors took."""
        last = _usage(self.fitted[-1])
        return (last.reserved - last.asked) / max(1, last.asked)

    def lever(self) -> int:
        """Rows of the second trial: all that the first took above its rest grows, but for what the allocator added.

        That was the rounding of small tensors; and only a part of the room is taken.
        """
        only, first = _usage(self.fitted[-1]), self.fitted[-1].batch
        rest = min(only.rest, only.asked)
        row = max(_NOISE, only.asked - rest) / first
        room = only.held + _LEVER * (self.room - only.held)
        return largest_within(lambda batch: rest + row * batch + only.held - only.asked, room, first)

    @property
    def unclear(self) -> bool:
        """Whether the bytes of a row are lost in noise."""
        return _usage(self.fitted[-1]).asked - _usage(self.fitted[0]).asked < _CLEAR

    @property
    def seconds(self) -> float:
        """Of the trials so far."""
        return sum(trial.seconds for trial in self.fitted)

    def pass_seconds(self, batch: int) -> float:
        """If each row takes as long as where it was timed last."""
        return self._row_seconds * batch

    def in_time(self, batch: int) -> int:
        """`batch`, or as many rows as a pass of the seconds allowed can have, if each takes as long as in the last."""
        most = int(min(1e15, self._seconds / max(1e-12, self._row_seconds)))
        if batch > most:
            took = Seconds(self.pass_seconds(batch)).short()
            self.stopped = f"a pass over batch {batch:,}, which may fit, would take {took}"
        return min(batch, most)

    def found(self, complete: bool) -> Found:
        """`complete`: the room was searched to its end."""
        largest = verified = None
        fixed, row = (0, 0.0)
        if self.fitted:
            fixed, row = line(self.fitted)
            verified = self.fitted[-1].batch
        if complete and verified is not None:
            fits = largest_within(lambda batch: fixed + row * batch, self.room, 0)
            largest = min(verified, fits) or None
        law = MemoryLaw(
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
    holes: float = HOLES["cpu"],
) -> Found:
    """Mostly three or four trials, at most six where the second fits, with passes of about `seconds` at most.

    `law.largest` is None where time ended the search, or nothing fits.
    """
    search = _Search(trial, limit, margin, seconds)
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
    if third > _FAR * second:
        third = search.safe(max(holes, _CAUTION * search.holes))
    timely = search.in_time(third)
    if third > timely and search.unclear and (clearer := min(timely, search.surely())) > second:
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
            last, following = search.fitted[-1], search.safe()
            little = number == 0 and search.seconds + search.pass_seconds(following) <= _LONG
            least = max(1, _LITTLE * last.batch) if little else max(2, _MUCH * last.batch)
            gained = following - last.batch
            if gained < least or _usage(last).squeezed or search.in_time(following) < following:
                break
            if not search.attempt(following, apart=True, timed=False):
                break
    return search.found(complete=True)
