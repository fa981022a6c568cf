"""Random shift: all rows of an epoch start at one offset, another each epoch, and no token is lost to it for good."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core.errors import DataError
from shoestring.data.windows import epochs_to_read_every_latent, row_count, row_start, shifted_starts

checked = settings(max_examples=100, deadline=None)


@checked
@given(st.integers(2, 200), st.integers(1, 60), st.integers(0, 2**63 - 1), st.integers(0, 1000))
def test_every_epoch_has_a_row_and_loses_less_than_one_to_the_shift(
    tokens: int, length: int, seed: int, epoch: int
) -> None:
    if tokens < length + 1:
        with pytest.raises(DataError, match=f"one row needs {length + 1} tokens, and there are {tokens}"):
            shifted_starts(tokens, length, seed, epoch)
        return
    offset = shifted_starts(tokens, length, seed, epoch)
    assert 0 <= offset < length
    assert offset == shifted_starts(tokens, length, seed, epoch)
    rows = row_count(tokens, length, offset)
    assert rows >= 1
    assert row_count(tokens, length, 0) - rows in (0, 1)


@checked
@given(st.integers(0, 200), st.integers(1, 60), st.data())
def test_rows_are_those_of_slicing_the_stream_from_the_offset(tokens: int, length: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, length - 1))
    starts = [at for at in range(offset, tokens, length) if at + length + 1 <= tokens]
    rows = row_count(tokens, length, offset)
    assert row_start(np.arange(rows), length, offset).tolist() == starts


def test_the_rows_without_a_shift_are_those_of_a_store() -> None:
    assert row_count(1_000, 64, 0) == (1_000 - 1) // 64
    assert row_start(np.array([5, 0]), 64, 0).tolist() == [320, 0]


def test_offsets_differ_by_epoch_and_seed_and_are_spread_evenly() -> None:
    offsets = np.array([[shifted_starts(10**9, 100, seed, epoch) for epoch in range(200)] for seed in range(20)])
    assert len({tuple(row) for row in offsets.tolist()}) == 20
    counts = np.bincount(offsets.ravel(), minlength=100)
    chi_square = ((counts - 40) ** 2 / 40).sum()
    assert (chi_square - 99) / (2 * 99) ** 0.5 < 5


def test_an_offset_does_not_depend_on_the_size_of_a_long_stream() -> None:
    assert len({shifted_starts(tokens, 100, 3, 7) for tokens in (200, 10**4, 10**9)}) == 1


@pytest.mark.parametrize(("length", "latents"), [(8, 8), (8, 4), (12, 3), (10, 4), (7, 1)])
def test_every_token_is_predicted_once_in_expectation(length: int, latents: int) -> None:
    tokens = 20 * length
    predicted = np.zeros(tokens)
    for offset in range(length):
        ends = row_start(np.arange(row_count(tokens, length, offset)), length, offset) + length
        for end in ends.tolist():
            predicted[end - latents + 1 : end + 1] += 1
    inner = predicted[2 * length : -2 * length] / length
    epochs = epochs_to_read_every_latent(length, latents)
    assert (inner == latents / length).all()
    assert (epochs - 1) * inner[0] < 1 <= epochs * inner[0] + 1e-9


def test_epochs_are_rounded_up() -> None:
    assert epochs_to_read_every_latent(4096, 1024) == 4
    assert epochs_to_read_every_latent(1000, 300) == 4
    assert epochs_to_read_every_latent(512, 512) == 1


@pytest.mark.parametrize("latents", [0, -1, 9])
def test_latents_that_do_not_fit_are_refused(latents: int) -> None:
    with pytest.raises(DataError, match=f"{latents} latents do not fit a row of 8"):
        epochs_to_read_every_latent(8, latents)


@pytest.mark.parametrize(("length", "offset"), [(8, 8), (8, -1), (0, 0)])
def test_offsets_outside_a_row_are_refused(length: int, offset: int) -> None:
    with pytest.raises(DataError, match=f"an offset of {offset} is not in a row of {length}"):
        row_count(100, length, offset)
    with pytest.raises(DataError, match=f"an offset of {offset} is not in a row of {length}"):
        row_start(np.arange(3), length, offset)


def test_a_row_without_predictions_is_refused() -> None:
    with pytest.raises(DataError, match="a row of 0 predictions"):
        shifted_starts(100, 0, 0, 0)
