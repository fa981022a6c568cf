"""What is measured: anything that can take a step at a batch size."""

from __future__ import annotations

from typing import Protocol


class Workload(Protocol):
    """Every method returns when the device is done."""

    def accumulate(self, batch: int) -> None:
        """One forward and backward pass over `batch` rows."""
        ...

    def update(self) -> None:
        """The optimizer step that follows the passes."""
        ...

    def validate(self, batch: int) -> None:
        """One scoring pass over `batch` rows."""
        ...

    def checkpoint(self) -> int:
        """Save everything once; returns the bytes written."""
        ...

    def reset_peak(self) -> None:
        """Forget the memory peak so far."""
        ...

    def peak_bytes(self) -> int | None:
        """The memory peak since `reset_peak`; None where the system does not tell."""
        ...
