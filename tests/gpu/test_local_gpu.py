"""Local steps on two GPUs over NCCL: the averages are those of two learners that are averaged by hand."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing

sys.path.append(str(Path(__file__).parents[1] / "training"))
from test_local import by_hand, settings_of, take_steps

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")]


def learn(rank: int, port: int, results: Any) -> None:
    """A worker on its own GPU: its θ in the end, and the bytes that it sent."""
    import os

    from group_jobs import make

    from shoestring.parallel.members import Members
    from shoestring.parallel.process_group import join
    from shoestring.training.local import Average

    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in ranks.items()} | {"MASTER_ADDR": "127.0.0.1"}
    group = join(torch.device("cuda"))
    members, found = Members(group), {}
    for bits in (32, 8):
        learner = make(group)
        average = Average(learner.optimizer.masters, settings_of(1, bits), group)
        take_steps(learner, average, 0)
        found[bits] = {name: tensor.cpu().numpy() for name, tensor in average.model.items()}, average.sent_bytes
    members.close()
    results.put((rank, found))


def test_averages_over_nccl_are_those_made_by_hand() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    started = [context.Process(target=learn, args=(rank, port, results)) for rank in range(2)]
    for process in started:
        process.start()
    told = dict(results.get() for _ in started)
    for process in started:
        process.join(60)
    theta, _, numbers = by_hand(1)
    for bits, tolerance in ((32, 1e-4), (8, 2e-2)):
        (first, sent), (second, same_sent) = told[0][bits], told[1][bits]
        assert sent == same_sent
        assert bits < 32 or sent == 4 * sum(numbers)
        for name, tensor in theta.items():
            assert (first[name] == second[name]).all(), "there is one model"
            torch.testing.assert_close(torch.from_numpy(first[name]).double(), tensor, rtol=0, atol=tolerance)
