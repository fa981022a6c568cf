"""The mean of a tensor over all processes in 8 or 4 bits per number.

Every block of numbers has one scale, its largest absolute value, and codes that are rounded to the nearest of equal
steps. As in a ring, each process averages one chunk: it receives the codes of that chunk from all, and sends the codes
of the mean to all. So it sends as many codes as a sum in 32 bits would send numbers, and all processes get the same.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from shoestring.parallel.process_group import ProcessGroup

BLOCK = 256
"""Numbers that share a scale."""


def packed_bytes(numbers: int, bits: int) -> int:
    """Bytes of so many numbers, whole blocks, with their scales."""
    return numbers * bits // 8 + numbers // BLOCK * 4


def pack(values: Tensor, bits: int) -> Tensor:
    """Scales and codes of float32 numbers, whole blocks, as bytes."""
    blocks, most = values.view(-1, BLOCK), 2 ** (bits - 1) - 1
    scales = blocks.abs().amax(dim=1, keepdim=True)
    codes = (blocks * (most / scales.clamp(min=torch.finfo(torch.float32).tiny))).round().to(torch.int8)
    if bits == 4:
        low, high = codes.view(-1, 2).unbind(1)
        codes = (low & 15) | (high << 4)
    return torch.cat([scales.view(-1).view(torch.uint8), codes.view(-1).view(torch.uint8)])


def unpack(packed: Tensor, numbers: int, bits: int) -> Tensor:
    """The numbers that `pack` rounded to, float32."""
    size = numbers // BLOCK * 4
    scales, codes = packed[:size].clone().view(torch.float32), packed[size:].view(torch.int8)
    if bits == 4:
        codes = torch.stack([(codes << 4) >> 4, codes >> 4], dim=1)
    return (codes.view(-1, BLOCK).float() * (scales.view(-1, 1) / float(2 ** (bits - 1) - 1))).view(-1)


def mean_of(values: Tensor, group: ProcessGroup, bits: int) -> tuple[Tensor, int]:
    """The mean of flat float32 numbers over all processes, and the bytes of codes and scales of those of one."""
    world = group.world
    chunk = -(-values.numel() // (world * BLOCK)) * BLOCK
    padded = values.new_zeros(world, chunk)
    padded.view(-1)[: values.numel()] = values
    own = torch.stack([pack(part, bits) for part in padded])
    received = torch.empty_like(own)
    dist.all_to_all_single(received, own)
    mean = torch.stack([unpack(part, chunk, bits) for part in received]).mean(dim=0)
    means = [torch.empty_like(own[0]) for _ in range(world)]
    dist.all_gather(means, pack(mean, bits))
    return torch.cat([unpack(part, chunk, bits) for part in means])[: values.numel()], own.numel()
