"""Named seeds: every random choice has a name, and its numbers depend on the run's seed and that name alone."""

from __future__ import annotations

import hashlib


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the purpose that `names` describe, as in derive(0, "order", epoch)."""
    text = "\x1f".join([str(seed), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
