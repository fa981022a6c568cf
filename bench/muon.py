"""Our Muon beside torch's: one update of the block matrices of a Llama, on the same numbers.

    python bench/muon.py [--out FOLDER]

The median of some updates; torch's come last, as its products in bf16 may switch oneDNN off for the process. On a GPU
ours is also replayed as a CUDA graph, as in training; torch's reads the learning rate on the host, and cannot be
recorded. The difference is that of one update from torch's, relative to it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from record import write
from torch import Tensor

from shoestring.core.family import family_of
from shoestring.core.sections import Model
from shoestring.cost.transformer import transformer_of
from shoestring.probe.machine import pick_device
from shoestring.training.optimizers.muon import Muon

SHAPES = {"cpu": [(64, 2), (128, 3)], "cuda": [(128, 3), (384, 6), (768, 12), (1024, 8)]}
"""(channels, layers)."""
UPDATES = {"cpu": 7, "cuda": 50}
PARTS: dict[str, Any] = {
    "polar_express": True,
    "normalize_neurons": True,
    "cautious_decay": True,
    "momentum_warmup": 300,
}
OPTIONS: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}


def matrices(width: int, layers: int, device: torch.device) -> list[Tensor]:
    """Random ones, with gradients."""
    model = Model(width=width, layers=layers, heads=width // 32)
    assert family_of(model) is transformer_of(model)
    shapes = [pair for part in transformer_of(model).block_products(model).values() for pair in part] * layers
    random = torch.Generator(device).manual_seed(0)
    found = [torch.randn(shape, device=device, generator=random).mul_(0.02).requires_grad_() for shape in shapes]
    for p in found:
        p.grad = torch.randn(p.shape, device=device, generator=random)
    return found


def ours(parameters: list[Tensor], **parts: Any) -> Callable[[], object]:
    made, device = Muon(parameters, **OPTIONS, **parts), parameters[0].device
    made.grad_scale, made.found_inf = torch.ones((), device=device), torch.zeros((), device=device)
    if device.type == "cuda":
        made.param_groups[0]["lr"] = torch.tensor(OPTIONS["lr"], device=device)
    return made.step


def recorded(step: Callable[[], object]) -> Callable[[], object]:
    """The replay of a step."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(_: object = step) -> None:  # it keeps what the step reads and writes
        graph.replay()

    return replay


def ways(width: int, layers: int, device: torch.device) -> dict[str, Callable[[], object]]:
    """An update of each, on matrices of its own."""

    def fresh() -> list[Tensor]:
        return matrices(width, layers, device)

    found = {name: ours(fresh(), **parts) for name, parts in _OURS.items()}
    if device.type == "cuda":
        found |= {f"{name}, recorded": recorded(ours(fresh(), **parts)) for name, parts in _OURS.items()}
    return found | {"torch.optim.Muon": torch.optim.Muon(fresh(), **OPTIONS).step}


_OURS: dict[str, dict[str, Any]] = {"ours": {}, "ours, all parts": PARTS}


def difference(width: int, layers: int, device: torch.device) -> float:
    """Of the first updates of both: the largest over all matrices."""
    before, mine, theirs = (matrices(width, layers, device) for _ in range(3))
    ours(mine)()
    torch.optim.Muon(theirs, **OPTIONS).step()
    pairs = zip(before, mine, theirs, strict=True)
    return max(float((p - q).norm() / (q - old).norm()) for old, p, q in pairs)


def seconds(step: Callable[[], object], device: torch.device) -> float:
    """Of one update, until it is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def measure(width: int, layers: int, device: torch.device) -> dict[str, Any]:
    medians = {}
    for name, step in ways(width, layers, device).items():
        times = [seconds(step, device) for _ in range(UPDATES[device.type] + 2)]
        medians[name] = statistics.median(times[2:])
    return {"seconds": medians, "difference": difference(width, layers, device)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=None, help="write the record here instead of results/")
    arguments = parser.parse_args()
    device, results = pick_device(), {}
    if device.type == "cpu":
        torch.set_num_threads(1)
    for width, layers in SHAPES[device.type]:
        name = f"llama-{width}x{layers}"
        results[name] = measure(width, layers, device)
        shown = ", ".join(f"{way} {1000 * value:.2f} ms" for way, value in results[name]["seconds"].items())
        print(f"{name}: {shown}; difference {results[name]['difference']:.1e}", flush=True)
    write("muon", {"shapes": results}, arguments.out)


if __name__ == "__main__":
    main()
