"""A module of the user's own with buffers and half-precision weights: stopped and resumed, it ends bit-equal."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from conftest import TINY
from profiles import write_profile
from torch import Tensor

from shoestring.core.clock import Clock
from shoestring.core.recipe_file import load
from shoestring.core.run_folder import RunFolder
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.training.checkpoint import Checkpoints
from shoestring.training.hooks import Stopped
from shoestring.training.loop import Requests
from shoestring.training.schedule import Schedule
from shoestring.training.stepper import NetworkStep, Stepper

STEPS, STOP_AT = 40, 17
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, vocab_size, width):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width, dtype=torch.bfloat16)
        self.norm = nn.BatchNorm1d(width)
        self.mix = nn.Linear(width, width, dtype=torch.bfloat16)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(width, vocab_size, dtype=torch.bfloat16)
        self.register_buffer("constant", torch.ones(width, dtype=torch.bfloat16), persistent=False)

    def forward(self, ids):
        x = self.embedding(ids) * self.constant
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return self.head(self.drop(torch.relu(self.mix(x))))
"""


def _trained(folder: Path, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the recipe in a folder, or resume it there."""
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(NET)
    recipe = folder / "tiny.toml"
    recipe.write_text(
        TINY.replace("width = 16\nlayers = 1\nheads = 2\n", 'family = "net.py:Net"\nwidth = 16\n').replace(
            "lr = 3e-3", f'lr = 3e-3\nprecision = "{precision}"\nema = 0.9'
        )
    )
    monkeypatch.chdir(folder)
    write_profile(recipe)
    assert run(load(recipe), Reporter(), Clock(0.0)) is not None


def _tensors(folder: RunFolder) -> dict[str, Tensor]:
    checkpoints = Checkpoints(folder.checkpoints, keep=1)
    opened = checkpoints.open(checkpoints.steps()[0])
    assert opened.state.step == STEPS
    return opened.read({})


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_resumed_run_of_an_own_module_with_buffers_is_bit_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    _trained(tmp_path / "whole", precision, monkeypatch)

    begin = Stepper.begin

    def stop(self: Stepper, step: int, schedule: Schedule, requests: Requests) -> NetworkStep:
        if step == STOP_AT:
            signal.raise_signal(signal.SIGUSR1)
        return begin(self, step, schedule, requests)

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "begin", stop)
        with pytest.raises(Stopped, match="stopped by SIGUSR1"):
            _trained(tmp_path / "resumed", precision, patch)
    whole, resumed = (RunFolder(tmp_path / name / "runs" / "tiny") for name in ("whole", "resumed"))
    assert STOP_AT <= Checkpoints(resumed.checkpoints, keep=1).steps()[0] < STEPS
    _trained(tmp_path / "resumed", precision, monkeypatch)

    assert whole.metrics.read_bytes() == resumed.metrics.read_bytes()
    first, second = _tensors(whole), _tensors(resumed)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)

    network = "model/network."
    assert first[f"{network}norm.num_batches_tracked"] == STEPS
    assert first[f"{network}norm.running_var"].ne(1).all(), "the buffers were updated"
    assert f"{network}constant" not in first, "it is not a part of the state"
    assert {first[f"{network}{name}.weight"].dtype for name in ("embedding", "mix", "head")} == {torch.float32}
