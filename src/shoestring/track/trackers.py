"""Trackers that get a copy of every metrics line. One that fails is dropped, and the run continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from shoestring.core.errors import UserError
from shoestring.core.registry import registry
from shoestring.track.lines import LineFile


class Tracker(Protocol):
    """Stores numbers by step."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def open_trackers(names: Sequence[str], folder: Path, step: int) -> dict[str, Tracker]:
    """The trackers of a run that continues after `step`; raises MissingExtra if a library is not installed."""
    return {name: registry("tracker")[name](folder, step) for name in names}


class Tracked(LineFile):
    """A file of lines whose numbers are also sent to trackers."""

    def __init__(self, lines: LineFile, trackers: dict[str, Tracker], say: Callable[[str], None]):
        self.path, self._lines, self._trackers, self._say = lines.path, lines, trackers, say

    @property
    def lines(self) -> int:
        return self._lines.lines

    def add(self, **values: Any) -> None:
        self._lines.add(**values)
        step = int(values.pop("step"))
        numbers = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
        self._for_each(lambda tracker: tracker.log(step, numbers))

    def sync(self) -> None:
        self._lines.sync()

    def close(self) -> None:
        self._for_each(lambda tracker: tracker.close())
        self._trackers.clear()

    def _for_each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                act(tracker)
            except UserError:
                raise
            except Exception as cause:  # any exception of a library or its server
                del self._trackers[name]
                self._say(
                    f"{name} failed and gets no more metrics ({type(cause).__name__}: {cause}); the run continues"
                )
