"""The `[sweep]` table of a recipe: fields and their values; each combination is a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from shoestring.core.schema import Between, Text
from shoestring.core.units import Seconds

MOST_RUNS = 100_000

Values = dict[str, dict[str, tuple[Any, ...]]]
"""Values by section and field."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """Runs that differ in some fields; `shoestring sweep` makes them."""

    over: Annotated[Values, "values by field, as train.lr = [1e-3, 3e-3]: one run for each combination"] = field(
        default_factory=dict
    )
    zip: Annotated[Values, "values by field that go together: the first of each, the second of each, …"] = field(
        default_factory=dict
    )
    seeds: Annotated[int | None, Between(1, 10**6), "runs of each setting, with run.seed and the next ones"] = None
    random: Annotated[int | None, Between(1, MOST_RUNS), "so many of the settings, drawn by run.seed; default: all"] = (
        None
    )
    time: Annotated[Seconds | None, Between(1e-3, 36500 * 86400), "wall clock of the whole sweep"] = None
    folder: Annotated[str, Text(4096), "folder that holds the folders of sweeps"] = "sweeps"
    then: Annotated[
        str | None, Text(4096), "recipe, beside this one, of a sweep that follows when all runs of this one are done"
    ] = None


def by_field(values: Values) -> dict[str, tuple[Any, ...]]:
    """Values by "section.field"."""
    return {f"{section}.{name}": each for section, fields in values.items() for name, each in fields.items()}
