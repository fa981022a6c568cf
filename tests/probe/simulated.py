"""A device that is made up: tensors of known sizes in an allocator that rounds as torch's does, and a hard limit."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoestring.probe.trials import Trial, Usage

MB = 1 << 20
GB = 1 << 30


@dataclass
class Device:
    """`kinds` are the bytes a row takes in each kind of tensor, of which `layers` are alive at once."""

    limit: int
    fixed: int
    kinds: tuple[int, ...]
    layers: int = 1
    workspace: int = 0
    """Bytes of a tensor that grows with the rows up to this size, and no further."""
    surprise: tuple[int, int] = (1 << 60, 0)
    """From so many rows on, so many bytes more: not a line any more."""
    context: int = 0
    seconds_per_row: float = 0.0
    tried: list[int] = field(default_factory=list)

    def tensors(self, batch: int) -> list[tuple[int, int]]:
        """(bytes, how many) of the tensors of a pass."""
        found = [(kind * batch, self.layers) for kind in self.kinds]
        if self.workspace:
            found.append((min(self.workspace, 64 * MB * batch), 1))
        if batch >= self.surprise[0]:
            found.append((self.surprise[1], 1))
        return found

    def usage(self, batch: int) -> Usage:
        pass_ = self.tensors(batch)
        asked = self.fixed + sum(_up(size, 512) * count for size, count in pass_)
        reserved = _up(self.fixed, 2 * MB) + sum(segments(_up(size, 512), count) for size, count in pass_)
        blocks = sum(count for size, count in pass_ if size > MB) + 1
        return Usage(asked=asked, reserved=reserved, outside=self.context, rest=self.fixed, blocks=blocks)

    def fits(self, batch: int) -> bool:
        return self.usage(batch).held <= self.limit

    def trial(self, batch: int, *_how: bool) -> Trial:
        self.tried.append(batch)
        if not self.fits(batch):
            raise MemoryError
        seconds = self.seconds_per_row * batch
        return Trial(batch, (seconds / 3,) * 2, seconds, 0.0, 0.0, self.usage(batch))

    def largest(self) -> int:
        """By trying them all: doubling, then every batch from where it may begin to fail."""
        high = 1
        while self.fits(high):
            high *= 2
        best = high // 2
        low, top = best, high
        while top - low > 1:  # a tensor above 10 MB is rounded by 2 MB alone, so that from there on bytes only grow
            middle = (low + top) // 2
            low, top = (middle, top) if self.fits(middle) else (low, middle)
        return low


def segments(size: int, count: int) -> int:
    """Bytes that the allocator takes for so many tensors of a size: 2 MB, 20 MB, or its own in steps of 2 MB."""
    if size == 0:
        return 0
    if size <= MB:
        return -(-count // (2 * MB // size)) * 2 * MB
    if size < 10 * MB:
        return -(-count // (20 * MB // size)) * 20 * MB
    return count * _up(size, 2 * MB)


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
