"""Two processes: the losses, norms, weights and scores of one, with a copy of the model each or half of one."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import pytest
import torch
from group_jobs import ALONE, BATCH, LENGTH, PackedRows, make, train, weights
from processes import together
from torch import Tensor

from shoestring.parallel.process_group import ProcessGroup
from shoestring.training.loss_scale import FIRST

pytestmark = pytest.mark.slow
CASES = list(itertools.product(("plain", "packed"), (False, True), (1, 3)))
"""Source, whether the model is sharded, and rows at a time."""
STEPS = 12


def learn(group: ProcessGroup) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for source, shard, per_device in CASES:
        learner = make(group, shard, clip=0.5, ema=0.9)
        losses = train(learner, source, per_device, STEPS)
        found[source, shard, per_device] = losses, weights(learner)
    return found | {("overflow", shard): overflow_on_the_second(group, shard) for shard in (False, True)}


def overflow_on_the_second(group: ProcessGroup, shard: bool) -> tuple[list[tuple[bool, float]], dict[str, Tensor]]:
    """Steps in fp16, in which a gradient of the second process alone overflows in the second step."""
    learner, source, found = make(group, shard, precision="fp16"), PackedRows(), []
    assert learner.loss_scale is not None
    for step in range(3):
        tally = learner.accumulate(source.batch(source.order(1, step, BATCH).share(group.rank, group.world)), 2)
        if step == 1 and group.rank == group.world - 1:
            learner.optimizer.gradients()[0].fill_(math.inf)
        update = learner.update(tally, 1e-2)
        found.append((bool(update.skipped), learner.loss_scale.value.item()))
    return found, weights(learner)


@pytest.mark.parametrize("shard", [False, True])
def test_an_overflow_of_one_process_skips_the_step_of_all(shard: bool, learned: Any) -> None:
    expected, alone = overflow_on_the_second(ALONE, False)
    assert expected == [(False, FIRST), (True, FIRST / 2), (False, FIRST / 2)]
    for result in learned:
        steps, found = result["overflow", shard]
        assert steps == expected
        for name, tensor in alone.items():
            assert float((found[name] - tensor).abs().mean()) < 1e-3, "two steps of 0.01 were taken"


@pytest.fixture(scope="module")
def learned() -> list[dict[Any, Any]]:
    return together(learn, 2)


@cache
def learned_alone(source: str) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses and norms of one process, and its weights in the end."""
    alone = make(clip=0.5, ema=0.9)
    return torch.tensor(train(alone, source, 2, STEPS), dtype=torch.float64), weights(alone)


@pytest.mark.parametrize(("source", "shard", "per_device"), CASES)
def test_two_processes_learn_what_one_does(source: str, shard: bool, per_device: int, learned: Any) -> None:
    expected, alone = learned_alone(source)
    assert expected[:, 1].max() > 0.5, "clipping is part of the test"
    for result in learned:
        losses, found = result[source, shard, per_device]
        losses = torch.tensor(losses, dtype=torch.float64)
        torch.testing.assert_close(losses[:, 0], expected[:, 0], rtol=0, atol=1e-6)
        torch.testing.assert_close(losses[:, 1], expected[:, 1], rtol=1e-4, atol=1e-6)
        for name, tensor in alone.items():
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-4)
    assert learned[0][source, shard, per_device][0] == learned[1][source, shard, per_device][0]


def predictions_differ() -> bool:
    source = PackedRows()
    index = source.order(1, 0, BATCH)
    counts = {source.batch(index.share(rank, 2)).predictions() for rank in range(2)}
    return len(counts) == 2


def test_the_processes_of_a_packed_source_predict_unequally_often() -> None:
    assert predictions_differ(), "else a mean of means would pass for the mean"


def score(group: ProcessGroup) -> dict[Any, Any]:
    """Scores of batches of several sizes, fewer than processes too, and what an evaluation leaves behind."""
    found: dict[Any, Any] = {}
    for shard, rows in itertools.product((False, True), (1, 2, 5, 7)):
        learner = make(group, shard, double=True, ema=0.9)
        train(learner, "packed", 2, steps=3)
        batch = PackedRows().rows(torch.arange(rows).numpy())
        found[shard, rows] = learner.score(batch, 2), learner.log_probs(batch, 2)
        found[shard, rows, "after"] = train(learner, "packed", 2, steps=6, first=3)
    return found


@pytest.fixture(scope="module")
def scored() -> list[dict[Any, Any]]:
    return together(score, 3)


@cache
def scored_alone(rows: int) -> tuple[Tensor, Tensor, list[tuple[float, float]]]:
    learner = make(double=True, ema=0.9)
    train(learner, "packed", 2, steps=3)
    batch = PackedRows().rows(torch.arange(rows).numpy())
    losses, log_p = learner.score(batch, 2), learner.log_probs(batch, 2)
    return losses, log_p, train(learner, "packed", 2, steps=6, first=3)


@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 5, 7])
def test_three_processes_score_every_row_once(rows: int, shard: bool, scored: Any) -> None:
    losses, log_p, after = scored_alone(rows)
    for result in scored:
        assert result[shard, rows][0].shape == (rows, LENGTH)
        torch.testing.assert_close(result[shard, rows][0], losses, rtol=0, atol=1e-12, equal_nan=True)
        torch.testing.assert_close(result[shard, rows][1], log_p, rtol=0, atol=1e-6)
        again = torch.tensor(result[shard, rows, "after"])  # the weights are back in their places
        torch.testing.assert_close(again, torch.tensor(after), rtol=0, atol=1e-6)
