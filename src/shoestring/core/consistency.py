"""What the values of a record must obey beside their types: a line for every field that cannot be true.

Records are plain files, which people edit and disks damage; a value that contradicts another must not become a result.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any


def negatives(value: Any, path: str = "", signed: Collection[str] = ()) -> list[str]:
    """The numbers below zero in a record; the fields `signed` may be."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        inner = {f"{path}.{name}" if path else str(name): item for name, item in value.items() if name not in signed}
    elif isinstance(value, (list, tuple)):
        inner = {f"{path}[{index}]": item for index, item in enumerate(value)}
    else:
        is_negative = isinstance(value, (int, float)) and value < 0
        return [f"{path} = {value!r}: must not be negative"] if is_negative else []
    return [line for name, item in inner.items() for line in negatives(item, name, signed)]


def differs(name: str, value: float | None, expected: float | None, why: str, error: float = 0.0) -> list[str]:
    """A line where a value is not the `expected` one within a relative error; None fits anything."""
    if value is None or expected is None or math.isclose(value, expected, rel_tol=error, abs_tol=error):
        return []
    return [f"{name} = {value!r}: {why} is {expected!r}"]


def descending(name: str, ends: tuple[float | None, float | None]) -> list[str]:
    """A line where the upper end of an interval lies below the lower one."""
    low, high = ends
    return [f"{name} = {list(ends)!r}: ends before it begins"] if None not in ends and high < low else []  # type: ignore[operator]
