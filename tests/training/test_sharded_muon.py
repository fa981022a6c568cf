"""Muon on matrices that three processes share: the losses and weights of one, and its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from group_jobs import ALONE, make, train, weights
from processes import together

from shoestring.parallel.process_group import ProcessGroup
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.optimizers.muon import ShardedMuon
from shoestring.training.schedule import Schedule

pytestmark = pytest.mark.slow
MUON: dict[str, Any] = {"optimizer": "muon", "ema": 0.9}
PARTS: dict[str, Any] = {
    "polar_express": True, "normalize_neurons": True, "cautious_decay": True, "momentum_warmup": 3, "embedding_lr": 2.0,
}  # fmt: skip
KINDS = {"plain": MUON, "all parts": MUON | PARTS}
STATE = State(recipe="r", data="d", schedule=Schedule(total=9), step=4)


def learn(group: ProcessGroup, folder: Path) -> dict[str, Any]:
    """Four steps, a checkpoint, and three more, here and after it was read."""
    found = {}
    for name, settings in KINDS.items():
        learner = make(group, shard=True, **settings)
        assert isinstance(learner.optimizer.optimizers[1], ShardedMuon)
        first = train(learner, "packed", 2, steps=4)
        checkpoints = Checkpoints(folder / name, 1)
        checkpoints.save(learner, STATE)
        rest = train(learner, "packed", 2, steps=7, first=4)
        again = make(group, shard=True, seed=9, **settings)
        checkpoints.restore(4, again, "r", "d")
        resumed = train(again, "packed", 2, steps=7, first=4)
        found[name] = first, rest, resumed, weights(learner), weights(again)
    return found


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("muon")
    return folder, together(learn, 3, folder)


@pytest.mark.parametrize("name", KINDS)
def test_three_processes_learn_what_one_does(name: str, learned: Any) -> None:
    folder, results = learned
    alone = make(ALONE, **KINDS[name])
    expected = torch.tensor(train(alone, "packed", 2, steps=4))
    read = make(ALONE, seed=9, **KINDS[name])
    Checkpoints(folder / name, 1).restore(4, read, "r", "d")
    for key, tensor in alone.optimizer.tensors().items():
        torch.testing.assert_close(read.optimizer.tensors()[key], tensor, rtol=0, atol=1e-4, msg=key)
    rest = torch.tensor(train(alone, "packed", 2, steps=7, first=4))
    after = torch.tensor(train(read, "packed", 2, steps=7, first=4))
    torch.testing.assert_close(after, rest, rtol=0, atol=1e-4)
    for result in results:
        first, onwards, resumed, whole, again = result[name]
        assert onwards == resumed, "as if it had never stopped"
        assert all(torch.equal(tensor, again[key]) for key, tensor in whole.items())
        torch.testing.assert_close(torch.tensor(first), expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(torch.tensor(onwards), rest, rtol=0, atol=1e-4)
        for key, tensor in weights(alone).items():
            torch.testing.assert_close(whole[key], tensor, rtol=0, atol=1e-3)
