"""Other choices beside a plan: every split of the batch, the rule of thumb by free memory, and what-if comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from shoestring.core.records import Cost, Plan, Point, Profile
from shoestring.core.throughput import fastest, row_rate
from shoestring.core.units import Bytes, Seconds, rate, with_name
from shoestring.planning.figures import show_bytes, show_count, show_flops, show_seconds
from shoestring.planning.split import MEMORY_SHARE, free_for, is_measured, points_of

SPLIT_HEAD = ("split", "step", "speed", "memory", "free memory", "reason")
RULE_HEAD = ("free memory", "rule of thumb", "measured", "")
COMPARISON_HEAD = ("", "now", "then", "change")
ESTIMATE_ERROR = 0.25
"""Assumed relative standard error of seconds estimated from FLOPs: small products are slower than their FLOPs say."""
_GB = 10**9


class _Rule(NamedTuple):
    """A row of the common rule of thumb, which ignores the model and the length of its rows."""

    free: str
    least: int
    """Free bytes that the rule is tried with: the least of its range; for the lowest range, the most."""
    per_device: int


RULE_OF_THUMB = (
    _Rule("> 16 GB", 16 * _GB, 8),
    _Rule("8–16 GB", 8 * _GB, 4),
    _Rule("4–8 GB", 4 * _GB, 2),
    _Rule("< 4 GB", 4 * _GB - 1, 1),
)


def configurations(profile: Profile, batch: int, devices: int = 1) -> list[tuple[str, ...]]:
    """A table row per split of an effective batch of `batch` rows."""
    rows: list[tuple[str, ...]] = []
    for point in points_of(profile, batch // devices):
        step = batch // devices // point.batch * point.seconds + profile.update_seconds
        rows.append(
            (
                _split(point.batch, batch, devices),
                Seconds(step).short(),
                rate(batch * profile.length / step, "positions/s"),
                _or_unknown(point.peak_bytes, show_bytes),
                _or_unknown(free_needed(profile, point), show_bytes),
                "measured" if is_measured(profile, point) else "between measured",
            )
        )
    return rows


def _or_unknown(value: float | None, show: Callable[[float], str]) -> str:
    return "unknown" if value is None else show(value)


def free_needed(profile: Profile, point: Point) -> int | None:
    """Free memory that a micro-batch needs, with the margin that a plan keeps where so much is free."""
    if point.peak_bytes is None:
        return None
    if profile.memory is not None:
        return free_for(point.peak_bytes, profile.machine.device)
    return math.ceil(point.peak_bytes / MEMORY_SHARE)


def beside_the_rule(profile: Profile, batch: int, devices: int = 1) -> list[tuple[str, ...]]:
    """A table row per amount of free memory: the choice of the rule, the measured choice, and a verdict."""
    points = points_of(profile, batch // devices)
    rows: list[tuple[str, ...]] = []
    for rule in RULE_OF_THUMB:
        fitting = [p for p in points if (needs := free_needed(profile, p)) is None or needs <= rule.least]
        best = fastest(fitting) if fitting else None
        measured = "none fits" if best is None else _split(best.batch, batch, devices)
        by_rule = next((point for point in points if point.batch == rule.per_device), None)
        verdict = _verdict(profile, rule, by_rule, best)
        rows.append((rule.free, _split(rule.per_device, batch, devices), measured, verdict))
    return rows


def _verdict(profile: Profile, rule: _Rule, by_rule: Point | None, best: Point | None) -> str:
    if by_rule is None:
        return f"a micro-batch of {rule.per_device} was not measured"
    needs = free_needed(profile, by_rule)
    if needs is not None and needs > rule.least:
        return f"the rule is wrong here: a micro-batch of {rule.per_device} needs {Bytes(needs).short()} free"
    assert best is not None, "the rule's micro-batch fits"
    gain = row_rate(best) / row_rate(by_rule) - 1
    return f"it fits, but a row takes {gain:.0%} longer than with the fastest" if gain >= 0.005 else "right"


def _split(per_device: int, batch: int, devices: int) -> str:
    accumulate, odd = divmod(batch, per_device * devices)
    return f"{per_device} × {accumulate} × {devices}" if not odd else f"{per_device} × ? (does not divide {batch})"


_COMPARED: dict[str, tuple[str, Callable[[float], str]]] = {
    "effective_batch": ("effective batch", lambda value: with_name(show_count(value), "rows")),
    "per_device": ("micro-batch", show_count),
    "accumulate": ("accumulation", show_count),
    "devices": ("devices", show_count),
    "steps": ("steps", show_count),
    "samples": ("samples", show_count),
    "tokens": ("positions", show_count),
    "predictions": ("predictions", show_count),
    "epochs": ("epochs", lambda value: f"{value:.3g}"),
    "flops": ("computation", show_flops),
    "step_seconds": ("time per step", show_seconds),
    "tokens_per_second": ("speed", lambda value: rate(value, "positions/s")),
    "seconds": ("time", show_seconds),
    "gigabytes": ("text", lambda value: show_bytes(value * 1e9)),
    "entries": ("entries", show_count),
    "disk_bytes": ("disk", show_bytes),
    "peak_bytes": ("memory", show_bytes),
}


def compare(now: Plan | None, then: Plan) -> list[tuple[str, str, str, str]]:
    """(quantity, now, then, change) of everything that at least one of the plans knows; None: nothing fits now."""
    rows = []
    if now is None:
        known = [(label, show, getattr(then, name)) for name, (label, show) in _COMPARED.items()]
        rows = [(label, "", show(value), "") for label, show, value in known if value is not None]
        return [*rows, ("binding", "does not fit", then.binding, "")]
    for name, (label, show) in _COMPARED.items():
        first, second = getattr(now, name), getattr(then, name)
        if first is None and second is None:
            continue
        change = "unknown"
        if first and second is not None:
            change = "" if first == second else f"× {second / first:.3g}"
        rows.append((label, _or_unknown(first, show), _or_unknown(second, show), change))
    return [*rows, ("binding", now.binding, then.binding, "" if now.binding == then.binding else "another one")]


def scaled_profile(
    profile: Profile, cost: Cost, length: int, workload: str, exponent: float = 1.0
) -> tuple[Profile, str]:
    """The estimated profile of a model that was not measured, from one that was, and a note on the estimate.

    Passes scale with the FLOPs of a row to the power of `exponent`, updates and checkpoints with the parameters. Memory
    does not follow from these, so it is unknown.
    """
    old, new = (c.train_flops_per_token * rows for c, rows in ((profile.cost, profile.length), (cost, length)))
    work, size = (new / old) ** exponent, cost.total_parameters / profile.cost.total_parameters
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
