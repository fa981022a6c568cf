"""Our fused layers beside Liger-Kernel's and compiled torch: forward and backward pass on one GPU, in bf16.

    python bench/kernels.py --peers FOLDER      # FOLDER: pip install --no-deps --target FOLDER liger-kernel

Each is checked against float64 on the same inputs, then timed on the same tensors: the median of 50 passes, replayed as
a CUDA graph (as in training) where the pass can be recorded. Memory is what a forward and backward pass allocates at
its peak, above the inputs and their gradients. Ours runs under autocast, as in training; the others cast by hand.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from record import write
from torch import Tensor

from shoestring.models.layers.add_norm import add_norm
from shoestring.models.layers.cross_entropy import linear_cross_entropy
from shoestring.models.layers.linear import swiglu_linear

SHAPES = {
    "llama-1024x8, 512 × 100": {"n": 51_200, "d": 1024, "f": 2752, "v": 32_000},
    "llama-768x12, 32 × 1,024": {"n": 32_768, "d": 768, "f": 2048, "v": 32_000},
}
PASSES = 50
Outputs = tuple[Tensor, ...]
Layer = Callable[..., Outputs]


def plain_add_norm(x: Tensor, change: Tensor, weight: Tensor) -> Outputs:
    total = x + change
    return total, F.rms_norm(total.float(), (total.shape[-1],), weight.float(), 1e-5).to(total.dtype)


def plain_swiglu(pairs: Tensor, weight: Tensor) -> Outputs:
    gate, values = pairs.chunk(2, dim=-1)
    return (F.linear(F.silu(gate) * values, weight.to(pairs.dtype)),)


def plain_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Outputs:
    return (F.cross_entropy(F.linear(hidden, weight.to(hidden.dtype)).float(), targets, reduction="sum"),)


def liger_layers() -> dict[str, Layer]:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction as AddNorm
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Loss
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction as SiluMul

    def norm(x: Tensor, change: Tensor, weight: Tensor) -> Outputs:
        normed, total = AddNorm.apply(change, x, weight, 1e-5, 0.0, "llama", False)[:2]
        return total, normed

    def swiglu(pairs: Tensor, weight: Tensor) -> Outputs:
        gate, values = pairs.chunk(2, dim=-1)
        return (F.linear(SiluMul.apply(gate.contiguous(), values.contiguous()), weight.to(pairs.dtype)),)

    def loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Outputs:
        found = Loss.apply(hidden, weight.to(hidden.dtype), targets, None, None, -100, 0.0, 0.0, "sum")
        return (found[0] if isinstance(found, tuple) else found,)

    return {"add and RMSNorm": norm, "SwiGLU and its product": swiglu, "output product and loss": loss}


OURS: dict[str, Layer] = {
    "add and RMSNorm": lambda x, change, weight: tuple(
        made[0]
        for made in add_norm(x[None], change[None], _With(weight))  # type: ignore[arg-type]
    ),
    "SwiGLU and its product": lambda pairs, weight: (swiglu_linear(pairs, weight),),
    "output product and loss": lambda hidden, weight, targets: (autocast_loss(hidden, weight, targets),),
}


def autocast_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        return linear_cross_entropy(hidden, weight, None, targets)


class _With:
    """A norm with this weight."""

    eps = 1e-5

    def __init__(self, weight: Tensor):
        self.weight = weight


PLAIN: dict[str, Layer] = {
    "add and RMSNorm": plain_add_norm,
    "SwiGLU and its product": plain_swiglu,
    "output product and loss": plain_loss,
}


def inputs_of(layer: str, shape: dict[str, int]) -> list[Tensor]:
    """Activations in bf16, weights in float32, as in training; targets last."""
    n, d, f, v = (shape[name] for name in ("n", "d", "f", "v"))

    def drawn(*sizes: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return (torch.randn(*sizes, device="cuda") * scale).to(dtype).requires_grad_()

    if layer == "add and RMSNorm":
        return [drawn(n, d), drawn(n, d), (1 + 0.1 * torch.randn(d, device="cuda")).requires_grad_()]
    if layer == "SwiGLU and its product":
        return [drawn(n, 2 * f), drawn(d, f, scale=f**-0.5, dtype=torch.float32)]
    targets = torch.randint(v, (n,), device="cuda")
    return [drawn(n, d), drawn(v, d, scale=d**-0.5, dtype=torch.float32), targets]


def passed(run: Layer, inputs: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
    """Outputs, and the gradients of the inputs."""
    for x in inputs:
        x.grad = None
    outputs = run(*inputs)
    torch.autograd.backward([out.view_as(g) for out, g in zip(outputs, gradients)], gradients)
    return [*outputs, *(x.grad for x in inputs if x.grad is not None)]


def error(run: Layer, layer: str, shape: dict[str, int]) -> float:
    """The largest relative difference to float64, over outputs and gradients, on some of the rows."""
    torch.manual_seed(0)
    inputs = inputs_of(layer, shape | {"n": 2048})
    exact = [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in inputs]
    outputs = PLAIN64[layer](*exact)
    gradients = [torch.ones_like(out) if out.ndim == 0 else torch.randn_like(out) for out in outputs]
    want = passed(PLAIN64[layer], exact, gradients)
    got = passed(run, inputs, [g.to(torch.float32 if g.ndim == 0 else torch.bfloat16) for g in gradients])
    return max(
        float((a.detach().double().view_as(b) - b.detach()).norm() / b.detach().norm()) for a, b in zip(got, want)
    )


def _norm64(x: Tensor, change: Tensor, weight: Tensor) -> Outputs:
    total = x + change
    return total, total * (total.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


PLAIN64: dict[str, Layer] = {
    "add and RMSNorm": _norm64,
    "SwiGLU and its product": plain_swiglu,
    "output product and loss": lambda hidden, weight, targets: (
        F.cross_entropy(F.linear(hidden, weight), targets, reduction="sum"),
    ),
}


def timed(run: Layer, inputs: list[Tensor]) -> dict[str, Any]:
    """Seconds of a forward and backward pass, and its peak of memory above the inputs and their gradients."""
    side = torch.cuda.Stream()  # graphs are recorded on it; a gradient's node belongs to the stream it was made on
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        outputs = [out.detach() for out in run(*inputs)]
        gradients = [torch.ones_like(out) if out.ndim == 0 else torch.randn_like(out) for out in outputs]
        del outputs
        for _ in range(5):
            passed(run, inputs, gradients)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        passed(run, inputs, gradients)
        peak = torch.cuda.max_memory_allocated() - before
        replayed = _graph(run, inputs, gradients, side)
    work = replayed.replay if replayed else lambda: passed(run, inputs, gradients)
    times = []
    for _ in range(PASSES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return {"seconds": statistics.median(times), "graph": bool(replayed), "peak_bytes": peak}


def _graph(
    run: Layer, inputs: list[Tensor], gradients: list[Tensor], side: torch.cuda.Stream
) -> torch.cuda.CUDAGraph | None:
    """The pass as a CUDA graph; None for a pass that waits for the GPU, which cannot be recorded."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        passed(run, inputs, gradients)
    except RuntimeError:
        return None
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        passed(run, inputs, gradients)
    return graph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="a folder with liger_kernel in it")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.peers:
        sys.path.insert(0, str(given.peers))
    found: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        ways = {"ours": OURS, "torch, compiled": {k: torch.compile(f) for k, f in PLAIN.items()}}
        if given.peers:
            ways["Liger-Kernel"] = liger_layers()
        for layer in PLAIN:
            for way, layers in ways.items():
                torch.manual_seed(1)
                try:
                    told: dict[str, Any] = timed(layers[layer], inputs_of(layer, shape))
                    told["error"] = error(layers[layer], layer, shape)
                except Exception as cause:  # a peer that cannot is a finding
                    told = {"failed": f"{type(cause).__name__}: {str(cause).splitlines()[0][:200]}"}
                found.setdefault(name, {}).setdefault(layer, {})[way] = told
                print(name, layer, way, told, flush=True)
                torch.cuda.empty_cache()
    versions = {}
    if given.peers:
        from importlib.metadata import distributions

        versions = {d.name: d.version for d in distributions(path=[str(given.peers)]) if "liger" in d.name}
    write("kernels", {"shapes": found, "peers": versions}, given.out)


if __name__ == "__main__":
    main()
