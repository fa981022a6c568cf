"""Low and high of a plan's numbers, from how far the measurements they come from lie apart."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shoestring.core.facts import Density, Point, Profile

_SIGMAS = 1.96
"""Standard deviations around the middle that hold 95 % of a normal distribution."""
_RANGE_SIGMAS = 4.0
"""About how many standard deviations the range of a dozen passes spans."""

Ends = tuple[float, float]


def seconds_ends(
    parts: Mapping[str, float], profile: Profile, point: Point, passes: int, spread: float, documents_error: float = 0.0
) -> Ends:
    """Of a run that takes `parts`, `passes` of them like `point`.

    Three things vary on their own: the machine as a whole, by the share `spread` of everything that is still to come;
    single passes, whose differences nearly cancel over a run; and the documents that are read, by the share
    `documents_error`. What compiled code takes from a cache need not be compiled again, which only the low end counts.
    """
    total, coming = sum(parts.values()), sum(v for name, v in parts.items() if name != "spent so far")
    fastest = point.seconds if point.fastest_seconds is None else point.fastest_seconds
    single = (point.slowest_seconds - fastest) / _RANGE_SIGMAS
    deviations = (spread * coming, single * math.sqrt(passes), documents_error * parts.get("prepare", 0.0))
    half = _SIGMAS * math.hypot(*deviations)
    compiled = min(profile.compile_seconds or 0.0, parts.get("set-up", 0.0))
    return max(total - coming, total - half - compiled), total + half


def text_ends(density: Density, entries: float, gigabytes: float, needed: bool) -> dict[str, Ends]:
    """Of the entries and the gigabytes that are read; where they are what the tokens of a run need, both vary."""
    tokens_error = _share(density.tokens_per_gb_error, density.tokens_per_gb)
    entries_error = _share(density.entries_per_gb_error, density.entries_per_gb)
    found = {}
    if needed:
        if error := math.hypot(tokens_error, entries_error):
            found["entries"] = _around(entries, error)
        if tokens_error:
            found["gigabytes"] = _around(gigabytes, tokens_error)
    elif entries_error:
        found["gigabytes"] = _around(gigabytes, entries_error)
    return found


def _around(value: float, error: float) -> Ends:
    return value * max(0.0, 1 - _SIGMAS * error), value * (1 + _SIGMAS * error)


def _share(error: float | None, value: float) -> float:
    return 0.0 if not error or not value else error / value
