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
    """Load the compiler, and start the processes in which it compiles kernels of a GPU.

    They take seconds to load. So the earlier this is called, the less the first step waits for them.
    """
    keep_compiled_code(torch.__version__)
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
