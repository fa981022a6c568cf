"""On a GPU: steps that run before their layers are compiled, recorded too, learn as those after it."""

from __future__ import annotations

import pytest
import torch

from shoestring.core.sections import Model, Train
from shoestring.models.language_model import build
from shoestring.training.learner import Learner

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

ROWS = torch.arange(8 * 65).reshape(8, 65) % 50


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_steps_around_compiling_are_those_of_plain_layers(family: str) -> None:
    """Four steps as they are, the later ones replayed, then four compiled ones; a warm-up before changes nothing."""
    device, model = torch.device("cuda"), Model(family=family, width=64, layers=3, heads=2)
    learner = Learner(build(model, 50, 64, 0), Train(batch=8), device, beside=True)
    plain = Learner(build(model, 50, 64, 0), Train(batch=8, compile=False), device)
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
