"""The list of families. A new one is a line here, a file of its own, and its count in `cost.networks`."""

from __future__ import annotations

from collections.abc import Callable

from shoestring.core.facts import Cost
from shoestring.core.recipe import Model
from shoestring.cost.networks import network_cost
from shoestring.models.gpt2 import GPT2
from shoestring.models.hf import HF, hf_cost
from shoestring.models.llama import Llama
from shoestring.models.masked_lm import MaskedLM
from shoestring.models.perceiver_ar import PerceiverAR
from shoestring.models.protocol import LanguageModel

FAMILIES: dict[str, Callable[[Model, int, int, int], LanguageModel]] = {
    "llama": Llama,
    "gpt2": GPT2,
    "perceiver_ar": PerceiverAR,
    "masked_lm": MaskedLM,
    "hf": HF,
}
"""How each is built, of a model, the size of the vocabulary, predictions of a row, and a seed."""


def build(model: Model, vocab_size: int, length: int, seed: int) -> LanguageModel:
    """The network of a recipe for rows of `length` predictions, on the CPU, with its first weights."""
    return FAMILIES[model.family](model, vocab_size, length, seed)


def cost(model: Model, vocab_size: int, length: int, predicted: float = 1.0) -> Cost:
    """Parameters and FLOPs for rows of `length` predictions; `predicted` is as for `cost.networks.network_cost`."""
    if model.family == "hf":
        return hf_cost(model, vocab_size, length)
    return network_cost(model, vocab_size, length, predicted)
