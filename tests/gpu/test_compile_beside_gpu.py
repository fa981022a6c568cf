"""On a GPU: steps that run before their layers are compiled, recorded too, learn as those after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.models.language_model import build
from shoestring.training.learner import Learner

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

ROWS = torch.arange(8 * 65).reshape(8, 65) % 50


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_steps_around_compiling_are_those_of_plain_layers(family: str) -> None:
    """Four steps as they are, the later ones replayed, then four compiled ones; a warm-up before changes nothing."""
    device, model = torch.device("cuda"), Model(family=family, width=64, layers=3, heads=2)
    learner = Learner(build(model, 50, 64, 0), Train(batch=8, lr=1e-3), device, beside=True)
    plain = Learner(build(model, 50, 64, 0), Train(batch=8, lr=1e-3, compile=False), device)
    learner.warm_up(ROWS.flip(0), 8)
    losses = []
    for step in range(8):
        if step == 4 and learner._beside is not None:  # it may be ready before
            learner._beside.wait()
        pair = [one.update(one.accumulate(ROWS, 8), 1e-3).nats.item() for one in (learner, plain)]
        assert pair[0] == pytest.approx(pair[1], rel=2e-3)
        losses.append(pair[0])
    assert not learner.settling and losses[-1] < losses[0]
    scores = [one.score(ROWS, 8).nanmean().item() for one in (learner, plain)]
    assert scores[0] == pytest.approx(scores[1], rel=2e-3)


NO_COMPILER = """
import sys
import torch
from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.models.language_model import build
from shoestring.training import learner as module
from shoestring.training.learner import Learner
from shoestring.models.triton_kernels import load_kernels

found = []
module.load_kernels = lambda *given: found.append(load_kernels(*given))
rows = torch.arange(8 * 65).reshape(8, 65) % 50
learner = Learner(build(Model(family="llama", width=64, layers=3, heads=2), 50, 64, 0), Train(batch=8, lr=1e-3), torch.device("cuda"), beside=True)
learner._beside.passed = lambda: None
learner.warm_up(rows, 8)
assert found[0] >= 8, found
before = {name: tensor.clone() for name, tensor in learner.saved_tensors().items()}
learner.warm_up(rows, 8)
assert found[1] == 0, found
assert all(torch.equal(tensor, before[name]) for name, tensor in learner.saved_tensors().items())
losses = [learner.update(learner.accumulate(rows, 8), 1e-2).nats.item() for _ in range(6)]
assert losses[-1] < losses[0], losses
assert "torch._dynamo" not in sys.modules
"""  # noqa: E501


def test_before_layers_are_compiled_nothing_loads_the_compiler(tmp_path: Path) -> None:
    """Loading it takes seconds; kernels are all compiled by the step that is not made, which changes nothing."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "triton")}
    ended = subprocess.run([sys.executable, "-c", NO_COMPILER], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
