"""Memory and peaks of GPUs, by the name that torch reports. A GPU that is not listed is unknown."""

from __future__ import annotations

from dataclasses import dataclass

from shoestring.core.registry import Registry
from shoestring.core.sections import Precision

MIB = 1 << 20
TERA = 10**12


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU by the vendor's figures."""

    memory_bytes: int
    """As nvidia-smi reports; the driver keeps 0.5 to 3 % of it."""
    bf16_flops: float | None
    """Dense FLOPs per second with float32 accumulation; None: no bf16."""
    fp16_flops: float | None = None
    """Likewise; None: as in bf16."""

    def peak_flops(self, precision: Precision) -> float | None:
        """Of products in this precision; None: unknown, or it has none."""
        if precision == "fp16":
            return self.fp16_flops or self.bf16_flops
        return self.bf16_flops if precision == "bf16" else None


GPUS: Registry[Gpu] = Registry(
    {
        # peaks: NVIDIA's data sheets of A100, A30, A10, A40, RTX A6000, H100, H200, L4, L40, L40S, without sparsity;
        # T4 and V100; for the GeForce GPUs the white papers on GA102 and AD102, with FP32 accumulation
        "NVIDIA A100-PCIE-40GB": Gpu(memory_bytes=40960 * MIB, bf16_flops=312 * TERA),
        "NVIDIA A100-SXM4-40GB": Gpu(memory_bytes=40960 * MIB, bf16_flops=312 * TERA),
        "NVIDIA A100 80GB PCIe": Gpu(memory_bytes=81920 * MIB, bf16_flops=312 * TERA),
        "NVIDIA A100-SXM4-80GB": Gpu(memory_bytes=81920 * MIB, bf16_flops=312 * TERA),
        "NVIDIA A10": Gpu(memory_bytes=23028 * MIB, bf16_flops=125 * TERA),
        "NVIDIA A30": Gpu(memory_bytes=24576 * MIB, bf16_flops=165 * TERA),
        "NVIDIA A40": Gpu(memory_bytes=46068 * MIB, bf16_flops=149.7 * TERA),
        "NVIDIA RTX A6000": Gpu(memory_bytes=49140 * MIB, bf16_flops=154.8 * TERA),
        "NVIDIA H100 PCIe": Gpu(memory_bytes=81559 * MIB, bf16_flops=756 * TERA),
        "NVIDIA H100 80GB HBM3": Gpu(memory_bytes=81559 * MIB, bf16_flops=989 * TERA),
        "NVIDIA H200": Gpu(memory_bytes=143771 * MIB, bf16_flops=989 * TERA),
        "NVIDIA L4": Gpu(memory_bytes=23034 * MIB, bf16_flops=121 * TERA),
        "NVIDIA L40": Gpu(memory_bytes=46068 * MIB, bf16_flops=181 * TERA),
        "NVIDIA L40S": Gpu(memory_bytes=46068 * MIB, bf16_flops=362 * TERA),
        "NVIDIA GeForce RTX 3080 Ti": Gpu(memory_bytes=12288 * MIB, bf16_flops=68.2 * TERA),
        "NVIDIA GeForce RTX 3090": Gpu(memory_bytes=24576 * MIB, bf16_flops=71 * TERA),
        "NVIDIA GeForce RTX 4090": Gpu(memory_bytes=24564 * MIB, bf16_flops=165.2 * TERA),
        "Tesla T4": Gpu(memory_bytes=15360 * MIB, bf16_flops=None, fp16_flops=65 * TERA),
        "Tesla V100-PCIE-16GB": Gpu(memory_bytes=16384 * MIB, bf16_flops=None, fp16_flops=112 * TERA),
        "Tesla V100-PCIE-32GB": Gpu(memory_bytes=32768 * MIB, bf16_flops=None, fp16_flops=112 * TERA),
        "Tesla V100-SXM2-16GB": Gpu(memory_bytes=16384 * MIB, bf16_flops=None, fp16_flops=125 * TERA),
        "Tesla V100-SXM2-32GB": Gpu(memory_bytes=32768 * MIB, bf16_flops=None, fp16_flops=125 * TERA),
    }
)


def find_gpu(name: str) -> Gpu | None:
    """The GPU with the name that torch reports, ignoring case; None: unknown."""
    return {known.lower(): gpu for known, gpu in GPUS.items()}.get(name.strip().lower())
