"""Kernels are found by a step that launches none of them, then compiled at the same time.

Triton itself needs a GPU for it (tests/gpu); here its part is played.
"""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shoestring.models.triton_kernels import load_kernels

CPU = torch.device("cpu")


class Played:
    """A kernel as Triton calls the hook for it: with its arguments described, and whether it may be launched."""

    def __init__(self, runtime: Any, name: str):
        self.runtime, self.name = runtime, name
        self.launched: list[str] = []
        self.loaded: list[str] = []
        self.run_made = 0
        self.together: threading.Barrier | None = None

    def launch(self, argument: str) -> None:
        told = {"key": argument, "fn": SimpleNamespace(module="m", name=self.name, jit_function=self)}
        if not (self.runtime.jit_cache_hook and self.runtime.jit_cache_hook(
            **told, compile={"specialization_data": f"for {argument}"}, already_compiled=False
        )):  # fmt: skip
            self.launched.append(argument)

    def preload(self, wanted: str) -> Played:
        if self.together is not None:
            self.together.wait(10)
        if wanted == "for a fault":
            raise RuntimeError("it does not compile")
        self.loaded.append(wanted)
        return self

    @property
    def run(self) -> None:
        self.run_made += 1


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = SimpleNamespace(jit_cache_hook=None)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(knobs=SimpleNamespace(runtime=found)))
    return found


def test_each_kernel_is_compiled_once_for_its_arguments_and_none_is_launched(runtime: Any) -> None:
    one, two = Played(runtime, "one"), Played(runtime, "two")
    one.together = two.together = threading.Barrier(3)  # passed only by three threads at a time

    def step() -> None:
        for kernel, argument in ((one, "x"), (two, "x"), (one, "y"), (one, "x")):
            kernel.launch(argument)

    assert load_kernels(step, CPU) == 3
    assert (one.launched, two.launched, runtime.jit_cache_hook) == ([], [], None)
    assert (sorted(one.loaded), two.loaded, one.run_made) == (["for x", "for y"], ["for x"], 2)
    one.launch("x")
    assert one.launched == ["x"]


def test_an_error_is_left_to_the_step_itself(runtime: Any) -> None:
    kernel = Played(runtime, "one")

    def step() -> None:
        kernel.launch("a fault")
        kernel.launch("x")
        raise ValueError("of a model that looks at its numbers")

    assert load_kernels(step, CPU) == 2
    assert (kernel.loaded, runtime.jit_cache_hook) == (["for x"], None)


def test_without_triton_nothing_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert load_kernels(lambda: pytest.fail("it means nothing"), CPU) == 0
