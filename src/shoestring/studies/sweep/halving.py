"""Successive halving: every setting runs for a part of its steps, and the best of them go on.

What is decided is a function of what the run folders hold. So a driver that is killed loses nothing: the next one
decides the same. By the forecast, a rung is judged when all its runs have reached it, by the held-out loss that each is
expected to end with (Jamieson & Talwalkar 2016, with another criterion). ASHA (Li et al. 2020) judges by the loss so
far, and waits for nobody; the settings of a sweep are finitely many, so all of them begin before any goes on.

The first rung is a fifth of the steps: before it, a small run rests where tokens are only counted and all settings are
equal, and a forecast has nothing to go by. The others are evenly spaced from there on, by their logarithms.

Forecasts are compared only as far as their intervals allow. A run goes behind the one that is expected to be the best
if its interval does not reach down to that; among those whose intervals do, the loss so far decides.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from shoestring.studies.sweep.plans import schedule

KEEP = 3
"""One of so many goes on from a rung."""
MOST_RUNGS = 4
RUNGS = 3
"""Where no time is given."""
FIRST = 0.2
"""Share of the steps at the first rung."""
Method = Literal["forecast", "asha"]


@dataclass(frozen=True, kw_only=True)
class Reached:
    """How far a run came: what it is judged by at each rung that it has reached, lower is better."""

    values: tuple[float, ...] = ()
    tiers: tuple[int, ...] = ()
    """At each rung, behind how many runs that are surely better it stands, in groups; empty: they are not compared."""

    def key(self, rung: int) -> tuple[int, float]:
        """By which runs at a rung are ordered, the best first."""
        return self.tiers[rung] if self.tiers else 0, self.values[rung]

    @property
    def rung(self) -> int:
        """The last one; -1: none."""
        return len(self.values) - 1


class Mark(NamedTuple):
    """How a run does at a rung."""

    loss: float
    """The last held-out loss."""
    forecast: float | None
    """What it is expected to end with; None: not known."""
    low: float | None = None
    """The lower end of its interval; None: it has none."""


def forecast_rungs(marks: Mapping[str, Sequence[Mark]], method: Method) -> list[bool]:
    """Whether the runs at each rung are judged by their forecasts: where all have one."""
    rungs = max((len(each) for each in marks.values()), default=0)
    return [
        method == "forecast" and all(each[rung].forecast is not None for each in marks.values() if len(each) > rung)
        for rung in range(rungs)
    ]


def judged(marks: Mapping[str, Sequence[Mark]], method: Method) -> dict[str, Reached]:
    """What runs are judged by at each rung: their losses, after their tiers by forecast."""
    tiers: dict[str, list[int]] = {name: [] for name in marks}
    for rung, by_forecast in enumerate(forecast_rungs(marks, method)):
        there = {name: each[rung] for name, each in marks.items() if len(each) > rung}
        found = _tiers(there) if by_forecast else dict.fromkeys(there, 0)
        for name, tier in found.items():
            tiers[name].append(tier)
    return {
        name: Reached(values=tuple(mark.loss for mark in each), tiers=tuple(tiers[name]))
        for name, each in marks.items()
    }


def _tiers(marks: Mapping[str, Mark]) -> dict[str, int]:
    """The group of each run: the first has all whose intervals reach down to the lowest forecast, and so on."""
    found: dict[str, int] = {}
    left, tier = dict(marks), 0
    while left:
        best = min(_expected(mark) for mark in left.values())
        group = [name for name, mark in left.items() if min(_expected(mark), mark.low or _expected(mark)) <= best]
        found |= dict.fromkeys(group, tier)
        left = {name: mark for name, mark in left.items() if name not in found}
        tier += 1
    return found


def _expected(mark: Mark) -> float:
    return mark.loss if mark.forecast is None else mark.forecast


class Next(NamedTuple):
    """A run that goes on to a rung, and why."""

    name: str
    rung: int
    reason: str


def shares(rungs: int, every: float = 0.0) -> tuple[float, ...]:
    """The share of the steps at each rung, the last one 1; the others are those of the nearest evaluations."""
    found = [FIRST ** ((rungs - 1 - rung) / (rungs - 1)) for rung in range(rungs - 1)]
    rounded = [max(1, round(share / every)) * every if every else share for share in found]
    return (*dict.fromkeys(share for share in rounded if share < 1), 1.0)


def kept_of(count: int) -> int:
    """How many of so many runs go on from a rung."""
    return max(1, math.floor(count / KEEP + 0.5))


def cost(seconds: Sequence[float], ladder: Sequence[float], at_once: int, start: float) -> float:
    """The time of a ladder on which mean runs go on, where each start of a process takes `start` seconds."""
    if not seconds:
        return 0.0
    mean, taken, count, before = sum(seconds) / len(seconds), 0.0, len(seconds), 0.0
    for share in ladder:
        taken += max(schedule([start + (share - before) * max(0.0, mean - start)] * count, at_once))
        count, before = kept_of(count), share
    return taken


def ladder_for(
    seconds: Sequence[float], at_once: int, limit: float | None, every: float, start: float
) -> tuple[float, ...]:
    """The shortest ladder that fits the time; the longest one where none does."""
    if limit is None:
        return shares(RUNGS, every)
    each = [shares(rungs, every) for rungs in range(1, MOST_RUNGS + 1)]
    return next((found for found in each if cost(seconds, found, at_once, start) <= limit), each[-1])


def next_by_rung(
    names: Sequence[str], reached: Mapping[str, Reached], active: Collection[str], ladder: Sequence[float]
) -> Next | None:
    """The next run where a rung is judged when all its runs have reached it; None: wait, or all is done."""
    members, judged = list(names), ""
    for rung, share in enumerate(ladder):
        to_do = [name for name in members if reached[name].rung < rung and name not in active]
        if to_do:
            return Next(to_do[0], rung, judged and f"goes on to {share:.0%}: {_place(to_do[0], members)} {judged}")
        if any(reached[name].rung < rung for name in members):
            return None
        ranked = sorted(members, key=lambda name: reached[name].key(rung))
        kept = kept_of(len(ranked))
        judged = _judged(ranked, kept, reached, rung, share)
        members = ranked[:kept]
    return None


def _place(name: str, ranked: Sequence[str]) -> str:
    return f"number {ranked.index(name) + 1}"


def _judged(ranked: Sequence[str], kept: int, reached: Mapping[str, Reached], rung: int, share: float) -> str:
    """What the best of a rung have in common, for people."""
    last = reached[ranked[kept - 1]].values[rung]
    beyond = f", the next one at {reached[ranked[kept]].values[rung]:.4f}" if kept < len(ranked) else ""
    return f"of {len(ranked)} at {share:.0%}, of which {kept} up to {last:.4f} are kept{beyond}"


def next_at_once(
    names: Sequence[str], reached: Mapping[str, Reached], active: Collection[str], ladder: Sequence[float]
) -> Next | None:
    """The next run by ASHA: the best third of those that have reached a rung goes on, the highest rung first.

    New ones go before that: each promotion is then a choice among as many as there can be.
    """
    new = next((name for name in names if reached[name].rung < 0 and name not in active), None)
    if new is not None:
        return Next(new, 0, "")
    for rung in range(len(ladder) - 2, -1, -1):
        there = sorted((name for name in names if reached[name].rung >= rung), key=lambda name: reached[name].key(rung))
        for place, name in enumerate(there[: len(there) // KEEP], start=1):
            if reached[name].rung == rung and name not in active:
                value = reached[name].values[rung]
                reason = f"goes on to {ladder[rung + 1]:.0%}: number {place} of {len(there)} at {ladder[rung]:.0%}"
                return Next(name, rung + 1, f"{reason}, at {value:.4f}")
    if active:
        return None
    for rung in range(len(ladder) - 2, -1, -1):  # fewer than three were left to compare
        there = [name for name in names if reached[name].rung == rung]
        if there and not any(reached[name].rung > rung for name in names):
            best = min(there, key=lambda name: reached[name].key(rung))
            return Next(best, rung + 1, f"goes on to {ladder[rung + 1]:.0%}: the best of {len(there)} that are left")
    return None


def next_if_time_is_left(
    names: Sequence[str], reached: Mapping[str, Reached], active: Collection[str], ladder: Sequence[float]
) -> Next | None:
    """After all is judged: the best run that did not go to the end, the one that came furthest first."""
    for rung in range(len(ladder) - 2, -1, -1):
        there = [name for name in names if reached[name].rung == rung and name not in active]
        if there:
            best = min(there, key=lambda name: reached[name].key(rung))
            return Next(
                best, len(ladder) - 1, f"goes on to the end: time is left, and it is next at {ladder[rung]:.0%}"
            )
    return None
