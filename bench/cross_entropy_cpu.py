"""The loss of a large vocabulary on a CPU beside plain torch, alone and while another process is busy.

    python bench/cross_entropy_cpu.py

A forward and backward pass over 512 positions; the median of some passes, in turns. The other process multiplies
matrices with as many threads. Seconds of the processor are given too: they do not depend on who else works.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from record import write

from shoestring.models.layers.cross_entropy import linear_cross_entropy

POSITIONS, PASSES = 512, 5
SHAPES = [(32_000, 256), (151_936, 64), (151_936, 256)]
"""(ids, channels)."""
BUSY = "import torch\nx = torch.randn(1500, 1500)\nwhile True: x @ x"


def passes(ids: int, width: int) -> dict[str, Callable[[], None]]:
    """One pass of each, on the same numbers."""
    torch.manual_seed(0)
    hidden = torch.randn(POSITIONS, width, requires_grad=True)
    weight = (0.02 * torch.randn(ids, width)).requires_grad_()
    targets = torch.randint(ids, (POSITIONS,))

    def plain() -> None:
        F.cross_entropy(F.linear(hidden, weight), targets, reduction="sum").backward()

    def ours() -> None:
        linear_cross_entropy(hidden, weight, None, targets).backward()

    def fresh(loss: Callable[[], None]) -> None:
        hidden.grad = weight.grad = None
        loss()

    return {"torch": lambda: fresh(plain), "shoestring": lambda: fresh(ours)}


def measure(ids: int, width: int) -> dict[str, dict[str, float]]:
    """Median seconds and processor seconds of each."""
    found: dict[str, list[tuple[float, float]]] = {}
    each = passes(ids, width)
    for number in range(PASSES + 1):
        for name, one in each.items():
            wall, used = time.perf_counter(), time.process_time()
            one()
            if number:
                took = time.perf_counter() - wall, time.process_time() - used
                found.setdefault(name, []).append(took)
    return {
        name: {
            "seconds": statistics.median(wall for wall, _ in times),
            "processor_seconds": statistics.median(used for _, used in times),
        }
        for name, times in found.items()
    }


def main() -> None:
    results = []
    for busy in (False, True):
        other = subprocess.Popen([sys.executable, "-c", BUSY]) if busy else None
        try:
            time.sleep(5.0 if busy else 0.0)  # it loads torch first
            for ids, width in SHAPES:
                result = {"ids": ids, "width": width, "busy": busy, **measure(ids, width)}
                results.append(result)
                print(result, flush=True)
        finally:
            if other is not None:
                other.kill()
                other.wait()
    write("cross-entropy", {"positions": POSITIONS, "results": results})


if __name__ == "__main__":
    main()
