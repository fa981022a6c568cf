"""Muon with updates that the device can refuse, so that the host need not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim._muon import _adjust_lr

from shoestring.core.sections import Train, number
from shoestring.training.optimizers.adamw import adamw_of, uncompiled

if TYPE_CHECKING:
    from shoestring.training.optimizer import Weights


class Muon(torch.optim.Muon):
    """Gradients are divided by `grad_scale`, and nothing changes if `found_inf` is not 0; both are on the device.

    The state is that of torch's Muon, with Nesterov's momentum.
    """

    add_param_group = uncompiled(torch.optim.Muon.add_param_group)
    grad_scale: Tensor
    found_inf: Tensor

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        refused = self.found_inf > 0
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for p in (p for p in group["params"] if p.grad is not None):
                gradient, mean = p.grad / self.grad_scale, self._mean(p)
                moved = mean.lerp(gradient, 1 - momentum)
                wanted = gradient.lerp(moved, momentum)
                update = newton_schulz(wanted, group["ns_coefficients"], group["ns_steps"], group["eps"])
                adjusted = _adjust_lr(lr, group["adjust_lr_fn"], p.shape)
                updated = (p * (1 - lr * group["weight_decay"])).add_(update, alpha=-adjusted)
                mean.copy_(torch.where(refused, mean, moved))
                p.copy_(torch.where(refused, p, updated))

    def prepare(self) -> None:
        """Allocate missing state."""
        for group in self.param_groups:
            for p in group["params"]:
                self._mean(p)

    def _mean(self, p: Tensor) -> Tensor:
        if "momentum_buffer" not in self.state[p]:
            self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        mean: Tensor = self.state[p]["momentum_buffer"]
        return mean


def newton_schulz(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Steps of the Newton–Schulz iteration towards the nearest orthogonal matrix.

    In bf16 on a GPU, as torch's Muon does; on a CPU in the precision of `matrix`. A CPU without bf16 emulates it, which
    takes 2 to 20 times as long as fp32, and the first such product may switch oneDNN off for the rest of the process:
    products of a run that resumes would differ in their last bits from those of one that did not stop.
    """
    a, b, c = coefficients
    found = matrix.to(matrix.dtype if matrix.device.type == "cpu" else torch.bfloat16, copy=True)
    tall = found.size(0) > found.size(1)
    if tall:
        found = found.T
    found.div_(found.norm().clamp(min=eps))  # the spectral norm is at most 1
    for _ in range(steps):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found.T if tall else found


def make_muon(weights: Weights, settings: Train) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for all other weights."""
    found: list[torch.optim.Optimizer] = [adamw_of(weights.plain, weights.decayed, settings)]
    if weights.matrices:
        decay = number(settings.weight_decay)
        found.append(Muon(weights.matrices, lr=0.0, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    return found
