"""Compiling the layers of a network: one graph for all of them, in code that is kept for later processes."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from shoestring.core.compiled_code import keep_compiled_code
from shoestring.core.sections import Train

_MOST_GRAPHS = 64
"""Shapes that a layer is compiled for, at least: a measurement tries many."""


def is_compiled(settings: Train, device: torch.device) -> bool:
    """Whether the layers are compiled: as the recipe says, by default on a GPU."""
    return device.type == "cuda" if settings.compile is None else settings.compile


def start_compiler(device: torch.device) -> None:
    """Load the compiler, and begin what takes it seconds and needs nothing of the network.

    It reads its own files, of which the keys of its cache are made, and starts processes that compile a GPU's kernels.
    The earlier this is called, the less the first step waits.
    """
    keep_compiled_code(torch.__version__)
    from torch._inductor import codecache
    from torch._inductor.runtime import triton_compat  # noqa: F401 (loaded here, and not in two threads at once)

    for name in ("torch_key", "triton_key"):
        if prefetch := getattr(getattr(codecache, name, None), "prefetch", None):  # torch 2.13 has it
            prefetch()
    if device.type == "cuda":
        with contextlib.suppress(ImportError):  # of a torch that starts them itself
            from torch._inductor.async_compile import maybe_warm_pool

            maybe_warm_pool()


def compile_layers(layers: nn.ModuleList) -> None:
    """Compile each layer when it first runs. Layers of one kind share a graph, as do all passes of one shape."""
    keep_compiled_code(torch.__version__)
    for layer in layers:
        layer.compile(dynamic=False)
    torch._dynamo.config.recompile_limit = max(_MOST_GRAPHS, torch._dynamo.config.recompile_limit)
