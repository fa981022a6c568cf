"""Means in 8 and 4 bits against loops over single numbers."""

from __future__ import annotations

import math

import pytest
import torch
from processes import together
from torch import Tensor

from shoestring.parallel.process_group import ProcessGroup
from shoestring.parallel.quantised import BLOCK, mean_of, pack, packed_bytes, unpack


def rounded(values: list[float], bits: int) -> list[float]:
    """The nearest of 2 · most + 1 equal steps, block by block, in float64."""
    most, found = 2 ** (bits - 1) - 1, []
    for first in range(0, len(values), BLOCK):
        block = values[first : first + BLOCK]
        scale = max(map(abs, block))
        found += [round(value / scale * most) / most * scale if scale else 0.0 for value in block]
    return found


def numbers(seed: int, count: int) -> Tensor:
    drawn = torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (seed % 3)
    drawn[: count // 4] = 0.0  # whole blocks of zeros
    return drawn


@pytest.mark.parametrize("bits", [8, 4])
def test_numbers_are_rounded_to_the_nearest_step_of_their_block(bits: int) -> None:
    values = numbers(1, 8 * BLOCK)
    packed = pack(values, bits)
    assert packed.dtype == torch.uint8
    assert packed.numel() == packed_bytes(values.numel(), bits) == 8 * (BLOCK * bits // 8 + 4)
    found = unpack(packed, values.numel(), bits)
    torch.testing.assert_close(found, torch.tensor(rounded(values.tolist(), bits)), rtol=1e-5, atol=1e-7)


COUNT = 5 * BLOCK + 17


def means(group: ProcessGroup) -> list[tuple[Tensor, int]]:
    return [mean_of(numbers(group.rank, COUNT), group, bits) for bits in (8, 4)]


def test_the_mean_is_rounded_twice_and_the_same_everywhere() -> None:
    first, second = together(means, 2)
    chunk = math.ceil(COUNT / (2 * BLOCK)) * BLOCK
    for bits, (mean, size), (other, _) in zip((8, 4), first, second, strict=True):
        assert mean.equal(other)
        assert size == packed_bytes(2 * chunk, bits)
        padded = [numbers(rank, COUNT).tolist() + [0.0] * (2 * chunk - COUNT) for rank in range(2)]
        sums = [sum(pair) / 2 for pair in zip(*(rounded(values, bits) for values in padded), strict=True)]
        expected = torch.tensor(rounded(sums, bits))[:COUNT]
        apart = (mean.double() - expected.double()).abs()
        step = float(expected.abs().max()) / (2 ** (bits - 1) - 1)
        assert float(apart.max()) <= step * 1.01, "a sum between two steps may be rounded to either"
        assert float((apart > 1e-4 * step).float().mean()) < 0.01
