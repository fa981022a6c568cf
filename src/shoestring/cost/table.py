"""The analytic memory beside the measured one, from a record of bench/train.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoestring.core.recipe import Data, Model, Recipe, Train
from shoestring.cost.memory import estimate_memory

OURS = {"ours": "none", "ours recomputing": "full"}
"""Ways of the record that are our training, with what they compute again."""


@dataclass(frozen=True, kw_only=True)
class MemoryRow:
    """One run on a GPU."""

    name: str
    way: str
    rows: int
    length: int
    estimated_bytes: int
    measured_bytes: int
    """The peak that torch allocated."""

    @property
    def error(self) -> float:
        """Of the estimate, as a share of what was measured."""
        return self.estimated_bytes / self.measured_bytes - 1


def memory_rows(record: Mapping[str, Any]) -> list[MemoryRow]:
    """For each of our runs on a GPU whose peak was measured."""
    if record["machine"]["device"] != "cuda":
        return []
    found = []
    for name, shape in record["shapes"].items():
        for way, recompute in OURS.items():
            measured = shape["ways"].get(way, {}).get("peak_bytes")
            if measured is None:
                continue
            recipe = Recipe(
                model=Model(**shape["model"]),
                data=Data(length=shape["length"]),
                train=Train(batch=shape["rows"], recompute=recompute),  # type: ignore[arg-type]
            )
            estimated = estimate_memory(recipe, shape["vocabulary"]).at(shape["rows"])
            found.append(
                MemoryRow(
                    name=name,
                    way=way,
                    rows=shape["rows"],
                    length=shape["length"],
                    estimated_bytes=estimated,
                    measured_bytes=measured,
                )
            )
    return found
