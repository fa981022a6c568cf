"""One profile for several devices that work together: none of them can do better than the worst."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from shoestring.core.errors import Fault
from shoestring.core.records import MemoryModel, Point, Profile
from shoestring.planning.split import point_between

T = TypeVar("T", Profile, Point, MemoryModel)
Rules = dict[str, Callable[[Sequence[Any]], Any]]
"""How the values of a field are combined."""

_TIMES = ("setup", "update", "checkpoint", "compile", "write", "warmup")
_PROFILE: Rules = {
    **{f"{name}_seconds": max for name in _TIMES},
    **{
        "validate_seconds_per_row": max,
        "available_bytes": min,
        "loading_seconds": min,
        "thorough": all,
        "estimated": any,
    },
}
_POINT: Rules = dict.fromkeys(("seconds", "slowest_seconds", "fastest_seconds", "peak_bytes"), max)
_MEMORY: Rules = {
    **dict.fromkeys(("fixed_bytes", "row_bytes", "trials", "trial_seconds"), max),
    **dict.fromkeys(("limit_bytes", "largest", "verified"), min),
    "out_of_memory": sum,
}


def agree(profiles: Sequence[Profile]) -> Profile:
    """The batches that all devices know, with the longest times, the most memory needed and the least available.

    A device knows a batch that it measured, or that lies between two that it measured.
    """
    batches = sorted({point.batch for profile in profiles for point in profile.points})
    known_by_all = [points for batch in batches if None not in (points := [_point(one, batch) for one in profiles])]
    if not known_by_all:
        measured = "; ".join(", ".join(str(p.batch) for p in profile.points) for profile in profiles)
        raise Fault(f"the devices have no measured batch in common ({measured}); measure again")
    return replace(
        _combine(profiles, _PROFILE),
        points=tuple(_combine([point for point in points if point], _POINT) for points in known_by_all),
        stopped=min(profiles, key=lambda profile: len(profile.points)).stopped,
        memory=_memory([profile.memory for profile in profiles]),
        validation_memory=_memory([profile.validation_memory for profile in profiles]),
        devices=len(profiles),
    )


def _combine(items: Sequence[T], rules: Rules) -> T:
    """The first item with combined values; None where one device does not know a value."""
    values = {name: [getattr(item, name) for item in items] for name in rules}
    combined: dict[str, Any] = {name: None if None in of else rules[name](of) for name, of in values.items()}
    return replace(items[0], **combined)


def _point(profile: Profile, batch: int) -> Point | None:
    return next((point for point in profile.points if point.batch == batch), None) or point_between(profile, batch)


def _memory(models: Sequence[MemoryModel | None]) -> MemoryModel | None:
    known = [model for model in models if model is not None]
    if len(known) < len(models):
        return None
    tightest = min(known, key=lambda model: (model.limit_bytes or 0) - model.margin_bytes)
    return replace(_combine(known, _MEMORY), margin_bytes=tightest.margin_bytes)
