"""A profile for people: a table by batch, and what was found beside it."""

from __future__ import annotations

from shoestring.core.facts import MemoryLaw, Point, Profile
from shoestring.core.throughput import fastest, knee, smallest_near
from shoestring.core.units import Bytes, Seconds, rate

HEAD = ("batch", "pass", "fastest – slowest", "speed", "memory")


def point_rows(profile: Profile) -> list[tuple[str, ...]]:
    """A row a batch, under HEAD."""
    return [
        (
            f"{point.batch:,}",
            Seconds(point.seconds).short(),
            _spread(point),
            rate(point.batch * profile.length / point.seconds, "tokens/s"),
            "unknown" if point.peak_bytes is None else Bytes(point.peak_bytes).short(),
        )
        for point in profile.points
    ]


def _spread(point: Point) -> str:
    slowest = Seconds(point.slowest_seconds).short()
    return f"– {slowest}" if point.fastest_seconds is None else f"{Seconds(point.fastest_seconds).short()} – {slowest}"


def profile_lines(profile: Profile) -> list[str]:
    """What is said below the table."""
    points = profile.points
    near = smallest_near(points)
    lines = [
        f"fastest: batch {fastest(points).batch:,}; within 2 % of it: batch {near.batch:,}; the curve bends at "
        f"{knee(points).batch:,}",
        f"no larger batch timed: {profile.stopped}",
    ]
    lines += _law_lines("training", profile.memory) + _law_lines("evaluation", profile.validation_memory)
    parts = {
        "compile": profile.compile_seconds,
        "warm-up": profile.warmup_seconds,
        "update": profile.update_seconds,
        "evaluation": profile.validate_seconds_per_row,
        "checkpoint": profile.checkpoint_seconds,
        "set-up": profile.setup_seconds,
    }
    told = {name: Seconds(value).short() for name, value in parts.items() if value is not None}
    told["evaluation"] += " a row"
    told["checkpoint"] += f" for {Bytes(profile.checkpoint_bytes).short()}"
    lines.append("apart: " + ", ".join(f"{name} {value}" for name, value in told.items()))
    rows = "rows of the recipe's own" if profile.real else "random tokens"
    together = f", {profile.devices} devices at the same time" if profile.devices > 1 else ""
    return [*lines, f"measured on {rows}{together}"]


def _law_lines(what: str, law: MemoryLaw | None) -> list[str]:
    if law is None:
        return []
    text = f"{what}: {Bytes(law.fixed_bytes).short()} + {Bytes(round(law.row_bytes)).short()} a row"
    if law.limit_bytes is not None:
        text += f"; {Bytes(law.limit_bytes).short()} may be used, less a margin of {Bytes(law.margin_bytes).short()}"
    if law.largest is not None:
        trials = f"{law.trials} trials, {law.out_of_memory} out of memory, {Seconds(law.trial_seconds).short()}"
        text += f"; the largest batch is {law.largest:,} ({law.verified:,} was tried; {trials})"
    return [text]
