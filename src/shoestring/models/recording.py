"""CUDA graphs: launches that are recorded once and then replayed together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from shoestring.core.host import is_out_of_memory

Result = TypeVar("Result")


def record(
    run: Callable[[], Result], pool: Any = None, generator: torch.Generator | None = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """The recording of a function, and its result, which each replay overwrites.

    A replay takes its random numbers from where the generator is then, as a plain call would.
    """
    graph = torch.cuda.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    recording = torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")
    try:
        with recording:
            found = run()
    except RuntimeError as cause:  # ending a recording after OutOfMemory raises an error that hides it
        if cause.__context__ is not None and is_out_of_memory(cause.__context__):
            raise cause.__context__ from None
        raise
    # a recording begins by setting the place of its random numbers to 0, on a stream of its own: if the device is
    # busy, that could come after the first replay has set it to where the generator is
    assert recording.capture_stream is not None, "it was recorded on it"
    torch.cuda.current_stream().wait_stream(recording.capture_stream)
    return graph, found


def after_failure(generator: torch.Generator | None = None) -> None:
    """Take up plain launches: a recording that ends in an error leaves random numbers as if it went on."""
    torch.cuda.synchronize()
    for each in (torch.cuda.default_generators[torch.cuda.current_device()], generator):
        if each is not None and each.device.type == "cuda":
            each.graphsafe_set_state(each.clone_state())
