"""AdamW that updates all tensors in one kernel launch on a GPU; elsewhere torch's own.

Its state has the names of torch's AdamW, so that a checkpoint of one continues with the other.
"""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from shoestring.core.sections import number
from shoestring.core.train_section import Train
from shoestring.models.layers.operators import HAS_TRITON
from shoestring.training.optimizers.batch_moments import NOISE, Share, lengthen_steps

if TYPE_CHECKING:
    from shoestring.training.optimizer import Weights


def uncompiled(method: Any) -> Any:
    """A method of torch's optimizers without what loads the compiler, which takes a second, to keep it out of there."""
    return inspect.unwrap(method)


_step = uncompiled(torch.optim.AdamW.step)


class AdamW(torch.optim.AdamW):
    """Gradients are divided by `grad_scale`, and nothing changes if `found_inf` is not 0; both are on the device.

    The groups may differ in their rates and their decay. With a `share`, steps are those of a worker that sees only
    that much of the batch (`batch_moments.py`).
    """

    add_param_group = uncompiled(torch.optim.AdamW.add_param_group)
    grad_scale: Tensor
    found_inf: Tensor
    share: Share | None = None
    _places: _Places | None = None
    _pieces: _Pieces | None = None

    def prepare(self) -> None:
        """Allocate missing state, as the first update would."""
        for p in (p for group in self.param_groups for p in group["params"] if not self.state[p]):
            count = torch.zeros((), dtype=torch.float32, device=p.device)
            self.state[p] |= {"step": count, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        places = self._find(parameters)
        if places is not None:
            self._step_in_one(parameters, places)
            return
        differences = None if self.share is None else self.share.differences  # now: torch divides the gradients
        _step(self, closure)
        if self.share is not None:
            lengthen_steps(self, self.share.workers, differences)

    def _step_in_one(self, parameters: list[Tensor], places: _Places) -> None:
        from shoestring.training.optimizers import adamw_kernel as kernel

        if self._pieces is None or self._pieces.parameters != [id(p) for p in parameters]:
            self._pieces = _cut(parameters, self.param_groups, kernel.PIECE)
        pieces, group, share = self._pieces, self.param_groups[0], self.share
        beta1, beta2 = group["betas"]
        shares = -torch.expm1((places.counts + 1).double() * pieces.logs)
        lr = [torch.as_tensor(each["lr"], dtype=torch.float32, device=shares.device) for each in self.param_groups]
        one = all(each["lr"] is group["lr"] for each in self.param_groups)
        rates = lr[0] if one else torch.stack(lr)[pieces.groups]
        halves = share is not None and share.halves is not None
        factors = share.factors() if share is not None and halves else rates
        with torch.cuda.device_of(places.table):
            kernel.adamw_kernel[(len(pieces.owners),)](
                places.table, len(parameters), pieces.sizes, pieces.owners, pieces.firsts, pieces.decays,
                shares.float(), self.grad_scale, self.found_inf, rates, int(not one), 1 - beta1, 1 - beta2,
                group["eps"], 0.0 if share is None else 1 - 1 / share.workers, factors, PIECE=kernel.PIECE,
                SHARED=share is not None, HALVES=halves, num_warps=kernel.WARPS,
            )  # fmt: skip
        places.counts.add_(1 - self.found_inf)

    def _find(self, parameters: list[Tensor]) -> _Places | None:
        """The addresses of all tensors; None if there is no state yet, or the kernel cannot be used.

        Addresses change when a state is restored, and with gradients that are not recorded.
        """
        if not parameters or not _has_kernel(parameters[0]) or any(p not in self.state for p in parameters):
            return None
        state = [self.state[p] for p in parameters]
        means, squares = ([each[key] for each in state] for key in ("exp_avg", "exp_avg_sq"))
        tensors = [*parameters, *(p.grad for p in parameters if p.grad is not None), *means, *squares]
        if self.share is not None and (halves := self.share.halves) is not None:
            for each, p in zip(state, parameters, strict=True):
                if NOISE not in each:
                    each[NOISE] = torch.zeros_like(p)
            tensors += [*(halves[id(p)] for p in parameters), *(each[NOISE] for each in state)]
        addresses = [tensor.data_ptr() for tensor in tensors]
        counts = _together(state, None if self._places is None else self._places.counts)
        if self._places is None or self._places.addresses != addresses:
            if not all(fits(tensor) for tensor in tensors):
                return None
            table = torch.tensor(addresses)
            table = (table.pin_memory() if counts.is_cuda else table).to(counts.device, non_blocking=True)
            self._places = _Places(addresses, table, counts)
        elif counts is not self._places.counts:
            self._places = self._places._replace(counts=counts)
        return self._places


class _Places(NamedTuple):
    """The addresses of the tensors, on the host and on the device."""

    addresses: list[int]
    table: Tensor
    counts: Tensor
    """Updates of all tensors; the `step` in the state of each is a view of it."""


class _Pieces(NamedTuple):
    """What the programs of a launch process, on the device; `parameters` are Python ids."""

    parameters: list[int]
    sizes: Tensor
    owners: Tensor
    firsts: Tensor
    decays: Tensor
    groups: Tensor
    """The group of each tensor."""
    logs: Tensor
    """Logarithms of the betas, (2, 1), float64."""


def _has_kernel(p: Tensor) -> bool:
    return HAS_TRITON and p.is_cuda


def fits(tensor: Tensor) -> bool:
    """Whether the kernel can process it, in words of 16 bytes."""
    return tensor.dtype == torch.float32 and tensor.is_contiguous() and tensor.data_ptr() % 16 == 0


def _together(state: list[dict[str, Any]], counts: Tensor | None) -> Tensor:
    """The update counts of all tensors as one tensor; the state of each has a view of it."""
    if counts is None or any(each["step"].data_ptr() != counts.data_ptr() + 4 * i for i, each in enumerate(state)):
        device = state[0]["exp_avg"].device
        counts = torch.stack([each["step"].to(device, torch.float32) for each in state])
        for each, count in zip(state, counts, strict=True):
            each["step"] = count
    return counts


def _cut(parameters: list[Tensor], groups: list[dict[str, Any]], piece: int) -> _Pieces:
    device = parameters[0].device
    numbers = {id(p): i for i, group in enumerate(groups) for p in group["params"]}
    owners = [numbers[id(p)] for p in parameters]
    pieces = [-(-p.numel() // piece) for p in parameters]
    firsts = torch.cat([torch.arange(count) * piece for count in pieces])
    return _Pieces(
        [id(p) for p in parameters],
        torch.tensor([p.numel() for p in parameters]).to(device),
        torch.arange(len(parameters), dtype=torch.int32).repeat_interleave(torch.tensor(pieces)).to(device),
        firsts.to(device),
        torch.tensor([groups[i]["weight_decay"] for i in owners], dtype=torch.float32).to(device),
        torch.tensor(owners).to(device),
        torch.tensor([[math.log(beta)] for beta in groups[0]["betas"]], dtype=torch.float64).to(device),
    )


def make_adamw(weights: Weights, settings: Train) -> list[AdamW]:
    """AdamW for all weights."""
    return [adamw_of(weights.plain, [*weights.decayed, *weights.matrices], settings)]


def adamw_of(plain: list[Tensor], decayed: list[Tensor], settings: Train) -> AdamW:
    """AdamW for weights with and without decay."""
    groups = [
        {"params": plain, "weight_decay": 0.0},
        {"params": decayed, "weight_decay": number(settings.weight_decay)},
    ]
    betas = (settings.beta1, number(settings.beta2))
    return AdamW([group for group in groups if group["params"]], lr=0.0, betas=betas, fused=True)  # each step sets it
