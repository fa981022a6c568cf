"""Two plans side by side: what one more device, a longer time or a smaller model would change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shoestring.core.facts import Cost, Plan, Profile
from shoestring.core.units import Bytes, Count, Flops, Seconds, rate

HEAD = ("", "now", "then", "change")
ESTIMATE_ERROR = 0.25
"""Assumed standard error of seconds that follow from FLOPs, as a share: small products are slower than they say."""


def _count(value: float) -> str:
    return Count(round(value)).short()


def _bytes(value: float) -> str:
    return Bytes(round(value)).short()


_COMPARED: dict[str, tuple[str, Callable[[float], str]]] = {
    "effective_batch": ("effective batch", lambda value: f"{_count(value)} rows"),
    "per_device": ("rows at a time", _count),
    "accumulate": ("accumulation", _count),
    "devices": ("devices", _count),
    "steps": ("steps", _count),
    "samples": ("samples", _count),
    "tokens": ("tokens", _count),
    "epochs": ("epochs", lambda value: f"{value:.3g}"),
    "flops": ("computation", lambda value: Flops(value).short()),
    "step_seconds": ("a step", lambda value: Seconds(value).short()),
    "tokens_per_second": ("speed", lambda value: rate(value, "tokens/s")),
    "seconds": ("time", lambda value: Seconds(value).short()),
    "gigabytes": ("text", lambda value: _bytes(value * 1e9)),
    "entries": ("entries", _count),
    "disk_bytes": ("disk", _bytes),
    "peak_bytes": ("memory", _bytes),
}


def compare(now: Plan, then: Plan) -> list[tuple[str, str, str, str]]:
    """(quantity, now, then, change) of everything that one of the plans knows."""
    rows = []
    for name, (label, show) in _COMPARED.items():
        first, second = getattr(now, name), getattr(then, name)
        if first is None and second is None:
            continue
        before, after = ("unknown" if value is None else show(value) for value in (first, second))
        rows.append((label, before, after, _change(first, second)))
    return [*rows, ("binding", now.binding, then.binding, "" if now.binding == then.binding else "another one")]


def _change(first: float | None, second: float | None) -> str:
    if not first or second is None:
        return "unknown"
    return "" if first == second else f"× {second / first:.3g}"


def scaled_profile(profile: Profile, cost: Cost, length: int, workload: str) -> tuple[Profile, str]:
    """The profile of a model that was not measured, and how it was made: an estimate from one that was.

    Passes grow with the FLOPs of a row, updates and checkpoints with the parameters. Memory does not follow from these,
    so nothing is said about it.
    """
    old, new = (c.train_flops_per_token * rows for c, rows in ((profile.cost, profile.length), (cost, length)))
    work, size = new / old, cost.total_parameters / profile.cost.total_parameters
    points = tuple(
        replace(
            point,
            seconds=point.seconds * work,
            slowest_seconds=point.slowest_seconds * work,
            fastest_seconds=None if point.fastest_seconds is None else point.fastest_seconds * work,
            peak_bytes=None,
        )
        for point in profile.points
    )
    scaled = replace(
        profile,
        workload=workload,
        length=length,
        points=points,
        update_seconds=profile.update_seconds * size,
        validate_seconds_per_row=profile.validate_seconds_per_row * work,
        checkpoint_seconds=profile.checkpoint_seconds * size,
        write_seconds=None if profile.write_seconds is None else profile.write_seconds * size,
        checkpoint_bytes=round(profile.checkpoint_bytes * size),
        cost=cost,
        estimated=True,
        memory=None,
        validation_memory=None,
    )
    note = (
        f"estimate: not measured, so the seconds of a pass are {work:.3g} times those measured, as the FLOPs of a row "
        f"are; updates and checkpoints {size:.3g} times, as the parameters are; memory is unknown"
    )
    return scaled, note
