"""What passes and updates come to: their losses on the device, and what happens where memory does not suffice."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from shoestring.core.errors import Fault


class Tally(NamedTuple):
    """The loss of some rows, on the device, not divided yet."""

    nats: Tensor
    predictions: int
    fitted: bool = True
    """Whether the memory sufficed; if not, there is no gradient."""


class Update(NamedTuple):
    """The result of a step, on the device, over all processes."""

    nats: Tensor
    predictions: Tensor
    norm: Tensor
    """Of the gradient, before clipping."""
    unfitted: Tensor
    """Processes that ran out of memory; if there are any, the update was not made."""
    skipped: Tensor
    """1 if the gradient overflowed in fp16, and the update was not made."""
    others: Tensor
    """The sums of the other numbers."""


class OutOfMemory(Fault):
    """A sharded model ran out of memory, and its processes must start again."""

    def __init__(self, rows: int, scored: bool = False):
        self.half, self.scored = half(rows), scored
        use = "scoring" if scored else "training"
        super().__init__(
            f"{use} with a micro-batch of {rows} does not fit the memory; the same command continues with {self.half}"
        )


def half(rows: int) -> int:
    """Half of a micro-batch, rounded up; raises a Fault if it has only one row."""
    if rows == 1:
        raise Fault("a single row does not fit the memory; take a smaller model or data.length")
    return -(-rows // 2)
