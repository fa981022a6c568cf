"""Dropout in steps that are recorded as CUDA graphs: other masks in every replay, the same for the same seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.models.batch import Batch
from shoestring.models.language_model import build
from shoestring.training.learner import Learner

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

VOCABULARY, LENGTH, ROWS = 50, 64, 8


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("family", ["llama", "swift", "gpt2"])
@pytest.mark.parametrize(
    "rates",
    [
        {"dropout": 0.5},
        {"dropout": 0.5, "attention_dropout": 0.0},
        {"attention_dropout": 0.5},
        {"output_dropout": 0.5},
        {"word_dropout": 0.5},
        {"dropout": 0.3, "attention_dropout": 0.1, "output_dropout": 0.4, "word_dropout": 0.1},
    ],
    ids=lambda rates: "-".join(rates),
)
def test_replays_have_masks_of_their_own(family: str, compiled: bool, rates: dict[str, Any]) -> None:
    model = Model(family=family, width=64, layers=3, heads=2, **rates)
    learner = Learner(
        build(model, VOCABULARY, LENGTH, 0), Train(batch=ROWS, lr=1e-2), torch.device("cuda"), compiled=compiled
    )
    rows = Batch(torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(0)))

    def nats(seed: int) -> float:
        torch.cuda.manual_seed(seed)
        return learner.update(learner.accumulate(rows, ROWS), 0.0).nats.item()

    for seed in range(4):
        nats(seed)
    assert learner._recordings is not None and learner._recordings._recording is not None
    losses = [nats(seed) for seed in range(10, 30)]
    assert len(set(losses)) == len(losses)
    assert [nats(seed) for seed in range(10, 30)] == losses
    score = Learner(
        build(model, VOCABULARY, LENGTH, 0), Train(batch=ROWS, lr=1e-2, compile=False), torch.device("cuda")
    )
    plain = []
    for seed in range(20):
        torch.cuda.manual_seed(seed)
        plain.append(score.accumulate(rows, ROWS).nats.item())
    both = torch.tensor([losses, plain]).std(1)
    assert 0.3 < float(both[0] / both[1]) < 3, "masks vary as without recordings"
