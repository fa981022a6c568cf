"""Muon that is not made where the device says so, without waiting for its word."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz


class Muon(torch.optim.Muon):
    """Gradients are divided by `grad_scale`, and nothing is done where `found_inf` is not 0: tensors on the device.

    The state is that of torch's Muon, with Nesterov's momentum.
    """

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
                update = _zeropower_via_newtonschulz(
                    gradient.lerp(moved, momentum), group["ns_coefficients"], group["ns_steps"], group["eps"]
                )
                adjusted = _adjust_lr(lr, group["adjust_lr_fn"], p.shape)
                updated = (p * (1 - lr * group["weight_decay"])).add_(update, alpha=-adjusted)
                mean.copy_(torch.where(refused, mean, moved))
                p.copy_(torch.where(refused, p, updated))

    def prepare(self) -> None:
        """Make the state that is not there yet."""
        for group in self.param_groups:
            for p in group["params"]:
                self._mean(p)

    def _mean(self, p: Tensor) -> Tensor:
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        found: Tensor = state["momentum_buffer"]
        return found
