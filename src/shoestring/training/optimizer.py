"""The update of the weights: gradients are divided, clipped and applied on the device, without waiting for it.

A gradient is a sum over predictions. Their number and the factor of clipping are one divisor on the device, which
AdamW's kernel takes. So gradients are read only twice: for their norm and for the update.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoestring.core.registry import registry
from shoestring.core.train_section import Train
from shoestring.models.language_model import LanguageModel
from shoestring.training.loss_scale import LEAST, LossScale
from shoestring.training.optimizers.adamw import AdamW
from shoestring.training.optimizers.batch_moments import Half, Share, lengthen_steps
from shoestring.training.sharding import local_part

FACTOR = "lr_factor"
"""Key of a group's factor of the learning rate."""


class Weights(NamedTuple):
    """The weights of a network, grouped for update rules."""

    plain: list[Tensor]
    """Gains, biases and embeddings, which do not decay."""
    decayed: list[Tensor]
    """Matrices outside the blocks."""
    matrices: list[Tensor]
    """Matrices of the blocks, which decay too."""
    wholes: Mapping[int, Tensor]
    """Sharded parameters by the Python ids of their parts in this process, which are among the above; else empty."""


class Optimizer:
    """The optimizers of torch that make up an update rule, as one.

    `masters` are the parts of sharded parameters that this process updates, by name.
    """

    def __init__(self, model: LanguageModel, settings: Train, loss_scale: LossScale | None = None):
        """Gradients are those of the loss times `loss_scale`."""
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters = {name: local_part(p) for name, p in self._parameters.items()}
        self.clip, self.ema = settings.clip, settings.ema
        self.shares = 1
        """Workers that each update with a share of the batch, where AdamW is to have the moments of the whole."""
        self._half: Half | None = None
        self.halved = False
        """Whether the gradient of the first half of the rows was kept."""
        device = next(iter(self.masters.values())).device
        self.refused = torch.zeros((), device=device)
        """1 after the first loss or gradient that was not finite: no more updates are made."""
        self.loss_scale = loss_scale
        self.skipped = torch.zeros((), device=device)
        """1 if the last update was left out because its gradient overflowed at this loss scale."""
        decayed, inside = ({id(p) for p in group} for group in (model.decayed(), model.blocks.parameters()))
        sharded = [name for name, p in self._parameters.items() if self.masters[name] is not p]
        wholes = {id(self.masters[name]): self._parameters[name] for name in sharded}
        weights = Weights([], [], [], wholes)
        for name, p in self._parameters.items():
            matrix = p.ndim == 2 and id(p) in inside
            group = weights.plain if id(p) not in decayed else weights.matrices if matrix else weights.decayed
            group.append(self.masters[name])
        made = registry("optimizer")[settings.optimizer].build(weights, settings)
        self.optimizers = [each if hasattr(each, "prepare") else Waiting(each) for each in made]
        factors = self._factors(model, settings)
        if any(factor != 1 for factor in factors.values()):
            _divide_by_rate(self.optimizers, factors)
        self.waits = any(isinstance(each, Waiting) for each in self.optimizers)
        """Whether the host waits for the device at each update."""
        self._owner = {id(p): each for each in self.optimizers for group in each.param_groups for p in group["params"]}
        self.averages = {name: p.detach().clone() for name, p in self.masters.items()} if self.ema else {}
        self.updates = torch.zeros((), device=device)
        """Updates so far; the running mean of the weights decays faster at first."""

    def _factors(self, model: LanguageModel, settings: Train) -> dict[int, float]:
        """The factor of the learning rate of each master, by its Python id."""
        count, decay, groups = len(model.blocks), settings.layer_decay or 1.0, model.parameter_groups()
        factors = {id(p): decay ** (count - 1 - i) for i, block in enumerate(model.blocks) for p in block.parameters()}
        factors |= {id(p): decay**count for p in groups.get("embedding", [])}
        own = {id(p): settings.scalar_lr for p in self._parameters.values() if p.ndim < 2}
        for name, factor in (("embedding", settings.embedding_lr), ("head", settings.head_lr)):
            own |= {id(p): factor for p in groups.get(name, []) if p.ndim >= 2}
        return {
            id(self.masters[name]): factors.get(id(p), 1.0) * (own.get(id(p)) or 1.0)
            for name, p in self._parameters.items()
        }

    @torch.no_grad()
    def prepare(self) -> None:
        """Allocate the state of the optimizers."""
        for optimizer in self.optimizers:
            optimizer.prepare()

    def gradients(self) -> list[Tensor]:
        """The gradients of all parameters, or of their parts in this process; zeros if none was computed."""
        for p in self._parameters.values():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        return [local_part(p.grad) for p in self._parameters.values() if p.grad is not None]

    @property
    def wants_half(self) -> bool:
        """Whether the gradient of the first half of the rows is to be kept, and is not yet."""
        return self.shares > 1 and not self.halved

    def keep_half(self, predictions: int, others: int) -> None:
        """Keep a copy of the gradients so far, of the first half of the rows; the second has `others` predictions."""
        if self._half is None:
            self._half = Half(self.gradients())
        self._half.keep(self.gradients(), predictions, others)
        self.halved = True

    def clear(self) -> None:
        self.halved = False
        for p in itertools.chain(self._parameters.values(), self.masters.values()):
            p.grad = None

    @torch.no_grad()
    def step(self, squared_norm: Tensor, predictions: Tensor, refuse: Tensor, lr: float | Tensor) -> Tensor:
        """Divide the gradients by `predictions`, clip them, update the weights; returns the norm before clipping.

        `squared_norm` is that of all gradients before the division. If the norm is not finite or `refuse` is not 0,
        neither this step nor any later one is taken. With a loss scale, a norm that is not finite skips this step
        alone, until the scale is at its least. The arguments are on the device; only the rate may be a number, and has
        to be where an optimizer waits.
        """
        scales, divisor = self.loss_scale, predictions
        if scales is not None:
            divisor = predictions * scales.value
        norm = squared_norm.sqrt() / divisor
        refused, overflow = (self.refused > 0) | (refuse > 0), ~norm.isfinite()
        skip = refused | overflow
        if scales is None:
            refused = skip
        else:
            refused = refused | (overflow & (scales.value <= LEAST))
            self.skipped.copy_(overflow & ~refused)
            scales.adjust(overflow, refused)
        self.refused.copy_(refused)
        skip = skip.float()
        scale = (divisor * (norm / self.clip).clamp(min=1.0)).float()
        known = None
        if self.shares > 1:
            ids = [id(p) for p in self.masters.values()]
            known = Share(self.shares, self._half if self.halved else None, ids, self.gradients(), scale)
        for name, p in self._parameters.items():
            self.masters[name].grad = None if p.grad is None else local_part(p.grad)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr * group[FACTOR] if FACTOR in group else lr
            optimizer.grad_scale, optimizer.found_inf = scale, skip
            if isinstance(optimizer, AdamW):
                optimizer.share = known
            differences = known.differences if known is not None and isinstance(optimizer, Waiting) else None
            optimizer.step()
            if known is not None and isinstance(optimizer, Waiting):
                lengthen_steps(optimizer, known.workers, differences)
        if self.averages:
            self.updates += 1 - skip
            decay = torch.clamp((1 + self.updates) / (10 + self.updates), max=self.ema)
            share = (1 - decay) * (1 - skip)
            for name, average in self.averages.items():  # in place: a copy of all weights may not fit
                average.lerp_(self.masters[name], share)
        self.clear()
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """Everything besides the weights that an update depends on, by name."""
        found = {f"ema/{name}": tensor for name, tensor in self.averages.items()}
        if self.averages:
            found["ema updates"] = self.updates
        if self.loss_scale is not None:
            found |= self.loss_scale.tensors()
        for optimizer, (name, master) in itertools.product(self.optimizers, self.masters.items()):
            for key, value in optimizer.state.get(master, {}).items():
                found[f"optimizer/{key}/{name}"] = value
        return found

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of `tensors`."""
        for optimizer in self.optimizers:
            optimizer.state.clear()
        for full, value in tensors.items():
            kind, _, rest = full.partition("/")
            if kind == "optimizer":
                key, _, name = rest.partition("/")
                master = self.masters[name]
                self._owner[id(master)].state[master][key] = value.to(master.device, copy=True)
        for optimizer in self.optimizers:
            if hasattr(optimizer, "restored"):
                optimizer.restored()
        for name, average in self.averages.items():
            average.copy_(tensors[f"ema/{name}"])
        if self.averages:
            self.updates.copy_(tensors["ema updates"])
        if self.loss_scale is not None:
            self.loss_scale.restore(tensors)
        self.refused.zero_()

    @torch.no_grad()
    def swap_averages(self) -> None:
        """Exchange the weights and their running means; a second call undoes it."""
        for name, average in self.averages.items():
            master = self.masters[name]
            kept = master.detach().clone()
            master.copy_(average)
            average.copy_(kept)


def _divide_by_rate(optimizers: list[Any], factors: Mapping[int, float]) -> None:
    """Divide the groups of optimizers, so that each has weights with one factor of the learning rate."""
    for optimizer in optimizers:
        divided = []
        for group in optimizer.param_groups:
            for factor in sorted({factors[id(p)] for p in group["params"]}):
                part = [p for p in group["params"] if factors[id(p)] == factor]
                divided.append(group | {"params": part, FACTOR: factor})
        optimizer.param_groups[:] = divided


class Waiting:
    """An optimizer of torch without a divisor or refused steps: the host waits for the device and decides."""

    grad_scale: Tensor
    found_inf: Tensor

    def __init__(self, inner: torch.optim.Optimizer):
        self.inner, self.param_groups, self.state = inner, inner.param_groups, inner.state

    def prepare(self) -> None:
        """Its state is made by the first update."""

    def step(self) -> None:
        if self.found_inf.item():
            return
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            p.grad = p.grad / self.grad_scale
        self.inner.step()


def squared_norm(gradients: list[Tensor]) -> Tensor:
    """The sum of all squares, float32."""
    return torch.stack(torch._foreach_norm(gradients)).float().square().sum()
