"""Compiling the layers of a network: one graph for all of them, in code that is kept for later processes."""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.hooks import RemovableHandle

from shoestring.core.compiled_code import keep_compiled_code

Context = Callable[[], AbstractContextManager[None]]
SWITCH_SECONDS = 2e-4
"""After which a thread that compiles lets another go on: each read, copy and launch of a step waits so long."""
_MOST_GRAPHS = 64
"""Shapes that a layer is compiled for, at least: a measurement tries many."""


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
    _allow_many_graphs()


def _allow_many_graphs() -> None:
    torch._dynamo.config.recompile_limit = max(_MOST_GRAPHS, torch._dynamo.config.recompile_limit)


class CompilingBeside:
    """Compiles layers in a thread, while the first steps of a run take them as they are.

    Loading the compiler takes seconds, and compiling as many more, in which the steps learn already. The thread
    compiles a copy of each kind of layer on the inputs of its first pass. Layers that are then compiled find the code.
    """

    def __init__(self, layers: nn.ModuleList, device: torch.device, context: Context):
        """`context` is that of a pass."""
        keep_compiled_code(torch.__version__)
        self._device, self._context = device, context
        self._kinds: dict[object, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = {}
        self._begun = False
        self._interval = sys.getswitchinterval()
        self._hooks: list[RemovableHandle] = [
            layer.register_forward_pre_hook(self._note, with_kwargs=True) for layer in layers
        ]
        threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._compile, args=(threads,), name="compiler", daemon=True)

    def _note(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the inputs of a layer, once for each kind of layer and input."""
        like = [(x.shape, x.dtype) if isinstance(x, Tensor) else type(x) for x in tree_leaves((args, kwargs))]
        kind = (type(layer), *(p.shape for p in layer.parameters()), *like)
        if kind not in self._kinds:
            args, kwargs = tree_map_only(Tensor, _apart, (args, kwargs))
            self._kinds[kind] = layer, args, kwargs

    def passed(self) -> None:
        """Begin, as a step is over: all inputs are known, and its own kernels are compiled and recorded. Two threads at
        that would wait for each other."""
        if not self._begun:
            self._begun = True
            for hook in self._hooks:
                hook.remove()
            sys.setswitchinterval(SWITCH_SECONDS)
            self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether the code is there, or cannot be made beside the steps."""
        return self._begun and not self._thread.is_alive()

    def wait(self) -> None:
        """Return when it is ready."""
        self.passed()
        self._thread.join()
        sys.setswitchinterval(self._interval)

    def _compile(self, threads: int) -> None:
        torch.set_num_threads(threads)  # compiled code is for their number, which each thread has for itself
        with contextlib.suppress(Exception):  # the layers themselves are compiled next, and will raise it again
            start_compiler(self._device)
            from torch._inductor import compile_fx  # noqa: F401 (the larger half of the compiler)

            _allow_many_graphs()
            for layer, args, kwargs in self._kinds.values():
                self._compile_one(copy.deepcopy(layer), args, kwargs)
        self._kinds.clear()

    def _compile_one(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compile both passes of a layer."""
        layer.compile(dynamic=False)
        with self._context():
            found = [x for x in tree_leaves(layer(*args, **kwargs)) if isinstance(x, Tensor) and x.requires_grad]
        torch.autograd.backward(found, [torch.ones_like(x) for x in found])


def _apart(x: Tensor) -> Tensor:
    """The same values, of no graph."""
    return x.detach().requires_grad_(x.requires_grad)
