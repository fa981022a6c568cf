"""The interface of a model to the loop, the probe and the evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from shoestring.core.errors import UserError
from shoestring.core.family import family_of
from shoestring.core.sections import Model
from shoestring.models.batch import Batch
from shoestring.models.layers.adapter import NAME as ADAPTER
from shoestring.models.layers.blocks import scoring_mode
from shoestring.models.layers.cross_entropy import Copies, linear_cross_entropy, soft_cap, token_cross_entropy
from shoestring.models.layers.next_token import Parts, Unsupported

Rows = Int[Tensor, "rows tokens"]
"""Token ids; a row of `length + 1` tokens makes up to `length` predictions."""


class Output(NamedTuple):
    """The product of the last hidden state with a matrix, which gives a logit for every id."""

    weight: Float[Tensor, "vocabulary width"]
    bias: Float[Tensor, " vocabulary"] | None = None
    cap: float | None = None
    """Logits are kept within ± cap, as by `soft_cap`."""

    def logits(self, hidden: Float[Tensor, "*places width"]) -> Float[Tensor, "*places vocabulary"]:
        return soft_cap(F.linear(hidden, self.weight, self.bias), self.cap)

    def loss(
        self,
        hidden: Float[Tensor, "places width"],
        targets: Int[Tensor, " places"],
        scale: Float[Tensor, ""] | None = None,
        copies: Copies | None = None,
    ) -> Float[Tensor, ""]:
        """As `linear_cross_entropy`."""
        return linear_cross_entropy(hidden, self.weight, self.bias, targets, scale, self.cap, copies)

    def token_losses(
        self,
        hidden: Float[Tensor, "places width"],
        targets: Int[Tensor, " places"],
        copies: Copies | None = None,
    ) -> Float[Tensor, " places"]:
        """As `token_cross_entropy`."""
        return token_cross_entropy(hidden, self.weight, self.bias, targets, self.cap, copies)


NAMED = 3
"""Tensors that an error names."""
_PARTS = {
    "embedding": ("embedding", "positions", "types", "value_embedding", "pair_embedding"),
    "attention": ("qkv", "out", "value_gate", "convolution1"),
    "mlp": ("up", "gate_up", "down", "convolution2"),
    "norm": ("norm", "norm1", "norm2", "prefix_norm", "embedding_norm", "transform_norm", "q_norm", "k_norm", "scales"),
    "head": ("head", "transform", "pooler", "classifier", "pointer"),
}
"""The modules of our families by group."""


class LanguageModel(nn.Module, ABC):
    """Base of every family.

    The output product is kept apart from the rest, so that losses can be made without all logits in memory at once.
    """

    blocks: nn.ModuleList
    """The layers in order, which are compiled, recomputed and sharded one by one."""
    pretrained: Any = None
    """The network of transformers inside; None for our own networks."""
    replaceable: tuple[str, ...] = ()
    """Prefixes of weights that may keep their first values when others are taken over."""

    @abstractmethod
    def hidden(self, inputs: Batch) -> Float[Tensor, "rows positions width"]:
        """The input of the output product: for every position, for the last ones, or for one per row."""

    @abstractmethod
    def output(self) -> Output:
        """The output product."""

    def forward(self, batch: Batch | Rows, scale: Float[Tensor, ""] | None = None) -> Float[Tensor, ""]:
        """The summed loss in nats, with its gradient; `Batch.predictions` is the count to divide it by.

        The gradient is that of the loss times `scale`, which keeps small numbers in fp16.
        """
        hidden, targets, copies = self._predicted(Batch.of(batch))
        return self.output().loss(hidden.flatten(0, 1), targets.flatten(), scale, copies)

    def token_losses(self, batch: Batch | Rows) -> Float[Tensor, "rows predictions"]:
        """The loss of every prediction, in nats and float32; 0 where there is none."""
        batch = Batch.of(batch)
        with scoring_mode():
            hidden, targets, copies = self._predicted(batch)
        losses = self.output().token_losses(hidden.flatten(0, 1), targets.flatten(), copies).view(targets.shape)
        return F.pad(losses, (batch.targets().shape[1] - targets.shape[1], 0))

    def logits(self, inputs: Batch | Rows) -> Float[Tensor, "rows positions vocabulary"]:
        """The prediction of the token after each position that `hidden` returns."""
        return self.output().logits(self.hidden(Batch.of(inputs)))

    def last_logits(self, inputs: Batch | Rows) -> Float[Tensor, "rows vocabulary"]:
        """The prediction of the token after each row; no other logits are made."""
        return self.output().logits(self.hidden(Batch.of(inputs))[:, -1])

    def past(self, length: int) -> Any:  # noqa: ARG002
        """What `read_on` keeps of rows of at most `length` tokens, before any; None: this model reads whole rows."""
        return None

    def read_on(self, ids: Rows, past: Any) -> Float[Tensor, "rows vocabulary"]:  # noqa: ARG002
        """The prediction after the last of further tokens, which are added to the past."""
        raise AssertionError("this model keeps no past")

    def parts(self) -> Parts:
        """The tensors for the kernels of `next_token`; raises Unsupported for a network that they cannot compute."""
        raise Unsupported(f"no kernels for a {type(self).__name__}")

    def copies(
        self,
        inputs: Batch,  # noqa: ARG002
        hidden: Float[Tensor, "rows positions width"],  # noqa: ARG002
        targets: Int[Tensor, "rows positions"],  # noqa: ARG002
    ) -> Copies | None:
        """What a pointer gives to the targets of all positions, flattened; None: this model has none."""
        return None

    def _predicted(self, batch: Batch) -> tuple[Tensor, Tensor, Copies | None]:
        """What predicts, and what is predicted."""
        inputs = batch.inputs()
        hidden = self.hidden(inputs)
        targets = batch.targets()[:, -hidden.shape[1] :]
        return hidden, targets, self.copies(inputs, hidden, targets)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Every parameter in exactly one group, such as "embedding" or "attention": by the name of its module."""
        groups: dict[str, list[nn.Parameter]] = {group: [] for group in _PARTS}
        group_of = {part: group for group, parts in _PARTS.items() for part in parts}
        for name, parameter in self.named_parameters():  # a tied head is the embedding, and is named once
            groups[group_of[name.replace(f".{ADAPTER}.", ".").split(".")[-2]]].append(parameter)
        return groups

    def decayed(self) -> list[nn.Parameter]:
        """Parameters that weight decay applies to: matrices, but no embedding."""
        groups = self.parameter_groups()
        return [p for name, group in groups.items() if name != "embedding" for p in group if p.ndim >= 2]

    @torch.no_grad()
    def take_over(self, state: Mapping[str, Tensor], where: str) -> list[str]:
        """Copy the weights of `state` to this network, all or none; `where` names their origin in errors.

        Returns the names of those that keep their first values: the head of a BERT, if the stored head differs.
        """
        own, given, kept, wrong = weights_of(self), dict(state), list[str](), list[str]()
        if "embedding.weight" in given and not self.replaceable:
            given.setdefault("head.weight", given["embedding.weight"])  # tied there, and perhaps not here
        if "head.weight" not in own:
            given.pop("head.weight", None)
        for name, value in own.items():
            if name in given and given[name].shape == value.shape:
                continue
            if name.startswith(self.replaceable):
                kept.append(name)
            elif name not in given:
                wrong.append(f"{name} is missing")
            else:
                wrong.append(f"{name} is {tuple(given[name].shape)} there, and {tuple(value.shape)} here")
        others = [name for name in given if name not in own and not name.startswith(self.replaceable)]
        wrong += [f"{name} has no place here" for name in others]
        if wrong:
            more = f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
            raise UserError(f"{where} does not fit the recipe's model: {'; '.join(wrong[:NAMED])}{more}")
        for name in own.keys() - kept:
            own[name].copy_(given[name])
        return kept


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers by name, tied parameters once."""
    state = network.state_dict(keep_vars=True)
    return dict(network.named_parameters()) | {name: b for name, b in network.named_buffers() if name in state}


def build(model: Model, vocabulary: int, length: int, seed: int) -> LanguageModel:
    """The network of a recipe for rows of `length` predictions, on the CPU, with its first weights."""
    found: LanguageModel = family_of(model).build(model, vocabulary, length, seed)
    return found


def differences(model: Model, stored: Model) -> list[str]:
    """Why weights of a stored model are useless in another one, even if their shapes are equal: one line per field."""
    if model.family != stored.family:
        return [f'model.family is "{stored.family}" there, and "{model.family}" in the recipe']
    here, there = (family_of(each).decisive(each) for each in (model, stored))
    lines = [
        f"model.{name} is {there[name]} there, and {here[name]} in the recipe"
        for name in here
        if here[name] != there[name]
    ]
    if model.tied and not stored.tied and not (model.classes or stored.classes):
        lines.append("model.tied is false there, and true in the recipe")
    return lines
