"""When a sweep will end, corrected by what its first runs took."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

DOUBT = 0.5
"""Runs' worth of trust in the forecasts: after one run its own factor counts for two thirds."""


class Pace:
    """Forecasts of runs against a clock, which counts seconds from the beginning of the sweep."""

    def __init__(self, expected: Mapping[str, float], at_once: int, now: Callable[[], float]):
        """`expected` seconds of each run, in the order in which they start."""
        self._expected, self._at_once, self._now = dict(expected), max(1, at_once), now
        self._waiting = dict.fromkeys(expected)
        self._active: dict[str, float] = {}
        self._taken, self._planned, self._ended = 0.0, 0.0, 0

    def started(self, name: str) -> None:
        """A run was started now."""
        self._waiting.pop(name, None)
        self._active[name] = self._now()

    def ended(self, name: str, finished: bool) -> None:
        """A run has ended now; only one that was finished says how long others take."""
        self._waiting.pop(name, None)
        began = self._active.pop(name, None)
        if finished and began is not None and (expected := self._expected.get(name)):
            self._taken += self._now() - began
            self._planned += expected
            self._ended += 1

    @property
    def factor(self) -> float:
        """How many times as long as forecast the runs take, by those that have ended; at first 1."""
        if not self._planned:
            return 1.0
        doubt = DOUBT * self._planned / self._ended
        return (self._taken + doubt) / (self._planned + doubt)

    def seconds(self, name: str) -> float:
        """Of a run that waits."""
        return self.factor * self._expected.get(name, 0.0)

    def left(self) -> float:
        """Seconds from now until all have ended."""
        now, factor = self._now(), self.factor
        places = [
            max(0.0, factor * self._expected.get(name, 0.0) - (now - began)) for name, began in self._active.items()
        ]
        places += [0.0] * (self._at_once - len(places))
        heapq.heapify(places)
        for name in self._waiting:
            heapq.heappush(places, heapq.heappop(places) + self.seconds(name))
        return max(places)

    def total(self) -> float:
        """Seconds of the whole sweep, as it looks now."""
        return self._now() + self.left()
