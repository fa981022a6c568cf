"""Clocks that a test moves."""

from __future__ import annotations

from shoestring.core.clock import Clock


class Turned(Clock):
    """A clock that stands still until it is turned."""

    def __init__(self, now: float = 0.0):
        self.now = now
        super().__init__(0.0)

    def elapsed(self) -> float:
        return self.now
