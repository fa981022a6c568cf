"""The list of families. A new one is a line here and a file of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shoestring.core.facts import Cost
from shoestring.core.recipe import Model
from shoestring.models.llama import Llama, llama_cost
from shoestring.models.protocol import LanguageModel


class Family(NamedTuple):
    """How to build a model, and what it costs without building it."""

    build: Callable[[Model, int, int], LanguageModel]
    cost: Callable[[Model, int, int], Cost]


FAMILIES = {"llama": Family(Llama, llama_cost)}


def build(model: Model, vocab_size: int, seed: int) -> LanguageModel:
    """The network of a recipe, on the CPU, with its first weights."""
    return FAMILIES[model.family].build(model, vocab_size, seed)


def cost(model: Model, vocab_size: int, length: int) -> Cost:
    """Parameters and FLOPs for rows of `length` predictions."""
    return FAMILIES[model.family].cost(model, vocab_size, length)
