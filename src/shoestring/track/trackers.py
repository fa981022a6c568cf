"""Trackers that get a copy of every metrics line. One that fails is dropped, and the run continues."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from shoestring.core.errors import RunError, UserError
from shoestring.core.registry import registry
from shoestring.track.lines import LineFile, read_lines

PROJECT = "shoestring"
"""Where trackers that have projects put a run, unless their own environment says otherwise."""
_MOST_WAITING = 10_000
"""Lines that may wait for a tracker before it counts as failed."""
_CLOSE_SECONDS = 20.0
"""How long the end of a run waits for a tracker."""


class Tracker(Protocol):
    """Stores numbers by step. It is made where the run starts, and used in a thread of its own."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Beside:
    """A tracker in a thread of its own: the run never waits for it, but for a while at the end."""

    def __init__(self, tracker: Tracker):
        self._tracker = tracker
        self._lines: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(_MOST_WAITING)
        self.failure: str | None = None
        """Why it gets no more lines."""
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        try:
            self._lines.put_nowait((step, values))
        except queue.Full:
            self.failure = self.failure or f"{_MOST_WAITING:,} lines wait for it"

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Wait until it has stored every line, but no longer than so many seconds."""
        if self.failure is None:
            self._lines.put(None)
            self._thread.join(seconds)
            if self._thread.is_alive():
                self.failure = self.failure or f"it did not finish within {seconds:g} s"

    def _work(self) -> None:
        try:
            while (line := self._lines.get()) is not None:
                self._tracker.log(*line)
            self._tracker.close()
        except BaseException as cause:  # any exception of a library or its server; one that exits, too
            self.failure = f"{type(cause).__name__}: {cause}"


def open_trackers(
    names: Sequence[str], folder: Path, step: int, say: Callable[[str], None] = lambda _: None
) -> dict[str, Beside]:
    """The trackers of a run that continues after `step`; raises MissingExtra if a library is not installed.

    One that cannot be opened for another reason is named to `say`, and left out.
    """
    found = {}
    for name in dict.fromkeys(names):
        try:
            found[name] = Beside(registry("tracker")[name](folder, step))
        except UserError:
            raise
        except Exception as cause:
            say(_left_out(name, f"{type(cause).__name__}: {cause}", folder))
    return found


def _left_out(name: str, why: str, folder: Path) -> str:
    again = f"shoestring track {folder} --to {name}"
    return f"{name} failed and gets no more metrics ({why}); the run continues, and `{again}` stores it afterwards"


def numbers_of(line: Mapping[str, Any]) -> dict[str, float]:
    """What a tracker gets of a line of metrics, besides its step."""
    return {name: float(value) for name, value in line.items() if isinstance(value, int | float) and name != "step"}


class Tracked(LineFile):
    """A file of lines whose numbers are also sent to trackers."""

    def __init__(self, lines: LineFile, trackers: dict[str, Beside], say: Callable[[str], None]):
        self.path, self._lines, self._trackers, self._say = lines.path, lines, trackers, say

    @property
    def lines(self) -> int:
        return self._lines.lines

    def add(self, **values: Any) -> None:
        self._lines.add(**values)
        for tracker in self._trackers.values():
            tracker.log(int(values["step"]), numbers_of(values))
        self._drop_failed()

    def sync(self) -> None:
        self._lines.sync()

    def close(self) -> None:
        for tracker in self._trackers.values():
            tracker.close()
        self._drop_failed()
        self._trackers.clear()

    def _drop_failed(self) -> None:
        for name, tracker in list(self._trackers.items()):
            if tracker.failure is not None:
                del self._trackers[name]
                self._say(_left_out(name, tracker.failure, self.path.parent))


def copy_metrics(metrics: Path, names: Sequence[str], say: Callable[[str], None]) -> dict[str, int]:
    """Store all lines of a run in trackers, and return how many each got; raises RunError if one fails."""
    lines, failed, stored = read_lines(metrics), [], {}
    if not lines:
        raise RunError(f"{metrics.parent} has no metrics yet")
    for name in dict.fromkeys(names):
        try:
            tracker: Tracker = registry("tracker")[name](metrics.parent, 0)
            for line in lines:
                tracker.log(int(line["step"]), numbers_of(line))
            tracker.close()
        except UserError:
            raise
        except Exception as cause:  # any exception of a library or its server
            failed.append(f"{name} failed ({type(cause).__name__}: {cause})")
            say(failed[-1])
            continue
        stored[name] = len(lines)
    if failed:
        raise RunError("; ".join(failed))
    return stored
