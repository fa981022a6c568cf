"""Layers that are compiled in a thread, while the first steps take them as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from products import PRODUCTS
from scripts import run_script

from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.models.language_model import build
from shoestring.training import compiling
from shoestring.training.learner import Learner

CPU = torch.device("cpu")
ROWS = torch.arange(64).reshape(4, 16) % 20

FOUND = (
    PRODUCTS
    + """

def make():
    torch.manual_seed(0)
    return Products()

ROWS = torch.arange(64).reshape(4, 16) % 20
plain = Learner(make(), Train(batch=4, lr=1e-3, compile=False), torch.device("cpu"))
learner = Learner(make(), Train(batch=4, lr=1e-3, compile=True), torch.device("cpu"), beside=True)
losses, graphs = [], []
for step in range(6):
    if step == 3:
        learner._beside.wait()
        assert learner.settling, "until the next step begins"
        graphs.append(counters["stats"]["unique_graphs"])
    for one in (learner, plain):
        losses.append(one.update(one.accumulate(ROWS, 4), 0.01).nats)
    assert step < 3 or not learner.settling
    scores = [one.score(ROWS, 4) for one in (learner, plain)]
    torch.testing.assert_close(*scores)
graphs.append(counters["stats"]["unique_graphs"])
assert graphs == [1, 1], f"the layers find the code of the copy: {graphs}"
torch.testing.assert_close(losses[::2], losses[1::2], rtol=1e-5, atol=1e-5)
assert losses[-1] < losses[0]
assert not any(block._forward_pre_hooks for block in learner.model.blocks)
"""
)


def test_steps_before_and_after_compiling_are_those_of_plain_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All layers, in training and in scoring, find the one graph that the thread compiled."""
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    run_script(tmp_path, FOUND)


def make(monkeypatch: pytest.MonkeyPatch) -> Learner:
    """A learner that compiles nothing, when it is time to."""
    monkeypatch.setattr("shoestring.training.learner.compile_layers", lambda _: None)
    model = Model(family="llama", width=16, layers=2, heads=2)
    return Learner(build(model, 20, 15, 0), Train(batch=4, lr=1e-3, compile=True), CPU, beside=True)


def test_a_compiler_that_fails_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps go on, and the layers are compiled as always, which raises the error where it counts."""

    def fail(_: torch.device) -> None:
        raise OSError("no compiler")

    monkeypatch.setattr(compiling, "start_compiler", fail)
    learner = make(monkeypatch)
    assert learner._beside is not None
    learner._beside.wait()
    losses = [learner.update(learner.accumulate(ROWS, 4), 0.01).nats for _ in range(2)]
    assert losses[1] < losses[0] and not learner.settling


def test_a_step_without_room_waits_for_compiled_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep less; the step is repeated with all of its rows, and its gradient is whole."""
    monkeypatch.setattr(compiling, "start_compiler", lambda _: None)
    monkeypatch.setattr(compiling.CompilingBeside, "_compile_one", lambda *_: None)
    learner, hidden, failing = make(monkeypatch), [], [True]
    plain = Learner(build(Model(family="llama", width=16, layers=2, heads=2), 20, 15, 0), Train(batch=4, lr=1e-3), CPU)
    hidden.append(learner.model.hidden)

    def fail(inputs: object) -> torch.Tensor:
        if failing:
            failing.clear()
            raise MemoryError("full")
        found: torch.Tensor = hidden[0](inputs)
        return found

    monkeypatch.setattr(learner.model, "hidden", fail)
    tally = learner.accumulate(ROWS, 4)
    assert tally.fitted and not learner.settling
    assert tally.nats == plain.accumulate(ROWS, 4).nats
    for one, two in zip(learner.model.parameters(), plain.model.parameters(), strict=True):
        assert one.grad is not None and two.grad is not None and torch.equal(one.grad, two.grad)


def test_a_warm_up_changes_nothing() -> None:
    """Weights, moments and the next step are as without it."""
    model = Model(family="llama", width=16, layers=2, heads=2)
    for optimizer in ("adamw", "muon"):
        settings = Train(batch=4, lr=1e-3, optimizer=optimizer, ema=0.9)
        one, two = (Learner(build(model, 20, 15, 0), settings, CPU) for _ in range(2))
        one.warm_up(ROWS.flip(0), 2)
        for learner in (one, two):
            learner.update(learner.accumulate(ROWS, 4), 0.01)
        expected = two.saved_tensors()
        assert all(torch.equal(found, expected[name]) for name, found in one.saved_tensors().items())
