"""Muon with updates that the device can refuse, so that the host need not wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim._muon import _adjust_lr

from shoestring.core.sections import number
from shoestring.core.train_section import Train
from shoestring.models.layers.operators import HAS_TRITON
from shoestring.training.optimizers.adamw import adamw_of, fits, uncompiled
from shoestring.training.sharding import own_part, whole_of

if TYPE_CHECKING:
    from shoestring.training.optimizer import Weights

WIDE = 1.5
"""Columns for each row from which on products are saved by iterating on square matrices."""
AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 24}
"""Elements of the matrices that are updated at once, by type of device: small ones do not fill a GPU and take as many
launches, and on a CPU each operation takes microseconds to begin. There they should fit a cache."""

Quintics = tuple[tuple[float, float, float], ...]
"""Coefficients of x, x³ and x⁵ of each iteration, for every singular value x."""
SAFETY = 1.01
"""By which singular values are divided before each iteration of Polar Express, as rounding may raise them."""
POLAR_EXPRESS: Quintics = tuple(
    (a / SAFETY, b / SAFETY**3, c / SAFETY**5)
    for a, b, c in (
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    )
)
"""Quintics that bring singular values of 0.001 to 1 nearest to 1 (Amsel et al. 2025): to 0.84 to 1.13, and from 0.003
on to 0.87 to 1.13. Five steps of Newton–Schulz bring them to 0.47 to 1.21, and 0.68 to 1.21."""
NEURON_BETA = 0.95
"""Decay of the mean square of a neuron's updates (Li et al. 2025, NorMuon)."""
FIRST_MOMENTUM = 0.85
"""Before a warm-up of the momentum."""
TINY = 1e-20


class Muon(torch.optim.Muon):
    """Gradients are divided by `grad_scale`, and nothing changes if `found_inf` is not 0; both are on the device.

    The state is that of torch's Muon, with Nesterov's momentum, and of the parts that are on. A matrix and its
    transpose have the same rate, as "match_rms_adamw" gives them. Rows of a matrix are its output neurons.
    """

    add_param_group = uncompiled(torch.optim.Muon.add_param_group)
    grad_scale: Tensor
    found_inf: Tensor

    def __init__(
        self,
        params: Any,
        *,
        polar_express: bool = False,
        normalize_neurons: bool = False,
        cautious_decay: bool = False,
        momentum_warmup: int = 0,
        **options: Any,
    ):
        """`options` are torch's; the others are the fields of `[train]`."""
        super().__init__(params, **options)
        self.polar_express, self.normalize_neurons = polar_express, normalize_neurons
        self.cautious_decay, self.momentum_warmup = cautious_decay, momentum_warmup
        self._tables: dict[int, tuple[list[int], Tensor]] = {}
        """By the Python id of the first of some matrices: the addresses of what a launch processes."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            for matrices in self._batches([p for p in group["params"] if p.grad is not None]):
                self._update(matrices, group)

    def _batches(self, matrices: list[Tensor]) -> list[list[Tensor]]:
        return _batches(matrices)

    def _update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        table = self._table(matrices)
        if table is not None:
            self._update_in_two(matrices, group, table)
            return
        lr, refused = group["lr"], self.found_inf > 0
        momentum, turn = self._momentum(matrices, group["momentum"]), self._turn
        places, means = [turn(p) for p in matrices], [turn(mean) for mean in self._of(matrices, "momentum_buffer")]
        weights, mean = _stacked(places), _stacked(means)
        gradient = _stacked([turn(p.grad) for p in matrices if p.grad is not None]) / self.grad_scale
        moved = mean.lerp(gradient, 1 - momentum)
        update = self._direction(gradient.lerp(moved, momentum), matrices, group, refused)
        adjusted = _adjust_lr(lr, group["adjust_lr_fn"], self._shape(matrices[0]))
        decay = lr * group["weight_decay"]
        updated = weights * (1 - (decay * (update * weights > 0) if self.cautious_decay else decay))
        if isinstance(lr, Tensor):
            updated.addcmul_(update.float(), adjusted, value=-1)
        else:
            updated.add_(update, alpha=-adjusted)
        torch._foreach_copy_(means, torch.where(refused, mean, moved).unbind())
        torch._foreach_copy_(places, torch.where(refused, weights, updated).unbind())

    def _update_in_two(self, matrices: list[Tensor], group: dict[str, Any], table: Tensor) -> None:
        """The same, with two launches beside the products."""
        from shoestring.training.optimizers import muon_kernel as kernel

        (rows, columns), count, device = matrices[0].shape, len(matrices), matrices[0].device
        size, refused = rows * columns, self.found_inf
        pieces = -(-size // kernel.PIECE)
        momentum = self._momentum(matrices, group["momentum"])
        momenta = (
            momentum.reshape(-1) if isinstance(momentum, Tensor) else torch.full((count,), momentum, device=device)
        )
        updates = torch.empty(count, rows, columns, device=device, dtype=_product_type(device))
        squares = torch.empty(count, pieces, device=device)
        room = SAFETY if self.polar_express else 1.0
        with torch.cuda.device_of(table):
            kernel.gather_kernel[(pieces, count)](
                table, count, size, self.grad_scale, refused, momenta, updates, squares, PIECE=kernel.PIECE,
                num_warps=kernel.WARPS,
            )  # fmt: skip
            updates.div_((room * squares.sum(1).sqrt()).clamp(min=group["eps"]).view(-1, 1, 1))
            quintics = POLAR_EXPRESS if self.polar_express else (group["ns_coefficients"],) * group["ns_steps"]
            updates = iterated(updates, quintics)
            factors = self._row_factors(updates, matrices, refused > 0) if self.normalize_neurons else squares
            lr = torch.as_tensor(group["lr"], dtype=torch.float32, device=device)
            rate = lr * _adjust_lr(1.0, group["adjust_lr_fn"], matrices[0].shape)
            kernel.apply_kernel[(pieces, count)](
                table, count, size, columns, rate, lr * group["weight_decay"], refused, updates, factors, rows,
                PIECE=kernel.PIECE, SCALED=self.normalize_neurons, CAUTIOUS=self.cautious_decay,
                num_warps=kernel.WARPS,
            )  # fmt: skip

    def _table(self, matrices: list[Tensor]) -> Tensor | None:
        """The addresses of weights, gradients and means, on the device; None if the kernels cannot process them.

        They change when a state is restored, and with gradients that are not recorded.
        """
        if not _has_kernels(matrices[0]) or type(self) is not Muon:
            return None
        gradients = [p.grad for p in matrices if p.grad is not None]
        tensors = [*matrices, *gradients, *self._of(matrices, "momentum_buffer")]
        addresses, key = [tensor.data_ptr() for tensor in tensors], id(matrices[0])
        if key not in self._tables or self._tables[key][0] != addresses:
            if not all(fits(tensor) for tensor in tensors):
                return None
            found, device = torch.tensor(addresses), matrices[0].device
            found = (found.pin_memory() if device.type == "cuda" else found).to(device, non_blocking=True)
            self._tables[key] = addresses, found
        return self._tables[key][1]

    def _row_factors(self, update: Tensor, matrices: list[Tensor], refused: Tensor) -> Tensor:
        """By what the rows of the updates are multiplied to be normalised, (count, rows); moves their mean squares."""
        kept = self._of(matrices, "neuron_square")
        before, sums = torch.stack(kept), torch.linalg.vector_norm(update, dim=-1, dtype=torch.float32).square()
        squares = before.lerp(sums / update.shape[-1], 1 - NEURON_BETA)
        torch._foreach_copy_(kept, torch.where(refused, before, squares).unbind())
        roots = squares.sqrt() + TINY
        whole, now = (each.sum(-1, keepdim=True).sqrt() for each in (sums, sums / roots.square()))
        factors: Tensor = whole / (now + TINY) / roots
        return factors

    def _turn(self, matrix: Tensor) -> Tensor:
        """A matrix as it is updated."""
        return _wide(matrix)

    def _shape(self, p: Tensor) -> torch.Size:
        return p.shape

    def _direction(self, wanted: Tensor, matrices: list[Tensor], group: dict[str, Any], refused: Tensor) -> Tensor:
        """The updates of unit size for gradients with momentum, (count, rows, columns), wide."""
        quintics = POLAR_EXPRESS if self.polar_express else (group["ns_coefficients"],) * group["ns_steps"]
        update = orthogonalized(wanted, quintics, group["eps"], SAFETY if self.polar_express else 1.0)
        return self._normalized(update, matrices, refused) if self.normalize_neurons else update

    def _momentum(self, matrices: list[Tensor], full: float) -> float | Tensor:
        """The momentum of this update, (count, 1, 1) during and after a warm-up, which counts updates in the state."""
        if not self.momentum_warmup:
            return full
        kept = self._of(matrices, "step")
        counts = torch.stack(kept)
        torch._foreach_copy_(kept, (counts + (1 - self.found_inf)).unbind())  # adding a tensor to each would wait
        share = (counts / self.momentum_warmup).clamp(max=1.0).view(-1, 1, 1)
        return FIRST_MOMENTUM + (full - FIRST_MOMENTUM) * share

    def _normalized(self, update: Tensor, matrices: list[Tensor], refused: Tensor) -> Tensor:
        """The updates with the rows of each divided by their running root mean squares, at the norm that each had."""
        rows, columns = self._shape(matrices[0])
        across = -2 if rows > columns else -1
        kept = self._of(matrices, "neuron_square")
        before, update = torch.stack(kept), update.float()
        squares = before.lerp(update.square().mean(across), 1 - NEURON_BETA)
        torch._foreach_copy_(kept, torch.where(refused, before, squares).unbind())
        scaled = update / (squares.sqrt().unsqueeze(across) + TINY)
        whole, now = (torch.linalg.matrix_norm(each, keepdim=True) for each in (update, scaled))
        return scaled.mul_(whole / (now + TINY))

    def prepare(self) -> None:
        """Allocate missing state."""
        keys = ["momentum_buffer"] + ["neuron_square"] * self.normalize_neurons + ["step"] * bool(self.momentum_warmup)
        for group in self.param_groups:
            for key in keys:
                self._of(group["params"], key)

    def restored(self) -> None:
        """A run that began without squares of neurons, in an older version, continues without them."""
        if any("momentum_buffer" in kept and "neuron_square" not in kept for kept in self.state.values()):
            self.normalize_neurons = False

    def _of(self, matrices: list[Tensor], key: str) -> list[Tensor]:
        """A part of the state of each, which is 0 at first."""
        for p in matrices:
            if key not in self.state[p]:
                shape = {"momentum_buffer": p.shape, "neuron_square": self._shape(p)[:1], "step": ()}[key]
                self.state[p][key] = torch.zeros(shape, dtype=p.dtype, device=p.device)
        return [self.state[p][key] for p in matrices]


class ShardedMuon(Muon):
    """Muon of matrices of which this process has some rows.

    The gradients with momentum are gathered, and every process makes the whole update of each matrix, one after the
    other. Squares of neurons are whole in every process.
    """

    def __init__(self, params: list[Tensor], wholes: Mapping[int, Tensor], **options: Any):
        """`wholes` are the sharded parameters, by the Python ids of their parts in this process."""
        super().__init__(params, **options)
        self._wholes = wholes

    def _batches(self, matrices: list[Tensor]) -> list[list[Tensor]]:
        return [[p] for p in matrices]

    def _turn(self, matrix: Tensor) -> Tensor:
        return matrix

    def _shape(self, p: Tensor) -> torch.Size:
        return self._wholes[id(p)].shape

    def _direction(self, wanted: Tensor, matrices: list[Tensor], group: dict[str, Any], refused: Tensor) -> Tensor:
        like = self._wholes[id(matrices[0])]
        whole = whole_of(wanted[0], like)
        found = super()._direction(_wide(whole).unsqueeze(0), matrices, group, refused)[0]
        return own_part(found.T if whole.size(0) > whole.size(1) else found, like).unsqueeze(0)


def _wide(matrix: Tensor) -> Tensor:
    """The matrix, or its transpose, with no more rows than columns."""
    return matrix.T if matrix.size(0) > matrix.size(1) else matrix


def _batches(matrices: list[Tensor]) -> list[list[Tensor]]:
    """Matrices of one shape, which are updated at once."""
    alike: dict[torch.Size, list[Tensor]] = {}
    for p in matrices:
        alike.setdefault(p.shape, []).append(p)
    found = []
    for shape, same in alike.items():
        count = max(1, AT_ONCE.get(same[0].device.type, 0) // shape.numel())
        found += [same[first : first + count] for first in range(0, len(same), count)]
    return found


def _stacked(matrices: list[Tensor]) -> Tensor:
    return torch.stack(matrices) if len(matrices) > 1 else matrices[0].unsqueeze(0)


def _has_kernels(matrix: Tensor) -> bool:
    return HAS_TRITON and matrix.is_cuda


def _product_type(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def iterated(matrices: Tensor, quintics: Quintics) -> Tensor:
    """Matrices, (count, rows, columns), after one iteration for each quintic, by products of their shorter sides."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    for a, b, c in quintics:
        gram = matrices.mT @ matrices if tall else matrices @ matrices.mT
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        one, two = (matrices, factor) if tall else (factor, matrices)
        matrices = torch.baddbmm(matrices, one, two, beta=a)
    return matrices


def orthogonalized(matrices: Tensor, quintics: Quintics, eps: float, room: float = 1.0) -> Tensor:
    """Wide matrices, (count, rows, columns), with singular values near 1: one iteration for each quintic. They begin
    with singular values of at most 1 / `room`.

    In bf16 on a GPU, as torch's Muon does; on a CPU in the precision of `matrices`. A CPU without bf16 emulates it,
    which takes 2 to 20 times as long as fp32, and the first such product may switch oneDNN off for the rest of the
    process: products of a run that resumes would differ in their last bits from those of one that did not stop.
    """
    found = matrices.to(matrices.dtype if matrices.device.type == "cpu" else torch.bfloat16, copy=True)
    found.div_((room * found.norm(dim=(-2, -1), keepdim=True)).clamp(min=eps))
    rows, columns = found.shape[-2:]
    if found.dtype != torch.bfloat16 and columns >= WIDE * rows:
        return _polynomial(found @ found.mT, quintics) @ found
    for a, b, c in quintics:
        gram = found @ found.mT
        found = torch.baddbmm(found, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found


def _polynomial(gram: Tensor, quintics: Quintics) -> Tensor:
    """What wide matrices are multiplied by, from their products with their transposes: all iterations in one, on square
    matrices alone. Not in bf16, which is too coarse for the squares of small singular values."""
    product: Tensor | None = None
    for done, (a, b, c) in enumerate(quintics, start=1):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=-2, dim2=-1).add_(a)
        product = factor if product is None else factor @ product
        if done < len(quintics):
            gram = factor @ gram @ factor
    assert product is not None, "there is an iteration"
    return product


def make_muon(weights: Weights, settings: Train) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for all other weights."""
    found: list[torch.optim.Optimizer] = []
    if weights.plain or weights.decayed:  # adapters are all matrices
        found.append(adamw_of(weights.plain, weights.decayed, settings))
    if weights.matrices:
        options: dict[str, Any] = {
            "lr": 0.0,
            "weight_decay": number(settings.weight_decay),
            "adjust_lr_fn": "match_rms_adamw",
            "polar_express": bool(settings.polar_express),
            "normalize_neurons": settings.normalizes,
            "cautious_decay": bool(settings.cautious_decay),
            "momentum_warmup": settings.momentum_warmup or 0,
        }
        if weights.wholes:
            found.append(ShardedMuon(weights.matrices, weights.wholes, **options))
        else:
            found.append(Muon(weights.matrices, **options))
    return found
