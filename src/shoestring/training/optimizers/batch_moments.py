"""AdamW of a worker that sees one n-th of a batch, with the second moments of the whole batch.

AdamW moves a weight by −lr x, with x = m / (√v + ε) of the moments m and v. Where the gradient of a worker is a signal
s with noise σ, v is about s² + σ². For the mean gradient of n workers it would be s² + σ² / n. So a worker that divides
by its own √v takes too short a step: by a factor of √n where noise prevails, as it does late in training. With m² for
s², v of the whole batch is about v / n + (1 − 1 / n) m², and the step is

    −lr x / √(1 / n + (1 − 1 / n) x²).

It takes no traffic and has no state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def lengthen_steps(optimizer: Any, workers: int) -> None:
    """Extend the update that AdamW has just made; weights with another update rule stay as they are."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state.get(p, {})
            if {"exp_avg", "exp_avg_sq", "step"} <= state.keys():
                missing = lengthened(taken := _update(state, group), workers).sub_(taken)
                p.sub_(missing.mul_(group["lr"] * (1 - optimizer.found_inf)))


def lengthened(x: Tensor, workers: int) -> Tensor:
    """The update with the second moments of `workers` shares, from the update `x` with those of one."""
    return x * (x.square().mul_(1 - 1 / workers).add_(1 / workers)).rsqrt_()


def _update(state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
    """The update that AdamW made at rate 1, without decay; any number if it has made none."""
    count, (beta1, beta2) = state["step"].clamp(min=1), group["betas"]
    divisor: Tensor = (state["exp_avg_sq"] / (1 - beta2**count)).sqrt_().add_(group["eps"])
    update: Tensor = state["exp_avg"] / (1 - beta1**count) / divisor
    return update
