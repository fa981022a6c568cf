"""Weights to start from, put into a network that they must fit."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from shoestring.core.errors import UserError
from shoestring.core.recipe import Model
from shoestring.cost.shapes import hidden_channels
from shoestring.models.llama import norm_eps
from shoestring.models.masked_lm import MaskedLM
from shoestring.models.protocol import LanguageModel

NAMED = 3
"""Tensors that an error names."""


def differences(wanted: Model, found: Model) -> list[str]:
    """What makes weights of one network useless in another though their shapes might be equal, a line each."""
    if wanted.family != found.family:
        return [f'model.family is "{found.family}" there, and "{wanted.family}" in the recipe']
    here, there = _decisive(wanted), _decisive(found)
    lines = [f"model.{name} is {there[name]} there, and {here[name]} in the recipe" for name in here]
    changed = [line for name, line in zip(here, lines) if here[name] != there[name]]
    if wanted.tied and not found.tied and not (wanted.classes or found.classes):
        changed.append("model.tied is false there, and true in the recipe")
    return changed


def _decisive(spec: Model) -> dict[str, object]:
    """The fields that weights depend on, with their defaults."""
    if spec.family == "hf":
        return {}
    found: dict[str, object] = {"width": spec.width, "layers": spec.layers, "heads": spec.heads}
    found["hidden"] = hidden_channels(spec)
    if spec.family == "llama":
        kind, *numbers = (spec.rotary_scaling or "none").split(":")
        found |= {"kv_heads": spec.kv_heads or spec.heads, "bias": spec.bias, "rotary_base": spec.rotary_base}
        found["norm_eps"] = norm_eps(spec)
        found["rotary_scaling"] = ":".join([kind, *(str(float(number)) for number in numbers)])
    return found


@torch.no_grad()
def take_over(model: LanguageModel, state: Mapping[str, Tensor], where: str) -> list[str]:
    """Put the weights of `state` into the model, all or none; `where` names their origin in errors.

    Returns the names of those that keep their first values: of a BERT the head, where that is another one.
    """
    if isinstance(model, MaskedLM):
        try:
            return model.load_encoder(state)
        except UserError as cause:
            raise UserError(f"{where}: {cause}") from cause
    own, given = dict(model.named_parameters()), dict(state)
    if "head.weight" not in given and "embedding.weight" in given:  # tied there, and perhaps not here
        given["head.weight"] = given["embedding.weight"]
    if "head.weight" not in own:
        given.pop("head.weight", None)
    wrong = [f"{name} is missing" for name in own if name not in given]
    wrong += [
        f"{name} is {tuple(given[name].shape)} there, and {tuple(value.shape)} here"
        for name, value in own.items()
        if name in given and given[name].shape != value.shape
    ]
    wrong += [f"{name} has no place here" for name in given if name not in own]
    if wrong:
        more = f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        raise UserError(f"{where} does not fit the recipe's model: {'; '.join(wrong[:NAMED])}{more}")
    for name, value in own.items():
        value.copy_(given[name])
    return []
