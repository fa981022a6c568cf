"""One profile of several devices that work together: none of them can do better than the worst."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from shoestring.core.errors import Fault
from shoestring.core.facts import MemoryLaw, Point, Profile
from shoestring.plan.split import point_between

T = TypeVar("T", int, float)


def agree(profiles: Sequence[Profile]) -> Profile:
    """Batches that all know, with the longest times, the most memory needed and the least there is.

    A batch is known where it was measured, or lies between two that were.
    """
    first = profiles[0]
    measured_by_one = sorted({point.batch for profile in profiles for point in profile.points})
    known_by_all = [points for batch in measured_by_one if (points := _points_of_all(profiles, batch))]
    if not known_by_all:
        measured = "; ".join(", ".join(str(p.batch) for p in profile.points) for profile in profiles)
        raise Fault(f"the devices have no measured batch in common ({measured}); measure again")
    fewest = min(profiles, key=lambda profile: len(profile.points))

    def slowest(name: str) -> float:
        return max(float(getattr(profile, name)) for profile in profiles)

    return replace(
        first,
        points=tuple(_point(points) for points in known_by_all),
        setup_seconds=slowest("setup_seconds"),
        update_seconds=slowest("update_seconds"),
        validate_seconds_per_row=slowest("validate_seconds_per_row"),
        checkpoint_seconds=slowest("checkpoint_seconds"),
        compile_seconds=known([profile.compile_seconds for profile in profiles], max),
        write_seconds=known([profile.write_seconds for profile in profiles], max),
        warmup_seconds=known([profile.warmup_seconds for profile in profiles], max),
        available_bytes=known([profile.available_bytes for profile in profiles], min),
        stopped=fewest.stopped,
        memory=_law([profile.memory for profile in profiles]),
        validation_memory=_law([profile.validation_memory for profile in profiles]),
        devices=len(profiles),
        thorough=all(profile.thorough for profile in profiles),
    )


def known(values: Sequence[T | None], of: Callable[[Sequence[T]], T]) -> T | None:
    """`of` the values that are there; None where one does not know."""
    there = [value for value in values if value is not None]
    return of(there) if len(there) == len(values) else None


def _points_of_all(profiles: Sequence[Profile], batch: int) -> list[Point]:
    """Of each of them; empty where one does not know the batch."""
    found = []
    for profile in profiles:
        own = next((p for p in profile.points if p.batch == batch), None) or point_between(profile, batch)
        if own is None:
            return []
        found.append(own)
    return found


def _point(points: Sequence[Point]) -> Point:
    return Point(
        batch=points[0].batch,
        seconds=max(p.seconds for p in points),
        slowest_seconds=max(p.slowest_seconds for p in points),
        peak_bytes=known([p.peak_bytes for p in points], max),
        fastest_seconds=known([p.fastest_seconds for p in points], max),
    )


def _law(laws: Sequence[MemoryLaw | None]) -> MemoryLaw | None:
    there = [law for law in laws if law is not None]
    if len(there) < len(laws):
        return None
    tightest = min(there, key=lambda law: (law.limit_bytes or 0) - law.margin_bytes)
    return MemoryLaw(
        fixed_bytes=max(law.fixed_bytes for law in there),
        row_bytes=max(law.row_bytes for law in there),
        limit_bytes=known([law.limit_bytes for law in there], min),
        margin_bytes=tightest.margin_bytes,
        largest=known([law.largest for law in there], min),
        verified=known([law.verified for law in there], min),
        trials=max(law.trials for law in there),
        out_of_memory=sum(law.out_of_memory for law in there),
        trial_seconds=max(law.trial_seconds for law in there),
    )
