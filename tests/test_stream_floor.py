"""The particle filter of `bench/stream_floor.py` has the loss of all permutations together."""

from __future__ import annotations

import itertools

import pytest
import torch
from benches import load_bench

from shoestring.baselines.oracle import oracle_log_probs
from shoestring.hmm.parameters import Parameters

STATES, SYMBOLS = 3, 4


def test_losses_are_those_of_every_permutation_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """−log p(token | tokens before) of the mixture over 24 permutations, each as likely as the others at first."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(1 + 2 * STATES, max(STATES, SYMBOLS), generator=generator, dtype=torch.float64) ** 3
    start, transition = rows[0, :STATES], rows[1 : 1 + STATES, :STATES]
    emission = rows[1 + STATES :, :SYMBOLS]
    known = Parameters(start / start.sum(), *(table / table.sum(1, keepdim=True) for table in (transition, emission)))
    row = [2, 0, 0, 3, 2, 2, 0, 1, 3, 2, 0, 0, 2, 1]
    permutations = torch.tensor(list(itertools.permutations(range(SYMBOLS))))
    shown = torch.tensor([row]).expand(len(permutations), -1)
    joint = oracle_log_probs(known, shown, permutations).cumsum(1).logsumexp(0) - torch.tensor(24.0).log()
    exact = -(joint[1:] - joint[:-1])
    torch.manual_seed(0)
    found = torch.tensor(load_bench("stream_floor", monkeypatch).losses(known, row, 50_000), dtype=torch.float64)
    torch.testing.assert_close(found, exact, rtol=0, atol=0.02)
