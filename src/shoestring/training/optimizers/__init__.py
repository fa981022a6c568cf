"""Update rules: one file each, and an entry here. This table needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoestring.core.registry import Registry, load_entry


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """An update rule by name."""

    make: str | Callable[..., list[Any]]
    """A function from `Weights` and the recipe's `[train]` to optimizers of torch, or its place, "module:name"."""
    state_numbers: Callable[[int, int], int]
    """Numbers of four bytes in its state, from the number of all weights and of those in matrices of blocks."""
    neuron_numbers: Callable[[Any], int] = lambda _: 0
    """More numbers for each row of those matrices, from the recipe's `[train]`."""
    shards: bool = True
    """Whether a weight may be divided over processes."""

    def count_state(self, weights: int, matrices: int, neurons: int, settings: Any) -> int:
        """All numbers of its state, for matrices of blocks with `neurons` rows in all."""
        return self.state_numbers(weights, matrices) + self.neuron_numbers(settings) * neurons

    def build(self, weights: Any, settings: Any) -> list[Any]:
        make = load_entry(self.make) if isinstance(self.make, str) else self.make
        return list(make(weights, settings))


OPTIMIZERS: Registry[OptimizerSpec] = Registry(
    {
        "adamw": OptimizerSpec(
            make="shoestring.training.optimizers.adamw:make_adamw", state_numbers=lambda weights, _: 2 * weights
        ),
        "muon": OptimizerSpec(
            make="shoestring.training.optimizers.muon:make_muon",
            state_numbers=lambda weights, matrices: 2 * weights - matrices,
            neuron_numbers=lambda settings: int(settings.normalizes),
        ),
        "adamw8bit": OptimizerSpec(
            make="shoestring.training.optimizers.adamw8bit:make_adamw8bit",
            state_numbers=lambda weights, _: -(-weights * (2 * 256 + 2 * 4) // (4 * 256)),  # a scale for each 256
            shards=False,
        ),
    }
)
