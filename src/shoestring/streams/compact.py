"""Alias tables in half the bytes, for a GPU, whose caches are small beside its many threads."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoestring.streams.plain import Tables


class Compact(NamedTuple):
    """Entries of four bytes, of which twice as many stay in a cache, with what they leave out in a table beside them.

    A head holds the alias in its lowest `bits` bits, and above them those of the threshold. Where a word falls neither
    below nor above these, which is rare, the threshold's own lowest bits in `tails` decide.
    """

    heads: Tensor
    """(R, K) int32."""
    tails: Tensor
    """(R, K) uint16."""
    bits: int

    @classmethod
    def of(cls, entries: Tensor) -> Compact:
        bits = max(1, (entries.shape[1] - 1).bit_length())
        low = (1 << bits) - 1
        threshold = entries >> 32 & 0xFFFFFFFF
        return cls((threshold & ~low | entries & 0xFFFF).to(torch.int32), (threshold & low).to(torch.uint16), bits)


class CompactTables(NamedTuple):
    """`plain.Tables` in compact form."""

    moves: Compact
    emits: Compact

    @classmethod
    def of(cls, tables: Tables, device: torch.device) -> CompactTables:
        return cls(*(Compact.of(entries.to(device)) for entries in tables))

    @property
    def states(self) -> int:
        return self.emits.heads.shape[0]

    @property
    def symbols(self) -> int:
        return self.emits.heads.shape[1]
