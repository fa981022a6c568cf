"""A few combinations of settings in which every two values of two axes meet, in place of all combinations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def pairs(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows of one value per axis, the same in every call: of all rows, always the one with the most pairs to come."""
    rows = list(itertools.product(*map(range, map(len, axes))))
    missing = set().union(*(_met(row) for row in rows))
    found = []
    while missing:
        best = max(rows, key=lambda row: len(missing & _met(row)))
        missing -= _met(best)
        found.append(tuple(axis[at] for axis, at in zip(axes, best)))
    return found


def _met(row: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    """Pairs of (axis, value); of a single axis, its values."""
    return set(itertools.combinations(enumerate(row), min(2, len(row))))
