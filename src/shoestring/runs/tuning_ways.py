"""The ways to tune a model on a GPU by name: memory and seconds of each, and the nearest that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from shoestring.core.errors import UserError
from shoestring.core.family import family_of
from shoestring.core.recipe import Recipe
from shoestring.core.tuning import Lora
from shoestring.core.units import Bytes, Interval, Seconds
from shoestring.cost.memory import estimate_memory
from shoestring.planning.split import MEMORY_SHARE, divisors_of
from shoestring.runs.estimate import DRIVER_SHARE, known_gpu, pass_seconds

HEAD = ("way", "least memory", "micro-batch", "memory", "seconds per step", "fits")


class Way(NamedTuple):
    """A way to tune, as it would be on the GPU; None: it cannot be counted."""

    name: str
    fields: str
    """What to set in the recipe."""
    least_bytes: int | None
    """With a micro-batch of one row."""
    rows: int | None
    """The largest micro-batch that fits; 0: none."""
    bytes: int | None
    """With that micro-batch."""
    seconds: Interval | None
    """Of a step with the effective batch."""

    @property
    def fits(self) -> bool | None:
        return None if self.rows is None else self.rows > 0

    def row(self) -> tuple[str, ...]:
        """For people, by `HEAD`."""
        shown = [None if size is None else Bytes(size).short() for size in (self.least_bytes, self.bytes)]
        took = None if self.seconds is None else self.seconds.show(lambda value: Seconds(value).short())
        fits = {True: "yes", False: "no", None: "measure it"}[self.fits]
        cells = (shown[0], None if not self.rows else str(self.rows), shown[1], took)
        return (self.name, *(cell or "unknown" if self.rows is None else cell or "–" for cell in cells), fits)

    def to_json(self) -> dict[str, Any]:
        seconds = None if self.seconds is None else list(self.seconds)
        return self._asdict() | {"seconds": seconds, "fits": self.fits}


def ways_of(recipe: Recipe) -> dict[str, tuple[str, Recipe]]:
    """Recipes by the name of the way, with what to set; the nearest to learning everything first."""
    lora = recipe.lora or Lora()
    found = {}
    rule = recipe.train.optimizer
    kinds: list[tuple[str, Lora | None, str]] = [("full", None, rule), (f"LoRA, rank {lora.rank}", lora, rule)]
    if rule == "adamw":
        kinds.insert(1, ("full, 8-bit AdamW", None, "adamw8bit"))
    for name, adapters, optimizer in kinds:
        for recompute in ("none", "full"):
            if recompute in family_of(recipe.model).recompute:
                again = recompute == "full"
                frozen = None if adapters else recipe.train.freeze
                train = replace(recipe.train, recompute=recompute, freeze=frozen, optimizer=optimizer)
                fields = [f"lora.rank={lora.rank}"] if adapters else []
                fields += [f"train.optimizer={optimizer}"] if optimizer != rule else []
                fields += ["train.recompute=full"] if again else []
                made = replace(recipe, train=train, lora=adapters)
                found[f"{name}, recompute" if again else name] = (" --set ".join(fields) or "as it is", made)
    return found if family_of(recipe.model).adapts else {n: each for n, each in found.items() if n.startswith("full")}


def ways_on_gpu(recipe: Recipe, vocabulary: int, gpu: str) -> list[Way]:
    """Every way on this GPU, by counting."""
    visible = int(known_gpu(gpu).memory_bytes * (1 - DRIVER_SHARE))
    most = MEMORY_SHARE * (visible if recipe.budget.memory is None else min(visible, int(recipe.budget.memory)))
    return [_way(name, fields, each, vocabulary, gpu, most) for name, (fields, each) in ways_of(recipe).items()]


def _way(name: str, fields: str, recipe: Recipe, vocabulary: int, gpu: str, most: float) -> Way:
    seconds = pass_seconds(recipe, vocabulary, gpu, recipe.batch)
    try:
        memory = estimate_memory(recipe, vocabulary, "cuda")
    except UserError:  # such as layers of transformers that are computed again: measured
        return Way(name, fields, None, None, None, seconds)
    fitting = [rows for rows in divisors_of(recipe.batch) if memory.device_bytes(rows) <= most]
    rows = max(fitting, default=0)
    return Way(name, fields, memory.device_bytes(1), rows, memory.device_bytes(rows) if rows else None, seconds)


def nearest(ways: Sequence[Way], gpu: str) -> str:
    """Which way to take, in one sentence."""
    fitting = [way for way in ways if way.fits]
    if ways[0].fits:
        return f"{ways[0].name} fits {gpu}, with a micro-batch of {ways[0].rows}"
    if fitting:
        return (
            f"{ways[0].name} does not fit {gpu}; the nearest that does is {fitting[0].name}: --set {fitting[0].fields}"
        )
    counted = [way for way in ways if way.least_bytes is not None]
    least = min(counted, key=lambda way: way.least_bytes or 0)
    return f"none fits {gpu}: {least.name} needs {Bytes(least.least_bytes or 0).short()}; take a smaller model"
