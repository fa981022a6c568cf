"""A module of the user's own as a language model.

The class or function that the recipe names is called with those of these arguments that it has: `vocab_size`,
`length`, the fields of `[model]`, and `model.options`. The module takes ids (rows, tokens) and returns logits (rows,
tokens, vocabulary), or an object that has them in `.logits`, or a tuple that begins with them.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shoestring.core.errors import UserError
from shoestring.core.records import Cost
from shoestring.core.sections import Model
from shoestring.core.specs import CodeSpec
from shoestring.core.user_code import load_code
from shoestring.models.batch import Batch
from shoestring.models.language_model import Rows
from shoestring.models.logits_model import LogitsModel, count_cost, layers_of, sees_later_tokens


class Custom(LogitsModel):
    """Next-token prediction by a module of the user's own, which draws its first weights after torch is seeded."""

    def __init__(self, spec: CodeSpec, model: Model, vocab_size: int, length: int, seed: int):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.network = _made(spec, model, vocab_size, length).float()  # train.precision applies to products
        self.__dict__["blocks"] = layers_of(self.network)  # not registered: its weights have their names in the network
        self._recomputes = False
        _check(self.network, spec, vocab_size, length)
        self.train()

    def logits(self, inputs: Batch | Rows) -> Float[Tensor, "rows positions vocabulary"]:
        self._follow_recompute()
        return _logits(self.network, Batch.of(inputs).ids)

    def _follow_recompute(self) -> None:
        """Compute layers again in the backward pass if their `recompute` is "full"."""
        if self._recomputes or not any(getattr(block, "recompute", "none") == "full" for block in self.blocks):
            return
        self._recomputes = True
        for block in self.blocks:
            block.forward = _recomputing(block.forward)


def _recomputing(forward: Any) -> Any:
    def run(*inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        return checkpoint(forward, *inputs, use_reentrant=False, **named)

    return run


def custom_cost(spec: CodeSpec, model: Model, vocab_size: int, length: int) -> Cost:
    """Parameters and FLOPs, counted on torch's meta device, or on the CPU if the module does not run there."""

    def count(device: str) -> Cost:
        with torch.device(device):
            network = _made(spec, model, vocab_size, length).eval()
        return count_cost(network, length, device, str(spec), lambda ids: _logits(network, ids))

    try:
        return count("meta")
    except UserError:
        return count("cpu")


def _made(spec: CodeSpec, model: Model, vocab_size: int, length: int) -> nn.Module:
    make = load_code(spec, "model.family")
    if not callable(make):
        raise UserError(f'model.family = "{spec}": must be a class or a function, not {type(make).__name__}')
    known = {"vocab_size": vocab_size, "length": length}
    known |= {
        name: getattr(model, name)
        for name in ("width", "layers", "heads", "kv_heads", "hidden", "tied", "bias", "dropout")
    }
    accepted = inspect.signature(make).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    given = {name: value for name, value in known.items() if name in accepted} | dict(model.options or {})
    unknown = [name for name in given if name not in accepted and not takes_any]
    if unknown:
        takes = ", ".join(accepted) or "nothing"
        raise UserError(f'model.options: "{spec}" has no argument {unknown[0]}; it takes {takes}')
    try:
        network = make(**given)
    except Exception as cause:  # any exception of the user's code
        raise UserError(f'model.family = "{spec}": cannot be made ({type(cause).__name__}: {cause})') from cause
    if not isinstance(network, nn.Module):
        raise UserError(f'model.family = "{spec}": must make a torch.nn.Module, not {type(network).__name__}')
    return network


def _check(network: nn.Module, spec: CodeSpec, vocab_size: int, length: int) -> None:
    """Raise UserError unless it returns logits of the right shape that do not depend on later tokens."""
    tokens = min(6, length)
    network.eval()
    try:
        with torch.no_grad():
            found = _logits(network, torch.zeros(2, tokens, dtype=torch.long))
    except UserError:
        raise
    except Exception as cause:  # any exception of the user's code
        raise UserError(
            f'model.family = "{spec}": failed on ids of shape (2, {tokens}) ({type(cause).__name__}: {cause})'
        ) from cause
    if found.shape != (2, tokens, vocab_size):
        raise UserError(
            f'model.family = "{spec}": logits of shape {tuple(found.shape)} for ids of shape (2, {tokens}); must be '
            f"(2, {tokens}, {vocab_size}): rows, tokens, vocabulary"
        )
    if length >= 6 and sees_later_tokens(lambda ids: _logits(network, ids), vocab_size):
        raise UserError(f'model.family = "{spec}": its logits depend on later tokens; a causal mask is missing')


def _logits(network: nn.Module, ids: Tensor) -> Tensor:
    found = network(ids)
    if isinstance(found, tuple):
        found = found[0]
    found = getattr(found, "logits", found)
    if not isinstance(found, Tensor):
        raise UserError(f"{type(network).__name__} returns {type(found).__name__}; it must return logits")
    return found
