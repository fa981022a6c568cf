"""Rows at a time × accumulation for one effective batch: what was measured, beside the rule of thumb by free memory."""

from __future__ import annotations

import math
from typing import NamedTuple

from shoestring.core.facts import Point, Profile
from shoestring.core.throughput import fastest, row_rate
from shoestring.core.units import Bytes, Seconds, rate
from shoestring.plan.split import MEMORY_SHARE, is_measured, points_of

HEAD = ("split", "a step", "speed", "memory", "free memory", "how it was got")
RULE_HEAD = ("free memory", "rule of thumb", "measured", "")
_GB = 10**9


class _Rule(NamedTuple):
    """A row of the table that people pass on, which knows neither the model nor the length of its rows."""

    free: str
    least: int
    """Of the free bytes it speaks of, which is what it is tried with; of the smallest amount, the most."""
    per_device: int


RULE_OF_THUMB = (
    _Rule("> 16 GB", 16 * _GB, 8),
    _Rule("8–16 GB", 8 * _GB, 4),
    _Rule("4–8 GB", 4 * _GB, 2),
    _Rule("< 4 GB", 4 * _GB - 1, 1),
)


def configurations(profile: Profile, batch: int, devices: int = 1) -> list[tuple[str, ...]]:
    """A row for each split of `batch` rows, all with the same effective batch."""
    rows: list[tuple[str, ...]] = []
    for point in points_of(profile, batch // devices):
        step = batch // devices // point.batch * point.seconds + profile.update_seconds
        needs = free_needed(profile, point)
        rows.append(
            (
                _split(point.batch, batch, devices),
                Seconds(step).short(),
                rate(batch * profile.length / step, "tokens/s"),
                "unknown" if point.peak_bytes is None else Bytes(point.peak_bytes).short(),
                "unknown" if needs is None else Bytes(needs).short(),
                "measured" if is_measured(profile, point) else "between measured",
            )
        )
    return rows


def free_needed(profile: Profile, point: Point) -> int | None:
    """Free memory that this many rows at a time ask for, with the margin that the plan keeps."""
    if point.peak_bytes is None:
        return None
    if profile.memory is not None:
        return point.peak_bytes + profile.memory.margin_bytes
    return math.ceil(point.peak_bytes / MEMORY_SHARE)


def beside_the_rule(profile: Profile, batch: int, devices: int = 1) -> list[tuple[str, ...]]:
    """What the rule of thumb takes at each amount of free memory, what the measurement takes, and who is wrong."""
    points = points_of(profile, batch // devices)
    rows: list[tuple[str, ...]] = []
    for rule in RULE_OF_THUMB:
        fitting = [p for p in points if (needs := free_needed(profile, p)) is None or needs <= rule.least]
        best = fastest(fitting) if fitting else None
        measured = "none fits" if best is None else _split(best.batch, batch, devices)
        asked = next((point for point in points if point.batch == rule.per_device), None)
        rows.append(
            (rule.free, _split(rule.per_device, batch, devices), measured, _verdict(profile, rule, asked, best))
        )
    return rows


def _verdict(profile: Profile, rule: _Rule, asked: Point | None, best: Point | None) -> str:
    if asked is None:
        return f"{rule.per_device} rows at a time were not measured"
    needs = free_needed(profile, asked)
    if needs is not None and needs > rule.least:
        return f"the rule is wrong here: {rule.per_device} at a time need {Bytes(needs).short()} free"
    assert best is not None, "what was asked for fits"
    gain = row_rate(best) / row_rate(asked) - 1
    return f"it fits, and a row takes {gain:.0%} longer than it must" if gain >= 0.005 else "right"


def _split(per_device: int, batch: int, devices: int) -> str:
    accumulate, odd = divmod(batch, per_device * devices)
    return f"{per_device} × {accumulate} × {devices}" if not odd else f"{per_device} × ? (does not divide {batch})"
