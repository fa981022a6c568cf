"""AdamW of a worker that sees one n-th of a batch, with the second moments of the whole batch.

AdamW moves a weight by −lr m / (√v + ε). Where the gradient of a worker is a signal s with noise σ, v is about s² + σ².
For the mean gradient of n workers it would be s² + σ² / n. So a worker that divides by its own √v takes too short a
step: by a factor of √n where noise prevails, as it does late in training.

The two halves of a worker's rows tell its noise. The halves have gradients a and b, means over p and q predictions, and
the gradient is (p a + q b) / (p + q). The squares of

    δ = (a − b) √(p q) / (p + q)

are σ² in the mean, whatever s is. Their running mean d decays as v does, and the step is taken with

    max(v / n, v − (1 − 1 / n) d).

A share of one row has no halves. There m² takes the place of s²: v / n + (1 − 1 / n) m². That overlooks signals that
change sign from step to step, as in steep directions, and lengthens steps that must not be longer.

It takes no traffic, and a copy of the gradient and one more moment for each weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

NOISE = "noise_sq"
"""Key of d in the state of AdamW."""


class Half:
    """The gradient of the first half of a worker's rows, summed over its predictions, in tensors that stay in place."""

    def __init__(self, gradients: list[Tensor], predictions: int = 0, others: int = 0):
        self.gradients = [gradient.clone() for gradient in gradients]
        self.predictions, self.others = predictions, others
        self._counts = torch.tensor([predictions, others], dtype=torch.float64, device=gradients[0].device)

    @torch.no_grad()
    def keep(self, gradients: list[Tensor], predictions: int, others: int) -> None:
        """Copy the gradients; the second half has `others` predictions."""
        torch._foreach_copy_(self.gradients, gradients)
        self.predictions, self.others = predictions, others
        self._counts[0].fill_(predictions)
        self._counts[1].fill_(others)

    @torch.no_grad()
    def differences(self, gradients: list[Tensor], divisor: Tensor) -> list[Tensor]:
        """δ of all weights, in place of the gradients of this half; 0 where one half predicts nothing.

        `gradients` are the sums over all rows, and `divisor` makes them the means that are applied.
        """
        p, q, found = self.predictions, self.others, self.gradients
        if p and q:
            torch._foreach_mul_(found, (p + q) / math.sqrt(p * q))
            torch._foreach_add_(found, gradients, alpha=-math.sqrt(p / q))
            torch._foreach_div_(found, divisor)
        else:
            torch._foreach_zero_(found)
        return found

    def factors(self, divisor: Tensor) -> Tensor:
        """Two numbers on the device: δ is the first times the gradient of this half, less the second times that of all
        rows."""
        p, q = self._counts
        both = torch.stack([(p + q) / (p * q).sqrt(), (p / q).sqrt()])
        return (torch.where(p * q > 0, both, 0.0) / divisor).float()


class Share:
    """What AdamW of a worker knows of the whole batch in one step."""

    def __init__(self, workers: int, half: Half | None, names: list[int], gradients: list[Tensor], divisor: Tensor):
        """`names` are the Python ids of the weights, in the order of `gradients`; no half: the share is one row."""
        self.workers, self._half, self._names = workers, half, names
        self._gradients, self._divisor = gradients, divisor

    @property
    def halves(self) -> dict[int, Tensor] | None:
        """The gradients of the first half, or what took their place."""
        return None if self._half is None else dict(zip(self._names, self._half.gradients, strict=True))

    def factors(self) -> Tensor:
        """Of `halves`, and of the gradients of all rows, in δ."""
        assert self._half is not None, "the share has halves"
        if "differences" in self.__dict__:
            return torch.tensor([1.0, 0.0]).to(self._divisor.device)
        return self._half.factors(self._divisor)

    @cached_property
    def differences(self) -> dict[int, Tensor] | None:
        """δ of all weights, in place of the gradients of the first half."""
        if self._half is None:
            return None
        return dict(zip(self._names, self._half.differences(self._gradients, self._divisor), strict=True))


@torch.no_grad()
def lengthen_steps(optimizer: Any, workers: int, differences: Mapping[int, Tensor] | None = None) -> None:
    """Extend the update that AdamW has just made; weights with another update rule stay as they are.

    `differences` are δ by the Python ids of the weights; None: there are no halves.
    """
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state.get(p, {})
            if {"exp_avg", "exp_avg_sq", "step"} <= state.keys():
                m, v = _moments(state, group)
                if differences is None:
                    of_batch = v / workers + (1 - 1 / workers) * m.square()
                else:
                    d = _noise(state, group, differences[id(p)], optimizer.found_inf)
                    of_batch = torch.maximum(v / workers, v - (1 - 1 / workers) * d)
                missing = m / of_batch.sqrt_().add_(group["eps"]) - m / v.sqrt_().add_(group["eps"])
                p.sub_(missing.mul_(group["lr"] * (1 - optimizer.found_inf)))


def _moments(state: dict[str, Tensor], group: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """m and v without their bias; any numbers if no update was made."""
    count, (beta1, beta2) = state["step"].clamp(min=1), group["betas"]
    return state["exp_avg"] / (1 - beta1**count), state["exp_avg_sq"] / (1 - beta2**count)


def _noise(state: dict[str, Tensor], group: dict[str, Any], difference: Tensor, found_inf: Tensor) -> Tensor:
    """d without its bias, after this step; unchanged by a step that was not taken."""
    beta2 = group["betas"][1]
    if NOISE not in state:
        state[NOISE] = torch.zeros_like(difference)
    kept = state[NOISE]
    kept.copy_(torch.where(found_inf > 0, kept, kept * beta2 + difference.square() * (1 - beta2)))
    unbiased: Tensor = kept / (1 - beta2 ** state["step"].clamp(min=1))
    return unbiased
