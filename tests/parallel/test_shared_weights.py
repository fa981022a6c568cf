"""Shared weights: what a GPU does not allow is said, with what to do instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shoestring.core.errors import Fault
from shoestring.parallel import shared_weights
from shoestring.parallel.shared_weights import NotShared, SharedWeights

GPU = torch.device("cuda", 0)
LIKE = {"a": torch.zeros(3, 5), "b": torch.zeros(7, dtype=torch.float64), "c": torch.tensor(1.0)}


def refused(cause: Exception) -> Any:
    def fail(*_: Any, **__: Any) -> None:
        raise cause

    return fail


def test_tensors_lie_apart_and_two_processes_see_the_same() -> None:
    one = SharedWeights(LIKE, 2, keep_read=True)
    other = SharedWeights(LIKE, 2, one.file, keep_read=True)
    assert one.map() is None, "the file is enough"
    places = [one.weights, *one.gradients, *one.weights_read]
    numbers = [tensor for place in places for tensor in place.values()]
    for number, tensor in enumerate(numbers):
        tensor.fill_(number)
    same = [tensor for place in (other.weights, *other.gradients, *other.weights_read) for tensor in place.values()]
    for number, tensor in enumerate(same):
        assert tensor.eq(number).all()
        assert tensor.data_ptr() % 64 == 0
    assert [tensor.shape for tensor in one.weights.values()] == [tensor.shape for tensor in LIKE.values()]


def test_a_gpu_without_room_names_what_is_needed_and_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "zeros", refused(torch.OutOfMemoryError("CUDA out of memory")))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 4000))
    with pytest.raises(Fault, match="gradients of 2 workers take 576 B, and 1 kB are free on the GPU; take fewer"):
        SharedWeights(LIKE, 2, device=GPU)


def test_memory_that_cannot_be_mapped_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a sandbox without CUDA IPC, in the process that has the memory and in another."""
    with pytest.raises(NotShared, match=r"the memory of the GPU here .invalid device handle; expandable"):
        SharedWeights(LIKE, 2, device=GPU, mapped=(refused(RuntimeError("invalid device handle")), ()))
    monkeypatch.setattr(
        shared_weights, "_allocated", lambda size, *_: torch.zeros(size, dtype=torch.uint8, device="meta")
    )
    monkeypatch.setattr(shared_weights, "reduce_tensor", refused(RuntimeError("operation not supported")))
    with pytest.raises(NotShared, match="operation not supported"):
        SharedWeights(LIKE, 2, device=GPU).map()
