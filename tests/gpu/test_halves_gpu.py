"""A worker's steps on a GPU with the noise of its share, measured between halves: those of a CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "training"))
from group_jobs import SOURCES, make

from shoestring.parallel.process_group import ProcessGroup
from shoestring.training.optimizers.batch_moments import NOISE

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]
STEPS, ROWS = 8, 8
WORKERS = [2, 2, 2, 2, 3, 3, 3, 3]
"""At each step: one comes."""


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("per_device", [2, 4, 8])
def test_weights_and_noise_are_those_of_a_cpu(per_device: int, source: str) -> None:
    found = {}
    for kind in ("cpu", "cuda"):
        device = torch.device(kind)
        learner = make(ProcessGroup(0, 2, device), precision="fp32")
        learner.summed_over = ProcessGroup(0, 1, device)
        for step in range(STEPS):
            learner.optimizer.shares = WORKERS[step]
            rows = SOURCES[source]().rows(torch.arange(ROWS * step, ROWS * step + ROWS).numpy() % 40)
            learner.update(learner.accumulate(rows, per_device), 1e-2)
        found[kind] = learner.optimizer.masters, learner.optimizer.tensors()
    if source == "plain":  # rows with segments are not recorded
        assert learner._recordings is not None and learner._recordings._recording is not None
        updates = learner._recordings._recording._updates
        assert updates[(2, True)] is not None and updates[(3, True)] is not None
    for name, weight in found["cpu"][0].items():
        key = f"optimizer/{NOISE}/{name}"
        here, there = (found[kind][1][key] for kind in ("cpu", "cuda"))
        torch.testing.assert_close(there.cpu(), here, rtol=1e-3, atol=1e-9)
        met = found["cpu"][1][f"optimizer/exp_avg_sq/{name}"] > 1e-10  # elsewhere rounding decides the sign of a step
        other = found["cuda"][0][name].detach().cpu()
        torch.testing.assert_close(other[met], weight.detach()[met], rtol=0, atol=1e-3)
