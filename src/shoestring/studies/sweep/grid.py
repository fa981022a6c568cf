"""The runs of a sweep: a recipe for each combination of values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from shoestring.core import recipe_file
from shoestring.core.errors import RecipeError
from shoestring.core.recipe import Recipe, fingerprint
from shoestring.core.seeds import derive
from shoestring.core.sweep import MOST_RUNS, Sweep, by_field

SEED = "run.seed"
_LONGEST = 120
"""Characters of what is added to the name of the recipe; a longer text is a fingerprint."""
_TAKEN = {"run.name": "each run has a name of its own", "run.folder": "all runs of a sweep lie in one folder"}


@dataclass(frozen=True, kw_only=True)
class Axes:
    """What the runs differ in."""

    over: Mapping[str, Sequence[Any]]
    """Values by field; every combination is a setting."""
    zipped: Mapping[str, Sequence[Any]]
    """Values by field that go together; their index is one more axis."""
    seeds: int | None = None
    random: int | None = None
    """So many of the settings; None: all of them."""

    @property
    def fields(self) -> tuple[str, ...]:
        """All of them, without the seed."""
        return (*self.over, *self.zipped)

    @property
    def count(self) -> int:
        """How many runs there are."""
        every = math.prod(map(len, self._axes()))
        return min(every, self.random or every) * (self.seeds or 1)

    def _axes(self) -> list[Sequence[Any]]:
        return [*self.over.values(), *([range(len(next(iter(self.zipped.values()))))] if self.zipped else [])]

    def settings(self, seed: int = 0) -> Iterator[dict[str, Any]]:
        """The values of each setting, by field; those that are drawn come in the order of the grid."""
        axes = self._axes()
        every = math.prod(map(len, axes))
        chosen: Sequence[int] = range(every)
        if self.random is not None and self.random < every:
            chosen = sorted(Random(derive(seed, "sweep")).sample(range(every), self.random))
        for number in chosen:
            places = []
            for axis in reversed(axes):
                number, place = divmod(number, len(axis))
                places.append(axis[place])
            point = places[::-1]
            zipped = {field: values[point[-1]] for field, values in self.zipped.items()}
            yield dict(zip(self.over, point)) | zipped


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A run of a sweep: its recipe, and in what it differs from the others."""

    recipe: Recipe
    values: dict[str, Any]

    @property
    def name(self) -> str:
        return self.recipe.run.name


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The runs of a sweep, in the order in which they start."""

    name: str
    sweep: Sweep
    axes: Axes
    runs: tuple[Planned, ...]

    @property
    def recipes(self) -> list[Recipe]:
        return [run.recipe for run in self.runs]


def read_grid(
    file: Path,
    overrides: Sequence[str] = (),
    over: Sequence[str] = (),
    zipped: Sequence[str] = (),
    seeds: int | None = None,
    random: int | None = None,
) -> Grid:
    """The runs of a recipe with a `[sweep]` table, of options such as "section.field=a,b,c", or of both.

    A field of an option takes the place of the same one in the table. Every setting runs with the first seed before
    any runs with the second.
    """
    base, sweep = recipe_file.split_sweep(recipe_file.read_base(file, overrides))
    problems: list[str] = []
    axes = Axes(
        over=by_field(sweep.over) | _values("--over", over, problems),
        zipped=by_field(sweep.zip) | _values("--zip", zipped, problems),
        seeds=seeds or sweep.seeds,
        random=random or sweep.random,
    )
    problems += _problems(axes)
    if problems:
        raise RecipeError(str(file), problems)
    first = base.with_values({})
    runs, names = [], set()
    for number in range(axes.seeds or 1):
        for values in axes.settings(first.run.seed):
            if axes.seeds is not None:
                values = values | {SEED: first.run.seed + number}
            name = _name(first.run.name, values)
            if name in names:  # of two values that differ only in characters that a name cannot have
                name = f"{name}-{fingerprint(list(map(str, values.values())))[:6]}"
            names.add(name)
            recipe = base.with_values({**values, "run.name": name}) if values else first
            runs.append(Planned(recipe=recipe, values=values))
    return Grid(name=first.run.name, sweep=sweep, axes=axes, runs=tuple(runs))


def _values(option: str, texts: Sequence[str], problems: list[str]) -> dict[str, tuple[Any, ...]]:
    found = {}
    for text in texts:
        field, equals, values = text.partition("=")
        field = field.strip()
        if not equals or "." not in field or not all(values.split(",")):
            example = f"{option} hmm.states=100,200"
            problems.append(f"{option} {text}: write it as section.field=a,b,c, for example {example}")
        elif field in found:
            problems.append(f"{option} {text}: {field} is given twice; put all its values into one list")
        else:
            found[field] = tuple(map(recipe_file.value_of, values.split(",")))
    return found


def _problems(axes: Axes) -> list[str]:
    """What is wrong with the axes themselves; wrong values are found when the recipes are built."""
    found = [f"{field}: cannot be swept: {why}" for field, why in _TAKEN.items() if field in axes.fields]
    found += [f"{field}: is both in over and in zip; leave one out" for field in axes.over if field in axes.zipped]
    if axes.seeds is not None and SEED in axes.fields:
        found.append(f"{SEED}: is swept, and seeds are given too; leave one out")
    for field, values in {**axes.over, **axes.zipped}.items():
        if not values:
            found.append(f"{field}: has no values to sweep over")
        elif len({repr(value) for value in values}) < len(values) and field in axes.over:
            found.append(f"{field}: has the same value twice")
    if len({len(values) for values in axes.zipped.values()}) > 1:
        lengths = ", ".join(f"{field} has {len(values)}" for field, values in axes.zipped.items())
        found.append(f"zip: its fields need equally many values: {lengths}")
    if not found and axes.count > MOST_RUNS:
        found.append(f"sweep: {axes.count:,} runs are too many; a sweep has at most {MOST_RUNS:,}")
    return found


def _name(base: str, values: Mapping[str, Any]) -> str:
    """The name of a run: that of the recipe, and each value after the name of its field."""
    parts = [f"{field.rpartition('.')[2]}{_plain(value)}" for field, value in values.items()]
    added = "-".join(parts)
    if len(added.encode()) > _LONGEST:
        added = fingerprint([*values, *map(str, values.values())])
    return f"{base}-{added}" if added else base


def _plain(value: Any) -> str:
    """A value as part of a name of a folder: "words:100" is words100, and a path has no slashes."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return re.sub(r"[^\w.+-]+", "-", text.replace(":", "")).strip("-.")
