"""The interface of a family of networks: its fields, its cost, and how to build it.

Nothing here needs torch, so a plan can count a network without building it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from shoestring.core.recipe import Recipe, fingerprint
from shoestring.core.registry import load_entry, registry
from shoestring.core.schema import encode
from shoestring.core.sections import Model
from shoestring.core.specs import CodeSpec, is_code
from shoestring.core.user_code import load_code

if TYPE_CHECKING:
    from shoestring.core.records import Cost
    from shoestring.core.tuning import Learned

Recompute = Literal["none", "selective", "full"]
LEAST_WARMUP = 100
"""Steps of the warm-up that a network is given at least, unless its family is known to need fewer."""
_CUSTOM = "shoestring.models.families.custom:CustomFamily"


class Family(ABC):
    """A kind of network. A subclass is registered by name as a "family"."""

    name: str
    fields: frozenset[str] = frozenset()
    """Fields of `[model]` that it has, besides family and init; others are refused."""
    data_fields: frozenset[str] = frozenset()
    """Fields of `[data]` that it reads, among masked, whole_words and label."""
    document_mask: bool = False
    """Whether it can restrict attention to documents."""
    recompute: tuple[Recompute, ...] = ("none",)
    """Kinds of recomputation that it supports."""

    adapts: bool = False
    """Whether its layers can have adapters."""

    lr_factor: float = 1.0
    """Its best learning rate over that of a Llama of the same size."""

    def problems(self, recipe: Recipe) -> list[str]:  # noqa: ARG002
        """Problems of a recipe with this family: a line each, with the field and what to do."""
        return []

    def predicts_hidden(self, model: Model) -> bool:  # noqa: ARG002
        """Whether it sees whole rows and predicts masked tokens or a class, not the next token."""
        return False

    def last_predictions(self, model: Model) -> int | None:  # noqa: ARG002
        """The number of positions at the end of a row that are predicted; None: all."""
        return None

    def begins_trained(self, model: Model) -> bool:
        """Whether its first weights are those of another training, not random ones."""
        return model.init is not None

    def least_warmup(self, model: Model) -> int:  # noqa: ARG002
        """Steps that the learning rate rises at least, where a recipe does not say how long."""
        return LEAST_WARMUP

    @abstractmethod
    def cost(self, model: Model, vocabulary: int, length: int, predicted: float = 1.0) -> Cost:
        """Parameters and FLOPs for rows of `length`; a masked model predicts the share `predicted` of positions."""

    @abstractmethod
    def build(self, model: Model, vocabulary: int, length: int, seed: int) -> Any:
        """The network for rows of `length` predictions: a `LanguageModel` on the CPU with initial weights."""

    def skeleton(self, model: Model, vocabulary: int, length: int) -> Any:
        """The network without numbers, within `torch.device("meta")`."""
        return self.build(model, vocabulary, length, 0)

    def saved_row_bytes(self, model: Model, vocabulary: int, length: int, number: int) -> dict[str, int] | None:  # noqa: ARG002
        """Saved activations and logits of one row, by part, in passes of `number` bytes; None: to be measured."""
        return None

    def has_kernels(self, recipe: Recipe) -> bool:  # noqa: ARG002
        """Whether kernels of its own make up its layers on a GPU, so that compiling them gains nothing."""
        return False

    def decisive(self, model: Model) -> dict[str, object]:  # noqa: ARG002
        """The fields that the weights depend on: weights of a model with other values cannot be loaded."""
        return {}

    def formats(self) -> tuple[Any, ...]:
        """The kinds of `TransformersFormat` for its files, best first; empty: transformers has no class for it."""
        return ()


def family_of(model: Model) -> Family:
    """The family that a model names, which may be a module of the user's own."""
    if is_code(model.family):
        spec = CodeSpec(model.family)
        return _own_family(spec, os.path.abspath(os.path.expanduser(spec.file)))
    family: Family = registry("family")[model.family]
    return family


def is_compiled(recipe: Recipe, device: str) -> bool:
    """Whether the layers of a network are compiled on a device of this type: as the recipe says.

    By default on a GPU, unless they consist of kernels. Where the model is sharded, kernels are launched one by one,
    and the fewer that compiling leaves are faster.
    """
    if recipe.train.compile is not None:
        return recipe.train.compile
    sharded = recipe.parallel is not None and recipe.parallel.shard
    return device == "cuda" and (sharded or not family_of(recipe.model).has_kernels(recipe))


def learned_of(recipe: Recipe, vocabulary: int, counted: bool = False) -> Learned | None:
    """What a recipe learns of its network; None: all of it, unless that is to be `counted` too."""
    if recipe.lora is None and recipe.train.freeze is None and not counted:
        return None
    parts = [encode(recipe.model), encode(recipe.lora), recipe.train.freeze, recipe.data.length, vocabulary]
    key = fingerprint(parts)
    if key not in _LEARNED:
        _LEARNED[key] = load_entry("shoestring.models.tuning:count_learned")(recipe, vocabulary)
    return _LEARNED[key]


_LEARNED: dict[str, Learned] = {}
"""By what the numbers depend on: a network is built for them."""


def network_cost(model: Model, vocabulary: int, length: int, predicted: float = 1.0) -> Cost:
    """Parameters and FLOPs of a network; see `Family.cost`."""
    return family_of(model).cost(model, vocabulary, length, predicted)


@cache
def _own_family(spec: CodeSpec, _path: str) -> Family:
    """The `Family` in the user's file, or the family of a network there; loaded once for an absolute path."""
    own = load_code(spec, "model.family")
    family: Family = own if isinstance(own, Family) else load_entry(_CUSTOM)(spec)
    return family
