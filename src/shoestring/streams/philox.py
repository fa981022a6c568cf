"""Philox4x32-10 (Salmon and others, 2011): random words as a pure function of a 64-bit key and a 128-bit counter.

The counter is (number of the row or shuffle, number of the call, purpose). Nothing is drawn in sequence, so any part of
a stream can be made alone. Words are int64 tensors below 2³², because torch has no unsigned products.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

from shoestring.core.errors import DataError

MASK = 0xFFFFFFFF
ROUND_A, ROUND_B = 0xD2511F53, 0xCD9E8D57
KEY_A, KEY_B = 0x9E3779B9, 0xBB67AE85


class Purpose(IntEnum):
    """The last word of the counter. It is part of the format: a number never gets a new meaning (2 and 4 had one)."""

    TOKENS = 0
    SYMBOLS_SHUFFLE = 1
    STATES_SHUFFLE = 3
    SYMBOLS_PICK = 5
    STATES_PICK = 6
    CHAIN_SHAPE = 7
    CHAIN_ROWS = 8
    CHAIN_START = 9
    SYMBOLS_OWN = 10
    STATES_OWN = 11


def philox(key: int, number: Tensor, call: Tensor | int, purpose: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words for every `number` (int64, not negative) and `call` (below 2³²), which broadcast."""
    number, calls = torch.broadcast_tensors(number, torch.as_tensor(call, device=number.device))
    c0, c1, c2, c3 = number & MASK, number >> 32 & MASK, calls, torch.full_like(number, purpose)
    k0, k1 = key & MASK, key >> 32
    for _ in range(10):
        low, high = c0 * ROUND_A, c2 * ROUND_B  # wrap around at 2⁶⁴, which keeps every bit
        c0, c1, c2, c3 = (high >> 32 & MASK) ^ c1 ^ k0, high & MASK, (low >> 32 & MASK) ^ c3 ^ k1, low & MASK
        k0, k1 = k0 + KEY_A & MASK, k1 + KEY_B & MASK
    return c0, c1, c2, c3


def words(key: int, number: Tensor, count: int, purpose: int, first: int = 0) -> Tensor:
    """Words first to first + count of every number in a vector, (n, count); `first` is a multiple of 4.

    Word w is output w mod 4 of call w div 4.
    """
    calls = torch.arange(first // 4, -(-(first + count) // 4), device=number.device)
    return torch.stack(philox(key, number[:, None], calls[None], purpose), dim=2).flatten(1)[:, :count]


def below(word: Tensor, bound: Tensor | int) -> Tensor:
    """A word as a number below `bound` (at most 2³¹); each has probability 1/bound within 2⁻³²."""
    return word * bound >> 32


def check_numbers(first: int, count: int) -> None:
    """Raise DataError unless the rows have numbers from 0 to 2⁶³ - 1."""
    if first < 0 or count < 0:
        raise DataError(f"rows {first:,} to {first + count:,}: row numbers cannot be negative")
    if first + count > 1 << 63:
        raise DataError(f"rows up to {first + count:,}: a stream has 2^63 = {1 << 63:,}")
