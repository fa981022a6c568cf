"""How the effective batch is split: rows at a time on a device × accumulation × devices."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from shoestring.core.errors import PlanError
from shoestring.core.facts import Point, Profile
from shoestring.core.throughput import near_fastest, row_rate
from shoestring.core.units import Bytes, Seconds
from shoestring.plan.refusal import Refusal

MEMORY_SHARE = 0.92
"""Of the free memory; the rest is left to other processes and to what a peak of a few steps did not show."""
_MOST_DEVICES = 64
"""That are proposed where a batch does not divide."""


class Split(NamedTuple):
    """A split of the effective batch, what a step with it takes, and why it was chosen."""

    per_device: int
    accumulate: int
    devices: int
    step_seconds: float
    peak_bytes: int | None
    reason: str
    point: Point
    """What was measured of a pass, or what lies between two that were."""


def choose_split(profile: Profile, batch: int, per_device: int | None, memory: int | None, devices: int = 1) -> Split:
    """The fastest split of `batch` rows that fits `memory` (None: what was free)."""
    share, odd = divmod(batch, devices)
    if odd:
        several = ", ".join(str(number) for number in divisors_of(batch) if number <= _MOST_DEVICES)
        raise PlanError(
            f"an effective batch of {batch} rows does not divide over {devices} devices; take one of {several}"
        )
    points = [point for point in points_of(profile, share) if per_device in (None, point.batch)]
    if not points and per_device is not None and share % per_device:
        several = ", ".join(map(str, divisors_of(share)))
        raise PlanError(
            f"train.per_device = {per_device}: does not divide the {share} rows of a device; take one of {several}"
        )
    if not points:
        measured = ", ".join(str(p.batch) for p in profile.points)
        raise PlanError(f"no measured batch ({measured}) divides the {share} rows of a device; measure again")
    limit = memory_limit(profile, memory)
    fitting = [p for p in points if limit is None or p.peak_bytes is None or p.peak_bytes <= limit]
    if not fitting:
        least = min(points, key=lambda p: p.peak_bytes or 0)
        raise Refusal(
            f"nothing fits the memory: {_rows(least.batch)} at a time need {Bytes(least.peak_bytes or 0).short()}, and "
            f"{Bytes(limit or 0).short()} may be used; take a smaller model or data.length, or raise budget.memory",
            "memory",
        )
    point = _best(profile, fitting)
    accumulate = share // point.batch
    return Split(
        per_device=point.batch,
        accumulate=accumulate,
        devices=devices,
        step_seconds=accumulate * point.seconds + profile.update_seconds,
        peak_bytes=point.peak_bytes,
        reason=_reason(profile, point, fitting, per_device),
        point=point,
    )


def _best(profile: Profile, fitting: list[Point]) -> Point:
    """The smallest that is nearly as fast as the fastest, one that was measured where there is one.

    The largest where seconds are counted and no batch is the faster: the share of a card's peak that such an estimate
    takes was reached with batches that fill it.
    """
    if _are_counted(profile):
        return max(fitting, key=lambda p: p.batch)
    return min(near_fastest(fitting), key=lambda p: (not is_measured(profile, p), p.batch))


def _are_counted(profile: Profile) -> bool:
    """Whether nobody measured, here or elsewhere, how long a row takes by the batch."""
    rates = [row_rate(point) for point in profile.points]
    return profile.estimated and math.isclose(min(rates), max(rates))


def memory_limit(profile: Profile, memory: int | None) -> int | None:
    """Bytes that a step may take: as given, or what was free less a margin; None where nobody knows."""
    if memory is not None:
        return memory
    law = profile.memory
    if law is not None and law.limit_bytes is not None:
        return law.limit_bytes - law.margin_bytes
    return None if profile.available_bytes is None else int(profile.available_bytes * MEMORY_SHARE)


def most_memory(profile: Profile) -> int | None:
    """Bytes that a budget could allow: what was free less a margin, whatever budget it was measured under."""
    if profile.available_bytes is None:
        return None
    law = profile.memory
    return int(profile.available_bytes * MEMORY_SHARE) if law is None else profile.available_bytes - law.margin_bytes


def points_of(profile: Profile, share: int) -> list[Point]:
    """Passes that divide `share` rows: those measured, and where bytes are known for any batch, those between."""
    divisors = divisors_of(share) if profile.memory is not None else []
    measured = [point for point in profile.points if share % point.batch == 0]
    known = {point.batch for point in measured}
    between = [point for rows in divisors if rows not in known and (point := point_between(profile, rows)) is not None]
    return sorted([*measured, *between], key=lambda point: point.batch)


def divisors_of(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def point_between(profile: Profile, rows: int) -> Point | None:
    """What a pass of `rows` takes, on the line between the two measured batches around it; None outside of them."""
    law = profile.memory
    if law is None or (law.largest is not None and rows > law.largest):
        return None
    measured = sorted(profile.points, key=lambda point: point.batch)
    for low, high in itertools.pairwise(measured):
        if low.batch < rows < high.batch:
            share = (rows - low.batch) / (high.batch - low.batch)
            fastest = None
            if low.fastest_seconds is not None and high.fastest_seconds is not None:
                fastest = low.fastest_seconds + share * (high.fastest_seconds - low.fastest_seconds)
            return Point(
                batch=rows,
                seconds=low.seconds + share * (high.seconds - low.seconds),
                slowest_seconds=low.slowest_seconds + share * (high.slowest_seconds - low.slowest_seconds),
                peak_bytes=round(law.predict(rows)),
                fastest_seconds=fastest,
            )
    return None


def is_measured(profile: Profile, point: Point) -> bool:
    return any(point.batch == other.batch for other in profile.points)


def _reason(profile: Profile, point: Point, fitting: list[Point], per_device: int | None) -> str:
    per_row = Seconds(point.seconds / point.batch).short()
    how = "" if is_measured(profile, point) else f", between {profile.how}"
    if per_device is not None:
        return f"asked for: {per_row} a row{how}"
    others = ", ".join(
        f"{p.batch}: {Seconds(p.seconds / p.batch).short()}"
        for p in fitting
        if p is not point and is_measured(profile, p) and not _are_counted(profile)
    )
    told = f"the fastest {profile.how}" if not how else "the fastest that divides the batch and fits"
    return f"{told}, {per_row} a row{how}" + (f" ({others})" if others else "")


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
