"""Random offset: all rows of an epoch start at one offset, another each epoch, and no token is lost to it for good."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.data.pack.order import epoch_offset

checked = settings(max_examples=100, deadline=None)


def starts_of(tokens: int, length: int, offset: int) -> list[int]:
    """Where the rows start, by slicing the stream from the offset."""
    return [at for at in range(offset, tokens, length) if at + length + 1 <= tokens]


@checked
@given(st.integers(2, 200), st.integers(1, 60), st.integers(0, 2**63 - 1), st.integers(0, 1000))
def test_every_epoch_has_a_row_and_loses_less_than_one_to_the_offset(
    tokens: int, length: int, seed: int, epoch: int
) -> None:
    tokens = max(tokens, length + 1)
    offset = epoch_offset(tokens, length, seed, epoch)
    assert 0 <= offset < length
    assert offset == epoch_offset(tokens, length, seed, epoch)
    rows = len(starts_of(tokens, length, offset))
    assert rows >= 1
    assert len(starts_of(tokens, length, 0)) - rows in (0, 1)
    assert rows >= max(1, (tokens - length) // length), "as many as a store counts on"


def test_offsets_differ_by_epoch_and_seed_and_are_spread_evenly() -> None:
    offsets = np.array([[epoch_offset(10**9, 100, seed, epoch) for epoch in range(200)] for seed in range(20)])
    assert len({tuple(row) for row in offsets.tolist()}) == 20
    counts = np.bincount(offsets.ravel(), minlength=100)
    chi_square = ((counts - 40) ** 2 / 40).sum()
    assert (chi_square - 99) / (2 * 99) ** 0.5 < 5


def test_an_offset_does_not_depend_on_the_size_of_a_long_stream() -> None:
    assert len({epoch_offset(tokens, 100, 3, 7) for tokens in (200, 10**4, 10**9)}) == 1


@pytest.mark.parametrize(("length", "latents"), [(8, 8), (8, 4), (12, 3), (10, 4), (7, 1)])
def test_every_token_is_predicted_equally_often_over_all_offsets(length: int, latents: int) -> None:
    tokens = 20 * length
    predicted = np.zeros(tokens)
    for offset in range(length):
        for start in starts_of(tokens, length, offset):
            end = start + length
            predicted[end - latents + 1 : end + 1] += 1
    inner = predicted[2 * length : -2 * length] / length
    assert (inner == latents / length).all()
