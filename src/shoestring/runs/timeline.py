"""Where the seconds of a run went, read from its timings: every session begins with a line of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

UNKNOWN = "unknown"
"""The part of a session that was killed: it did not say what it did."""
BEFORE = ("start", "measure", "plan")
"""Parts of a session that a plan calls "spent so far"."""
Line = dict[str, Any]


def _sessions(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """The lines of each session."""
    session: list[Line] = []
    for line in lines:
        if line.get("event") == "start" and session:
            yield session
            session = []
        session.append(line)
    if session:
        yield session


def seconds_of(lines: Sequence[Line]) -> float:
    """Wall-clock seconds of all sessions, each from the start of its process to its last line."""
    return float(sum(session[-1]["elapsed"] for session in _sessions(lines)))


def parts_of(lines: Sequence[Line]) -> dict[str, float]:
    """Those seconds by part, in the order in which parts begin. What follows the last line with parts is unknown."""
    total: dict[str, float] = {}
    for session in _sessions(lines):
        told: dict[str, float] = next((line["parts"] for line in reversed(session) if "parts" in line), {})
        rest = session[-1]["elapsed"] - sum(told.values())
        for part, seconds in (told | ({UNKNOWN: rest} if rest > 1e-3 else {})).items():
            total[part] = total.get(part, 0.0) + seconds
    return total


def rate_of(lines: Sequence[Line]) -> float:
    """Tokens per second while training: the harmonic mean over the lines, which stand for equal tokens each.

    The first two lines of a session, whose steps compile and record, are left out where it has at least ten.
    """
    sessions = [[line["tokens_per_second"] for line in one if "tokens_per_second" in line] for one in _sessions(lines)]
    rates = [rate for session in sessions for rate in (session[2:] if len(session) >= 10 else session)]
    return float(len(rates) / sum(1 / rate for rate in rates)) if rates else 0.0
