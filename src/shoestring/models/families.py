"""The list of families. A new one is a line here and a file of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shoestring.core.facts import Cost
from shoestring.core.recipe import Model
from shoestring.models.gpt2 import GPT2, gpt2_cost
from shoestring.models.hf import HF, hf_cost
from shoestring.models.llama import Llama, llama_cost
from shoestring.models.masked_lm import MaskedLM, masked_lm_cost
from shoestring.models.perceiver_ar import PerceiverAR, perceiver_ar_cost
from shoestring.models.protocol import LanguageModel


class Family(NamedTuple):
    """How to build a model, and what it costs without building it."""

    build: Callable[[Model, int, int, int], LanguageModel]
    cost: Callable[[Model, int, int], Cost]


FAMILIES = {
    "llama": Family(Llama, llama_cost),
    "gpt2": Family(GPT2, gpt2_cost),
    "perceiver_ar": Family(PerceiverAR, perceiver_ar_cost),
    "masked_lm": Family(MaskedLM, masked_lm_cost),
    "hf": Family(HF, hf_cost),
}


def build(model: Model, vocab_size: int, length: int, seed: int) -> LanguageModel:
    """The network of a recipe for rows of `length` predictions, on the CPU, with its first weights."""
    return FAMILIES[model.family].build(model, vocab_size, length, seed)


def cost(model: Model, vocab_size: int, length: int) -> Cost:
    """Parameters and FLOPs for rows of `length` predictions."""
    return FAMILIES[model.family].cost(model, vocab_size, length)
