"""How the effective batch is split: rows at a time on a device × accumulation × devices."""

from __future__ import annotations

from typing import NamedTuple

from shoestring.core.errors import PlanError
from shoestring.core.facts import Point, Profile
from shoestring.core.units import Bytes, Seconds

_MEMORY_SHARE = 0.92
"""Of the free memory; the rest is left to other processes and to what a peak of a few steps did not show."""
_NEAR = 1.02
"""A smaller batch is taken when a row takes at most this many times as long as at the fastest."""


class Split(NamedTuple):
    """A split of the effective batch, what a step with it takes, and why it was chosen."""

    per_device: int
    accumulate: int
    devices: int
    step_seconds: float
    peak_bytes: int | None
    reason: str


def choose_split(profile: Profile, batch: int, per_device: int | None, memory: int | None, devices: int = 1) -> Split:
    """The fastest measured split of `batch` rows that fits `memory` (None: what was free)."""
    share, odd = divmod(batch, devices)
    if odd:
        raise PlanError(f"an effective batch of {batch} rows does not divide over {devices} devices")
    points = [p for p in profile.points if share % p.batch == 0 and per_device in (None, p.batch)]
    if not points:
        measured = ", ".join(str(p.batch) for p in profile.points)
        raise PlanError(f"no measured batch ({measured}) divides the {share} rows of a device; measure again")
    free = profile.available_bytes
    limit = memory if memory is not None else None if free is None else int(free * _MEMORY_SHARE)
    fitting = [p for p in points if limit is None or p.peak_bytes is None or p.peak_bytes <= limit]
    if not fitting:
        least = min(points, key=lambda p: p.peak_bytes or 0)
        raise PlanError(
            f"nothing fits the memory: {_rows(least.batch)} at a time need {Bytes(least.peak_bytes or 0).short()}, and "
            f"{Bytes(limit or 0).short()} may be used; take a smaller model or data.length, or raise budget.memory"
        )
    best = min(p.seconds / p.batch for p in fitting)
    point = next(p for p in sorted(fitting, key=lambda p: p.batch) if p.seconds / p.batch <= _NEAR * best)
    accumulate = share // point.batch
    return Split(
        per_device=point.batch,
        accumulate=accumulate,
        devices=devices,
        step_seconds=accumulate * point.seconds + profile.update_seconds,
        peak_bytes=point.peak_bytes,
        reason=_reason(point, fitting, per_device),
    )


def _reason(point: Point, fitting: list[Point], per_device: int | None) -> str:
    per_row = Seconds(point.seconds / point.batch).short()
    if per_device is not None:
        return f"asked for: {per_row} a row"
    others = ", ".join(f"{p.batch}: {Seconds(p.seconds / p.batch).short()}" for p in fitting if p is not point)
    return f"the fastest measured, {per_row} a row" + (f" ({others})" if others else "")


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
