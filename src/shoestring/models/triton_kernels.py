"""Triton kernels, compiled before they are launched and at the same time: each takes half a second, most of it in other
processes and outside Python."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

_THREADS = 16


def load_kernels(work: Callable[[], object], device: torch.device) -> int:
    """Compile and load the kernels that `work` launches, and return how many they are.

    `work` is called once, and none of the kernels that are new to this process is launched in it. So what it computes
    means nothing, and may raise an error. Where Triton is missing or old, it is not called.
    """
    try:
        from triton import knobs
    except ImportError:
        return 0
    with _noted(knobs.runtime) as found, contextlib.suppress(Exception):
        work()

    def load(kernel: tuple[Any, str]) -> None:
        function, wanted = kernel
        with contextlib.suppress(Exception), torch.cuda.device(device):  # the launch will raise it again
            compiled = function.preload(wanted)
            compiled.run  # noqa: B018 (makes what launches it)

    if found:
        with ThreadPoolExecutor(min(_THREADS, len(found))) as threads:
            list(threads.map(load, found.values()))
    return len(found)


@contextlib.contextmanager
def _noted(runtime: Any) -> Iterator[dict[tuple[str, str], tuple[Any, str]]]:
    """The kernels that would be compiled from now on, each with its arguments as Triton describes them."""
    found: dict[tuple[str, str], tuple[Any, str]] = {}

    def note(*, key: str, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        found[f"{fn.module}.{fn.name}", key] = fn.jit_function, compile["specialization_data"]
        return True  # neither compiled nor launched

    before, runtime.jit_cache_hook = runtime.jit_cache_hook, note
    try:
        yield found
    finally:
        runtime.jit_cache_hook = before
