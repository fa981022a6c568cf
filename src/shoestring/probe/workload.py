"""What is measured: anything that can take a step at a batch size, and what a step was seen to take."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Usage(NamedTuple):
    """Memory in bytes, on top of what was in use before the workload was built."""

    asked: int
    """The peak of what tensors took: a straight line in the batch."""
    reserved: int
    """The peak of what the allocator held for them: `asked`, rounded up and with holes."""
    outside: int
    """What the device's driver and libraries took beside the allocator."""
    rest: int
    """Between steps: weights, optimizer state, what is kept for the next pass."""
    blocks: int = 0
    """Tensors that were alive at once and have a piece of memory of their own, each of them rounded up."""
    squeezed: bool = False
    """Whether the allocator had to give back what it kept before it could go on."""

    @property
    def held(self) -> int:
        """What the device has to have free."""
        return self.reserved + self.outside


def nothing() -> None:
    """Is done beside."""


class Workload(Protocol):
    """Every method returns when the device is done; what does not fit raises MemoryError."""

    compiled: bool
    """Whether a batch of a new size is compiled first, and passes may be recorded."""

    def accumulate(self, batch: int) -> None:
        """One forward and backward pass over `batch` rows."""
        ...

    def rehearse(self, batch: int) -> bool:
        """Where passes are recorded: record those over `batch` rows, which were passed over once, and run none.

        Returns whether they could be.
        """
        ...

    def update(self) -> None:
        """The optimizer step that follows the passes."""
        ...

    def validate(self, batch: int) -> None:
        """One scoring pass over `batch` rows."""
        ...

    def forget(self) -> None:
        """Drop what is kept for the next training pass: gradients and recordings."""
        ...

    def steps(self, batch: int, count: int, passes: int = 1) -> None:
        """So many steps, each some passes and an update, one after the other as a run takes them: waited for once."""
        ...

    def checkpoint(self, beside: Callable[[], object] = nothing) -> int:
        """Save everything once, as a run does, with `beside` where that goes on; returns the bytes written."""
        ...

    def reset_peak(self) -> None:
        """Forget the memory peak so far."""
        ...

    def usage(self) -> Usage | None:
        """Since `reset_peak`; None where the system does not tell."""
        ...
