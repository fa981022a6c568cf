"""The update of the weights: gradients are divided, clipped and applied on the device, and nothing is waited for.

A gradient arrives as a sum over predictions. Its divisor, and what clipping divides by, are one number on the device
that AdamW's own kernel takes, so the gradients are read twice in all: for their norm and for the update.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from shoestring.core.recipe import Train
from shoestring.models import LanguageModel
from shoestring.train.adamw import AdamW
from shoestring.train.muon import Muon
from shoestring.train.sharding import local_part


class Optimizer:
    """AdamW for all parameters, or Muon for the matrices of the blocks and AdamW for the others.

    A sharded parameter is updated where it lies: `masters` are the parts of this process, by name.
    """

    def __init__(self, model: LanguageModel, settings: Train):
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters = {name: local_part(p) for name, p in self._parameters.items()}
        self.clip, self.ema = settings.clip, settings.ema
        device = next(iter(self.masters.values())).device
        self.refused = torch.zeros((), device=device)
        """1 from the first gradient on that was not finite: no update is made any more."""
        decayed, inside = ({id(p) for p in group} for group in (model.decayed(), model.blocks.parameters()))
        groups: dict[str, list[Tensor]] = {"plain": [], "decayed": [], "muon": []}
        for name, p in self._parameters.items():
            matrix = settings.optimizer == "muon" and p.ndim == 2 and id(p) in inside
            kind = "plain" if id(p) not in decayed else "muon" if matrix else "decayed"
            groups[kind].append(self.masters[name])
        adam = [
            {"params": groups["plain"], "weight_decay": 0.0},
            {"params": groups["decayed"], "weight_decay": settings.weight_decay},
        ]
        betas = (settings.beta1, settings.beta2)
        self.adam = AdamW([g for g in adam if g["params"]], lr=settings.lr, betas=betas, fused=True)
        self._matrices = groups["muon"]
        self.muon = None
        if self._matrices:
            decay = settings.weight_decay
            self.muon = Muon(self._matrices, lr=settings.lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
        self.averages = {name: p.detach().clone() for name, p in self.masters.items()} if self.ema else {}
        self.updates = torch.zeros((), device=device)
        """Made so far; the running mean of the weights forgets faster at first."""

    @torch.no_grad()
    def prepare(self) -> None:
        """Make the state of updates to come; that takes the memory that it will keep."""
        self.adam.prepare()
        if self.muon is not None:
            self.muon.prepare()

    def gradients(self) -> list[Tensor]:
        """Of all parameters, as far as they lie here; zero where none was made."""
        for p in self._parameters.values():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        return [local_part(p.grad) for p in self._parameters.values() if p.grad is not None]

    def clear(self) -> None:
        for p in itertools.chain(self._parameters.values(), self.masters.values()):
            p.grad = None

    @torch.no_grad()
    def step(self, squared_norm: Tensor, predictions: Tensor, refuse: Tensor, lr: float) -> Tensor:
        """Divide the gradients by `predictions`, clip them, update the weights; returns the norm before clipping.

        `squared_norm` is that of all gradients, not divided yet. With a norm that is not finite, or where `refuse` is
        not 0, nothing is changed, now and later. All arguments but the rate lie on the device.
        """
        norm = squared_norm.sqrt() / predictions
        self.refused.copy_((self.refused > 0) | (refuse > 0) | ~norm.isfinite())
        scale = (predictions * (norm / self.clip).clamp(min=1.0)).float()
        for name, p in self._parameters.items():
            self.masters[name].grad = None if p.grad is None else local_part(p.grad)
        for group in self._groups():
            group["lr"] = lr
        self.adam.grad_scale, self.adam.found_inf = scale, self.refused
        self.adam.step()
        if self.muon is not None:
            self.muon.grad_scale, self.muon.found_inf = scale, self.refused
            self.muon.step()
        if self.averages:
            self.updates += 1 - self.refused
            decay = torch.clamp((1 + self.updates) / (10 + self.updates), max=self.ema)
            share = (1 - decay) * (1 - self.refused)
            for name, average in self.averages.items():  # in place: a copy of all weights may not fit here
                average.lerp_(self.masters[name], share)
        self.clear()
        return norm

    def _groups(self) -> Iterator[dict[str, object]]:
        for optimizer in self._optimizers():
            yield from optimizer.param_groups

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.adam] if self.muon is None else [self.adam, self.muon]

    def tensors(self) -> dict[str, Tensor]:
        """All that an update depends on besides the weights, by name."""
        found = {f"ema/{name}": tensor for name, tensor in self.averages.items()}
        if self.averages:
            found["ema updates"] = self.updates
        for optimizer, (name, master) in itertools.product(self._optimizers(), self.masters.items()):
            for key, value in optimizer.state.get(master, {}).items():
                found[f"optimizer/{key}/{name}"] = value
        return found

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """What `tensors` gave, in its place."""
        for optimizer in self._optimizers():
            optimizer.state.clear()
        matrices = {id(p) for p in self._matrices}
        for full, value in tensors.items():
            kind, _, rest = full.partition("/")
            if kind == "optimizer":
                key, _, name = rest.partition("/")
                master = self.masters[name]
                optimizer = self.muon if self.muon is not None and id(master) in matrices else self.adam
                optimizer.state[master][key] = value.to(master.device, copy=True)
        for name, average in self.averages.items():
            average.copy_(tensors[f"ema/{name}"])
        if self.averages:
            self.updates.copy_(tensors["ema updates"])
        self.refused.zero_()

    @torch.no_grad()
    def swap_averages(self) -> None:
        """Exchange the weights and their running means; twice is as it was."""
        for name, average in self.averages.items():
            master = self.masters[name]
            kept = master.detach().clone()
            master.copy_(average)
            average.copy_(kept)


def squared_norm(gradients: list[Tensor]) -> Tensor:
    """The sum of all squares, float32."""
    return torch.stack(torch._foreach_norm(gradients)).float().square().sum()
