"""What is known of GPUs by the name that torch reports: memory, and the peak of products in bf16.

A card that is not in the list is unknown; nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
TERA = 10**12


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU, by its vendor."""

    memory_bytes: int
    """As nvidia-smi tells; the driver keeps some of it, so that a program has 0.5 to 3 % less."""
    bf16_flops: float | None
    """A second, of dense products that are summed in float32. None: there are none in bf16."""


CARDS = {
    # peaks: NVIDIA's data sheets of A100, A30, A10, A40, RTX A6000, H100, H200, L4, L40, L40S, without sparsity; for
    # the GeForce cards the white papers on GA102 and AD102, bf16 with FP32 accumulation
    "NVIDIA A100-PCIE-40GB": Card(memory_bytes=40960 * MIB, bf16_flops=312 * TERA),
    "NVIDIA A100-SXM4-40GB": Card(memory_bytes=40960 * MIB, bf16_flops=312 * TERA),
    "NVIDIA A100 80GB PCIe": Card(memory_bytes=81920 * MIB, bf16_flops=312 * TERA),
    "NVIDIA A100-SXM4-80GB": Card(memory_bytes=81920 * MIB, bf16_flops=312 * TERA),
    "NVIDIA A10": Card(memory_bytes=23028 * MIB, bf16_flops=125 * TERA),
    "NVIDIA A30": Card(memory_bytes=24576 * MIB, bf16_flops=165 * TERA),
    "NVIDIA A40": Card(memory_bytes=46068 * MIB, bf16_flops=149.7 * TERA),
    "NVIDIA RTX A6000": Card(memory_bytes=49140 * MIB, bf16_flops=154.8 * TERA),
    "NVIDIA H100 PCIe": Card(memory_bytes=81559 * MIB, bf16_flops=756 * TERA),
    "NVIDIA H100 80GB HBM3": Card(memory_bytes=81559 * MIB, bf16_flops=989 * TERA),
    "NVIDIA H200": Card(memory_bytes=143771 * MIB, bf16_flops=989 * TERA),
    "NVIDIA L4": Card(memory_bytes=23034 * MIB, bf16_flops=121 * TERA),
    "NVIDIA L40": Card(memory_bytes=46068 * MIB, bf16_flops=181 * TERA),
    "NVIDIA L40S": Card(memory_bytes=46068 * MIB, bf16_flops=362 * TERA),
    "NVIDIA GeForce RTX 3080 Ti": Card(memory_bytes=12288 * MIB, bf16_flops=68.2 * TERA),
    "NVIDIA GeForce RTX 3090": Card(memory_bytes=24576 * MIB, bf16_flops=71 * TERA),
    "NVIDIA GeForce RTX 4090": Card(memory_bytes=24564 * MIB, bf16_flops=165.2 * TERA),
    "Tesla T4": Card(memory_bytes=15360 * MIB, bf16_flops=None),  # a Turing: products in fp16 only
    "Tesla V100-PCIE-16GB": Card(memory_bytes=16384 * MIB, bf16_flops=None),  # Volta: likewise
    "Tesla V100-PCIE-32GB": Card(memory_bytes=32768 * MIB, bf16_flops=None),
    "Tesla V100-SXM2-16GB": Card(memory_bytes=16384 * MIB, bf16_flops=None),
    "Tesla V100-SXM2-32GB": Card(memory_bytes=32768 * MIB, bf16_flops=None),
}


def find_card(name: str) -> Card | None:
    """By the name that torch reports, in any case of its letters; None: unknown."""
    return {known.lower(): card for known, card in CARDS.items()}.get(name.strip().lower())
