"""Muon with updates that the device can refuse, so that the host need not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim._muon import _adjust_lr

from shoestring.core.sections import Train, number
from shoestring.training.optimizers.adamw import adamw_of, uncompiled

if TYPE_CHECKING:
    from shoestring.training.optimizer import Weights

AT_ONCE = 1 << 22
"""Elements of the matrices that a GPU updates at once: small ones do not fill it, and would take as many launches."""


class Muon(torch.optim.Muon):
    """Gradients are divided by `grad_scale`, and nothing changes if `found_inf` is not 0; both are on the device.

    The state is that of torch's Muon, with Nesterov's momentum. A matrix and its transpose have the same rate, as
    "match_rms_adamw" gives them.
    """

    add_param_group = uncompiled(torch.optim.Muon.add_param_group)
    grad_scale: Tensor
    found_inf: Tensor

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            for matrices in _batches([p for p in group["params"] if p.grad is not None]):
                self._update(matrices, group)

    def _update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        lr, momentum, refused = group["lr"], group["momentum"], self.found_inf > 0
        places, means = [_wide(p) for p in matrices], [_wide(self._mean(p)) for p in matrices]
        weights, mean = _stacked(places), _stacked(means)
        gradient = _stacked([_wide(p.grad) for p in matrices if p.grad is not None]) / self.grad_scale
        moved = mean.lerp(gradient, 1 - momentum)
        wanted = gradient.lerp(moved, momentum)
        update = newton_schulz(wanted, group["ns_coefficients"], group["ns_steps"], group["eps"])
        adjusted = _adjust_lr(lr, group["adjust_lr_fn"], matrices[0].shape)
        updated = weights * (1 - lr * group["weight_decay"])
        if isinstance(lr, Tensor):
            updated.addcmul_(update.float(), adjusted, value=-1)
        else:
            updated.add_(update, alpha=-adjusted)
        torch._foreach_copy_(means, torch.where(refused, mean, moved).unbind())
        torch._foreach_copy_(places, torch.where(refused, weights, updated).unbind())

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


def _wide(matrix: Tensor) -> Tensor:
    """The matrix, or its transpose, with no more rows than columns."""
    return matrix.T if matrix.size(0) > matrix.size(1) else matrix


def _batches(matrices: list[Tensor]) -> list[list[Tensor]]:
    """Matrices of one shape up to transposition, which are updated at once; on a CPU each for itself."""
    alike: dict[torch.Size, list[Tensor]] = {}
    for p in matrices:
        alike.setdefault(_wide(p).shape, []).append(p)
    found = []
    for shape, same in alike.items():
        count = 1 if same[0].device.type == "cpu" else max(1, AT_ONCE // shape.numel())
        found += [same[first : first + count] for first in range(0, len(same), count)]
    return found


def _stacked(matrices: list[Tensor]) -> Tensor:
    return torch.stack(matrices) if len(matrices) > 1 else matrices[0].unsqueeze(0)


def newton_schulz(matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Steps of the Newton–Schulz iteration from wide matrices, (count, rows, columns), towards the nearest orthogonal
    ones.

    In bf16 on a GPU, as torch's Muon does; on a CPU in the precision of `matrices`. A CPU without bf16 emulates it,
    which takes 2 to 20 times as long as fp32, and the first such product may switch oneDNN off for the rest of the
    process: products of a run that resumes would differ in their last bits from those of one that did not stop.
    """
    a, b, c = coefficients
    found = matrices.to(matrices.dtype if matrices.device.type == "cpu" else torch.bfloat16, copy=True)
    found.div_(found.norm(dim=(-2, -1), keepdim=True).clamp(min=eps))  # the spectral norm is at most 1
    for _ in range(steps):
        gram = found @ found.mT
        found = torch.baddbmm(found, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found


def make_muon(weights: Weights, settings: Train) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for all other weights."""
    found: list[torch.optim.Optimizer] = []
    if weights.plain or weights.decayed:  # adapters are all matrices
        found.append(adamw_of(weights.plain, weights.decayed, settings))
    if weights.matrices:
        decay = number(settings.weight_decay)
        found.append(Muon(weights.matrices, lr=0.0, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    return found
