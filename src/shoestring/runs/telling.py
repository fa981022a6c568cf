"""Long work that says what it is doing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

from shoestring.core.units import Seconds

_SILENCE, _LONG_SILENCE = 5.0, 30.0
"""Seconds after which a person reads what is being measured, and that it still is."""


class Telling:
    """Says what is being done whenever nothing was said for some seconds."""

    def __init__(self, say: Callable[[str], None]):
        self._say, self._now, self._said, self._when = say, "", "", time.monotonic()
        self._began, self._ended = self._when, threading.Event()

    def __call__(self, text: str) -> None:
        """Note what is done from now on."""
        self._now = text
        self.look()

    def look(self) -> None:
        silence = time.monotonic() - self._when
        if silence >= (_SILENCE if self._now != self._said else _LONG_SILENCE):
            took = Seconds(round(time.monotonic() - self._began)).short()
            self._said, self._when = self._now, time.monotonic()
            self._say(f"measuring: {self._now} ({took} so far)")

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            self.look()
