"""The estimated memory and seconds of a step beside the measured ones, from a record of bench/train.py."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from shoestring.core.recipe import Recipe
from shoestring.core.sections import Data, Model
from shoestring.core.train_section import Train
from shoestring.core.units import Interval
from shoestring.cost.memory import estimate_memory
from shoestring.cost.seconds import estimate_seconds

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


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """The seconds of a step of one run on a GPU."""

    name: str
    way: str
    rows: int
    length: int
    estimated: Interval
    """At the least, the median and the most of the peak that the other models of the record reached."""
    measured_seconds: float

    @property
    def error(self) -> float:
        """Of what is expected, as a share of what was measured."""
        return self.estimated.expected / self.measured_seconds - 1

    @property
    def is_within(self) -> bool:
        return self.estimated.low <= self.measured_seconds <= self.estimated.high


class _Run(NamedTuple):
    """One of our runs in a record."""

    name: str
    way: str
    recipe: Recipe
    vocabulary: int
    found: Mapping[str, Any]
    """What was measured."""


def _runs(record: Mapping[str, Any]) -> Iterator[_Run]:
    """Those on a GPU, on which alone the estimates are of use."""
    if record["machine"]["device"] != "cuda":
        return
    for name, shape in record["shapes"].items():
        for way, recompute in OURS.items():
            recipe = Recipe(
                model=Model(**shape["model"]),
                data=Data(length=shape["length"]),
                train=Train(batch=shape["rows"], recompute=recompute),  # type: ignore[arg-type]
            )
            yield _Run(name, way, recipe, shape["vocabulary"], shape["ways"].get(way, {}))


def memory_rows(record: Mapping[str, Any]) -> list[MemoryRow]:
    """For each of our runs on a GPU whose peak was measured."""
    return [
        MemoryRow(
            name=run.name,
            way=run.way,
            rows=run.recipe.batch,
            length=run.recipe.data.length,
            estimated_bytes=estimate_memory(run.recipe, run.vocabulary).at(run.recipe.batch),
            measured_bytes=run.found["peak_bytes"],
        )
        for run in _runs(record)
        if "peak_bytes" in run.found
    ]


def step_rows(record: Mapping[str, Any]) -> list[StepRow]:
    """For each of our runs on a GPU that is known: its step as if the others were all that had been measured."""
    runs = [run for run in _runs(record) if "of_vendor_peak" in run.found]
    found = []
    for run in runs:
        others = [other.found["of_vendor_peak"] for other in runs if other.name != run.name and other.way == "ours"]
        if not others:
            continue
        share = Interval(low=min(others), expected=statistics.median(others), high=max(others))
        rows = run.recipe.batch
        estimated = estimate_seconds(run.recipe, run.vocabulary, record["machine"]["device_name"], rows, share)
        if estimated is not None:
            found.append(
                StepRow(
                    name=run.name,
                    way=run.way,
                    rows=rows,
                    length=run.recipe.data.length,
                    estimated=estimated,
                    measured_seconds=run.found["seconds"],
                )
            )
    return found
