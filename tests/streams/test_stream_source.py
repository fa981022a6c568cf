"""A stream as a source of tokens: its rows in their order, whatever is made ahead."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoestring.streams import source
from shoestring.streams.hmm import HmmStream
from shoestring.streams.markov import MarkovSettings, MarkovStream
from shoestring.streams.source import HELDOUT, TEST, TRAIN, StreamRows

CPU = torch.device("cpu")


def hmm_stream(symbols: int = 9, length: int = 12, **options: Any) -> HmmStream:
    rng = np.random.default_rng(0)
    start, transition, emission = (rng.dirichlet(np.ones(n), size=m) for n, m in ((3, 1), (3, 3), (symbols, 3)))
    return HmmStream(start[0], transition, emission, seed=0, length=length, **options)


class Counted:
    """A stream that remembers what it was asked for, with rows that hold their own numbers."""

    length = 4

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def rows(self, first: int, count: int, device: torch.device | str = "cpu") -> Tensor:
        self.asked.append((first, count))
        return torch.arange(first, first + count)[:, None].expand(-1, self.length)


def test_steps_take_the_next_rows_and_no_row_twice() -> None:
    rows = StreamRows(hmm_stream(), TRAIN, CPU)
    steps = [rows.order(seed, step, 7) for step, seed in zip(range(20), itertools.cycle([0, 5]))]
    assert np.concatenate(steps).tolist() == list(range(140))
    assert all(step.dtype == np.int64 for step in steps)
    assert rows.order(0, 2**40, 512)[0] == 2**49


@pytest.mark.parametrize(
    "stream",
    [hmm_stream(), hmm_stream(symbols=300), MarkovStream(MarkovSettings(symbols=20), 0, 12)],
    ids=["uint8", "uint16", "markov"],
)
@pytest.mark.parametrize("first", [TRAIN, HELDOUT, TEST])
def test_rows_are_the_stream_s_from_its_part_on(
    stream: HmmStream | MarkovStream, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_AHEAD_BYTES", 12 * 50)
    rows = StreamRows(stream, first, CPU)
    found = rows.rows(np.arange(3, 40))
    assert found.dtype == torch.int64 and found.shape == (37, 12)
    assert torch.equal(found, stream.rows(first + 3, 37).long())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 120), max_size=8), min_size=1, max_size=6),
    st.sampled_from([0, 12, 12 * 7, 12 * 1000]),
)
def test_scattered_rows_are_found_with_any_block_ahead(batches: list[list[int]], ahead: int) -> None:
    stream = hmm_stream()
    whole = stream.rows(HELDOUT, 121).long()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "_AHEAD_BYTES", ahead)
        rows = StreamRows(stream, HELDOUT, CPU)
    for batch in batches:
        found = rows.rows(np.array(batch, dtype=np.int64))
        assert found.dtype == torch.int64 and found.shape == (len(batch), 12)
        assert torch.equal(found, whole[batch])


@pytest.mark.parametrize("ahead", [0, 4, 40, 400, 4000])
def test_steps_are_the_same_with_any_block_ahead(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_AHEAD_BYTES", ahead)
    stream = Counted()
    rows = StreamRows(stream, 1000, CPU)
    for step in range(30):
        found = rows.rows(rows.order(0, step, 6))
        assert found[:, 0].tolist() == list(range(1000 + step * 6, 1000 + step * 6 + 6))
    sizes = [count for _, count in stream.asked]
    assert sizes == sorted(sizes), "blocks grow"
    assert max(sizes) <= max(6, ahead // 4)


def test_a_block_is_made_once_and_runs_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_AHEAD_BYTES", 4 * 10)
    stream = Counted()
    rows = StreamRows(stream, 0, CPU)
    assert rows.rows(np.array([5, 6, 7, 9, 14, 5]))[:, 0].tolist() == [5, 6, 7, 9, 14, 5]
    assert stream.asked == [(5, 3), (9, 1), (14, 1), (5, 1)], "no block is made for rows here and there"
    assert rows.rows(np.arange(30))[:, 0].tolist() == list(range(30))
    assert stream.asked[4:] == [(0, 30)]
    rows.rows(np.arange(20, 25))
    rows.rows(np.arange(28, 31))
    assert [first for first, _ in stream.asked[5:]] == [28]


def test_no_rows_can_be_asked_for() -> None:
    rows = StreamRows(hmm_stream(), TRAIN, CPU)
    empty = rows.rows(np.array([], dtype=np.int64))
    assert empty.shape == (0, 12) and empty.dtype == torch.int64
    rows = StreamRows(hmm_stream(length=2**23 + 1), TRAIN, CPU)  # longer than what is made ahead
    assert rows.rows(np.array([2])).shape == (1, 2**23 + 1)


def test_parts_lie_apart_and_within_the_stream() -> None:
    assert 0 == TRAIN < HELDOUT < TEST < 2**63
    assert min(HELDOUT - TRAIN, TEST - HELDOUT, 2**63 - TEST) == 2**61
    assert all(part % 2**16 == 0 for part in (TRAIN, HELDOUT, TEST))  # parts begin at round numbers
    stream = hmm_stream(symbols=40)
    parts = torch.cat([stream.rows(part, 200) for part in (TRAIN, HELDOUT, TEST)])
    assert len(torch.unique(parts, dim=0)) == 600
    assert stream.rows(2**63 - 1, 1).shape == (1, 12)
