"""The split of the effective batch: micro-batch × accumulation × devices."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from shoestring.core.errors import PlanError, Refusal
from shoestring.core.numeric import interpolate
from shoestring.core.records import Point, Profile
from shoestring.core.throughput import near_fastest, row_rate
from shoestring.core.units import Bytes, Seconds, counted, with_name

MEMORY_SHARE = 0.92
"""Share of the free memory to use; the rest is for other processes and for peaks that a few steps did not show."""
_MOST_DEVICES = 64
"""Largest number of devices to propose where a batch does not divide."""


_MARGINS = {"cuda": (32 << 20, 200), "cpu": (256 << 20, 20)}
"""By device, the least margin in bytes, and the part of the memory that it is where that is more."""


def margin_bytes(limit: int, device: str) -> int:
    """Bytes of `limit` left unused: for fragmentation over many steps, and for other users of the same memory."""
    least, parts = _MARGINS[device]
    return max(least, limit // parts)


def free_for(peak: int, device: str) -> int:
    """The least free memory that holds `peak` beside its margin."""
    least, parts = _MARGINS[device]
    return max(peak + least, -(-peak * parts // (parts - 1)))


class Split(NamedTuple):
    """A split of the effective batch, its cost, and the reason for it."""

    per_device: int
    accumulate: int
    devices: int
    step_seconds: float
    peak_bytes: int | None
    reason: str
    point: Point
    """The measured pass, or the interpolation between two."""


def choose_split(profile: Profile, batch: int, per_device: int | None, memory: int | None, devices: int = 1) -> Split:
    """The fastest split of `batch` rows that fits `memory` (None: the memory that was free)."""
    share, odd = divmod(batch, devices)
    if odd:
        several = ", ".join(str(number) for number in divisors_of(batch) if number <= _MOST_DEVICES)
        raise PlanError(
            f"an effective batch of {counted(batch, 'row')} does not divide over {devices} devices; choose one of "
            f"{several}"
        )
    if per_device is not None and share % per_device:
        several = ", ".join(map(str, divisors_of(share)))
        raise PlanError(
            f"train.per_device = {per_device}: does not divide the {counted(share, 'row')} of a device; choose one of "
            f"{several}"
        )
    points = points_of(profile, share)
    if per_device is not None or not points:
        rows = [per_device] if per_device is not None else divisors_of(share)
        points = [next((p for p in points if p.batch == number), point_near(profile, number)) for number in rows]
    limit = memory_limit(profile, memory)
    fitting = [p for p in points if limit is None or p.peak_bytes is None or p.peak_bytes <= limit]
    if not fitting:
        least = min(points, key=lambda p: p.peak_bytes or 0)
        needs, room = Bytes(least.peak_bytes or 0).short(), Bytes(limit or 0).short()
        raise Refusal(
            f"nothing fits the memory: a micro-batch of {least.batch} needs {needs}, and {room} may be used; choose a "
            f"smaller model or data.length, or raise budget.memory",
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
    """The smallest batch that is nearly as fast as the fastest, preferably one that was measured.

    The largest where seconds were computed from FLOPs: the utilisation they assume was reached with full GPUs.
    """
    if _are_from_flops(profile):
        return max(fitting, key=lambda p: p.batch)
    return min(near_fastest(fitting), key=lambda p: (not is_measured(profile, p), p.batch))


def _are_from_flops(profile: Profile) -> bool:
    """Whether the seconds per row are the same for every batch, because they follow from FLOPs alone."""
    rates = [row_rate(point) for point in profile.points]
    return profile.estimated and math.isclose(min(rates), max(rates))


def memory_limit(profile: Profile, memory: int | None) -> int | None:
    """Bytes that a step may take: `memory`, or the memory that was free minus a margin; None: unknown."""
    if memory is not None:
        return memory
    model = profile.memory
    if model is not None and model.limit_bytes is not None:
        return model.limit_bytes - model.margin_bytes
    return None if profile.available_bytes is None else int(profile.available_bytes * MEMORY_SHARE)


def most_memory(profile: Profile) -> int | None:
    """The largest useful memory budget: the memory that was free minus a margin; None: unknown."""
    free, model = profile.available_bytes, profile.memory
    if free is None:
        return None
    return int(free * MEMORY_SHARE) if model is None else free - model.margin_bytes


def points_of(profile: Profile, share: int) -> list[Point]:
    """Passes that divide `share` rows: the measured ones, and with a memory model those between them."""
    divisors = divisors_of(share) if profile.memory is not None else []
    measured = [point for point in profile.points if share % point.batch == 0]
    known = {point.batch for point in measured}
    between = [point for rows in divisors if rows not in known and (point := point_between(profile, rows)) is not None]
    return sorted([*measured, *between], key=lambda point: point.batch)


def divisors_of(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def point_between(profile: Profile, rows: int) -> Point | None:
    """A pass of `rows`, interpolated between the two measured batches around it; None outside of them."""
    model = profile.memory
    if model is None or (model.largest is not None and rows > model.largest):
        return None
    measured = sorted(profile.points, key=lambda point: point.batch)
    if not measured[0].batch < rows < measured[-1].batch:
        return None

    def between(name: str) -> Any:
        known = [(point.batch, getattr(point, name)) for point in measured]
        return None if any(value is None for _, value in known) else interpolate(known, rows)

    return Point(
        batch=rows,
        seconds=between("seconds"),
        slowest_seconds=between("slowest_seconds"),
        peak_bytes=round(model.predict(rows)),
        fastest_seconds=between("fastest_seconds"),
    )


def point_near(profile: Profile, rows: int) -> Point:
    """A pass of `rows`, interpolated between measured batches, or beyond them by the line through the nearest two.

    By a single measured batch, seconds are proportional to rows. Outside of what was measured, memory is that of the
    memory model, or lies on the same line; by a single batch it is unknown, unless it was measured to fit more rows.
    """
    measured = sorted(profile.points, key=lambda point: point.batch)
    above = next((index for index, point in enumerate(measured) if point.batch >= rows), len(measured) - 1)
    pair = measured[max(0, above - 1) :][:2]

    def on_the_line(name: str) -> Any:
        known = [(point.batch, getattr(point, name)) for point in pair]
        if any(value is None for _, value in known):
            return None
        (first, low), (last, high) = known[0], known[-1]
        if first == last:
            return low * rows / first
        least = low * rows / first if rows < first else high if rows > last else 0.0  # whatever the noise of the pair
        return max(low + (high - low) * (rows - first) / (last - first), least)

    if profile.memory is not None:
        peak: int | None = round(profile.memory.predict(rows))
    elif len(pair) > 1:
        peak = on_the_line("peak_bytes")
        peak = None if peak is None else round(peak)
    else:
        peak = pair[0].peak_bytes if rows <= pair[0].batch else None
    return Point(
        batch=rows,
        seconds=on_the_line("seconds"),
        slowest_seconds=on_the_line("slowest_seconds"),
        peak_bytes=peak,
        fastest_seconds=on_the_line("fastest_seconds"),
    )


def is_measured(profile: Profile, point: Point) -> bool:
    return any(point.batch == other.batch for other in profile.points)


def _from(profile: Profile, point: Point) -> str:
    """The measured batches that a pass was computed from."""
    batches = sorted(p.batch for p in profile.points)
    where = "between" if batches[0] < point.batch < batches[-1] else "extrapolated from"
    return f"{where} {profile.how} batches of {with_name(', '.join(map(str, batches)), 'rows')}"


def _reason(profile: Profile, point: Point, fitting: list[Point], per_device: int | None) -> str:
    per_row = Seconds(point.seconds / point.batch).short()
    how = "" if is_measured(profile, point) else f", {_from(profile, point)}"
    if per_device is not None:
        return f"train.per_device: {per_row} per row{how}"
    others = ", ".join(
        f"{p.batch}: {Seconds(p.seconds / p.batch).short()}"
        for p in fitting
        if p is not point and is_measured(profile, p) and not _are_from_flops(profile)
    )
    if _are_from_flops(profile):
        return f"the largest that fits, by counting: {per_row} per row"
    choice = f"the fastest {profile.how}" if not how else "the fastest that divides the batch and fits"
    return f"{choice}, {per_row} per row{how}" + (f" ({others})" if others else "")
