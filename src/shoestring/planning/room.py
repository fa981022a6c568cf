"""What cannot fit the memory, by counting alone: refused before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from shoestring.core.errors import PlanError
from shoestring.core.family import family_of
from shoestring.core.host import free_host_bytes
from shoestring.core.recipe import Recipe
from shoestring.core.registry import registry
from shoestring.core.units import Bytes
from shoestring.cost.memory import estimate_memory
from shoestring.cost.transformer import Transformer

Device = Literal["cpu", "cuda"]

_SURE = 0.5
"""Share of an estimated peak that a pass takes for certain; the estimates are within a tenth of what is measured."""
_NUMBER = 4
"""Bytes of a weight, a gradient, and a number of a table."""
_GPUS = (Path("/proc/driver/nvidia"), Path("/dev/kfd"))
"""There, if the machine has a GPU."""
_FIELDS = {
    "embedding": ("data.tokenizer", "model.positions", "data.length", "model.width"),
    "attention": ("model.width", "model.layers"),
    "mlp": ("model.hidden", "model.width", "model.layers"),
    "norm": ("model.layers", "model.width"),
    "head": ("data.tokenizer", "model.classes", "model.width"),
    "output_bias": ("data.tokenizer",),
    "row": ("data.length", "train.per_device", "model.hidden", "model.width", "model.layers"),
    "tables": ("hmm.states", "data.tokenizer"),
}
"""The fields that decide the size of each part."""


class Need(NamedTuple):
    """Bytes that are taken for certain."""

    bytes: int
    what: str
    part: str
    """The largest part, as in `_FIELDS`."""


def check_host(recipe: Recipe) -> None:
    """Raise PlanError if the recipe cannot fit this machine: its weights, or without a GPU its training."""
    device: Device | None = None if any(path.exists() for path in _GPUS) else "cpu"
    check_room(recipe, device, free_host_bytes(), "free on this machine")


def check_room(recipe: Recipe, device: Device | None, free: int | None, where: str) -> None:
    """Raise PlanError if more bytes than `free` (None: unknown) are certain; without a device, for the model alone."""
    need = least_need(recipe, device)
    if need is None or free is None or need.bytes <= free:
        return
    fields = ", ".join(
        f"{name} = {value}" for name in _FIELDS[need.part] if (value := _value(recipe, name)) is not None
    )
    raise PlanError(
        f"nothing fits the memory: {need.what} at least {Bytes(need.bytes).short()}, and {Bytes(free).short()} are "
        f"{where}; most of it is due to {fields}"
    )


def least_need(recipe: Recipe, device: Device | None) -> Need | None:
    """What training takes at least; without a device, the model alone. None: only the model itself can tell."""
    if recipe.hmm is not None:
        words, states = recipe.data.tokenizer.words or 1, recipe.hmm.states
        copies = 1 if device is None else 2  # the tables, and their counts
        return Need(copies * _NUMBER * states * (1 + states + words), "the tables of the HMM take", "tables")
    family = family_of(recipe.model)
    if not isinstance(family, Transformer):
        return None
    vocabulary = _least_vocabulary(recipe)
    groups = family.parameters(recipe.model, vocabulary, recipe.data.length)
    weights, part = sum(groups.values()), max(groups, key=lambda name: groups[name])
    if device is None or _is_sharded(recipe):
        return Need(_NUMBER * weights, "the weights take", part)
    matrices, neurons = (sum(of(recipe.model).values()) for of in (family.matrices, family.biases))
    state = registry("optimizer")[recipe.train.optimizer].count_state(weights, matrices, neurons, recipe.train)
    kept = _NUMBER * (2 * weights + state)
    passing = int(_SURE * estimate_memory(recipe, vocabulary, device).at(recipe.train.per_device or 1))
    if passing > kept:
        rows = "one row" if recipe.train.per_device in (None, 1) else f"{recipe.train.per_device:,} rows"
        return Need(passing, f"a pass over {rows} takes", "row")
    return Need(kept, "weights, gradients and the optimizer take", part)


def _least_vocabulary(recipe: Recipe) -> int:
    """Ids that the model has at least, without a look at any file."""
    data = recipe.data
    if data.stream is not None or data.source.kind == "store":
        return (data.stream and data.stream.symbols) or 1
    return data.tokenizer.fitted or (256 if data.tokenizer == "bytes" else 1)


def _is_sharded(recipe: Recipe) -> bool:
    return recipe.parallel is not None and recipe.parallel.shard


def _value(recipe: Recipe, name: str) -> object:
    section, _, field = name.partition(".")
    return getattr(getattr(recipe, section), field)
