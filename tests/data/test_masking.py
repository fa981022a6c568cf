"""Masking: the shares that were asked for, the same for a row in any batch, another in each epoch, words kept whole."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoestring.core.errors import DataError
from shoestring.data.pack.masking import IGNORED, Masked, mask_rows

checked = settings(max_examples=60, deadline=None)
VOCAB = 100
MASK = 4
SPECIAL = (0, 1, 2, 3, MASK)
OPTIONS: dict[str, Any] = {"seed": 5, "epoch": 0, "vocab_size": VOCAB, "mask_id": MASK, "special_ids": SPECIAL[:4]}
WORD_STARTS = np.arange(VOCAB) % 2 == 1
"""Odd ids begin a word, even ones continue it."""


def some_ids(rows: int, length: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, VOCAB, (rows, length))


def mask(ids: NDArray[np.int64], rows: NDArray[np.int64] | None = None, **options: Any) -> Masked:
    return mask_rows(ids, np.arange(len(ids)) if rows is None else rows, **(OPTIONS | options))


def assert_share(hits: int, trials: int, share: float) -> None:
    """Within five standard deviations of a binomial."""
    assert abs(hits - trials * share) <= 5 * (trials * share * (1 - share)) ** 0.5, (hits, trials, share)


def words_of(row: list[int]) -> list[list[int]]:
    """The positions of each word of a row, token by token."""
    words: list[list[int]] = []
    inside = False
    for at, token in enumerate(row):
        if token in SPECIAL:
            inside = False
            continue
        if WORD_STARTS[token] or not inside:
            words.append([])
        words[-1].append(at)
        inside = True
    return words


@pytest.mark.parametrize("share", [0.15, 0.4, 0.01])
def test_shares_are_those_asked_for(share: float) -> None:
    ids = some_ids(600, 512)
    inputs, targets = mask(ids, share=share)
    chosen = targets != IGNORED
    eligible = ~np.isin(ids, SPECIAL)
    assert_share(int(chosen.sum()), int(eligible.sum()), share)
    masked, same = inputs[chosen] == MASK, inputs[chosen] == ids[chosen]
    plain = VOCAB - len(SPECIAL)
    assert_share(int(masked.sum()), int(chosen.sum()), 0.8)
    assert_share(int(same.sum()), int(chosen.sum()), 0.1 + 0.1 / plain)
    assert_share(int((~masked & ~same).sum()), int(chosen.sum()), 0.1 * (plain - 1) / plain)


def test_no_position_and_no_row_is_favoured() -> None:
    ids = np.full((2_000, 100), 50)
    chosen = mask(ids).targets != IGNORED
    for axis, trials in ((0, 2_000), (1, 100)):
        counts = chosen.sum(axis=axis)
        deviations = (counts - 0.15 * trials) / (0.15 * 0.85 * trials) ** 0.5
        assert deviations.var() == pytest.approx(1, abs=5 * (2 / len(counts)) ** 0.5)
    for one, other in ((chosen[:, 1:], chosen[:, :-1]), (chosen[1:], chosen[:-1])):
        assert_share(int((one & other).sum()), one.size, 0.15**2)


def test_random_ids_are_spread_over_all_that_are_not_special() -> None:
    ids = np.full((4_000, 128), 50)
    inputs, _ = mask(ids)
    counts = np.bincount(inputs[(inputs != 50) & (inputs != MASK)], minlength=VOCAB)
    assert counts[list(SPECIAL)].sum() == 0
    found = np.delete(counts, [*SPECIAL, 50])
    assert len(found) == 94
    chi_square = ((found - found.mean()) ** 2 / found.mean()).sum()
    assert abs(chi_square - 93) / (2 * 93) ** 0.5 < 5


@checked
@given(st.integers(0, 30), st.integers(0, 40), st.integers(0, 9), st.booleans())
def test_targets_are_the_originals_and_the_rest_is_left_alone(rows: int, length: int, seed: int, words: bool) -> None:
    ids = some_ids(rows, length, seed)
    before = ids.copy()
    inputs, targets = mask(ids, word_starts=WORD_STARTS if words else None)
    assert (ids == before).all()
    assert inputs.shape == targets.shape == ids.shape
    assert inputs.dtype == targets.dtype == np.int64
    chosen = targets != IGNORED
    assert (targets[chosen] == ids[chosen]).all()
    assert (inputs[~chosen] == ids[~chosen]).all()
    assert not np.isin(targets[chosen], SPECIAL).any()
    assert not np.isin(inputs[chosen], SPECIAL[:4]).any()


@checked
@given(st.permutations(range(12)), st.integers(1, 12), st.booleans())
def test_a_row_is_masked_the_same_in_any_batch(order: list[int], taken: int, words: bool) -> None:
    ids, numbers = some_ids(12, 50), np.arange(12) * 1_000_003
    starts = WORD_STARTS if words else None
    whole = mask(ids, numbers, word_starts=starts)
    picked = np.array(order[:taken])
    part = mask(ids[picked], numbers[picked], word_starts=starts)
    assert (part.inputs == whole.inputs[picked]).all()
    assert (part.targets == whole.targets[picked]).all()


def test_a_longer_row_begins_as_a_shorter_one() -> None:
    ids = some_ids(20, 64)
    assert (mask(ids[:, :40]).inputs == mask(ids).inputs[:, :40]).all()


def test_patterns_differ_by_epoch_seed_and_row_and_come_again() -> None:
    ids = np.full((50, 200), 50)
    found = [mask(ids, seed=seed, epoch=epoch).targets != IGNORED for seed in range(3) for epoch in range(3)]
    patterns = {row.tobytes() for chosen in found for row in chosen}
    assert len(patterns) == 3 * 3 * 50
    for one, other in pairwise(found):
        assert_share(int((one & other).sum()), one.size, 0.15**2)
    assert (mask(ids, seed=1, epoch=1).targets == mask(ids, seed=1, epoch=1).targets).all()


def test_large_row_numbers_have_patterns_of_their_own() -> None:
    numbers = np.array([0, 2**31, 2**32, 2**62, 2**63 - 1])
    targets = mask(np.full((5, 200), 50), numbers).targets
    assert len({row.tobytes() for row in targets}) == 5


@pytest.mark.parametrize("share", [0.15, 0.5])
def test_words_are_chosen_whole(share: float) -> None:
    ids = some_ids(800, 256)
    inputs, targets = mask(ids, share=share, word_starts=WORD_STARTS)
    words = chosen_words = 0
    for row, chosen in zip(ids.tolist(), (targets != IGNORED).tolist()):
        for word in words_of(row):
            states = {chosen[at] for at in word}
            assert len(states) == 1
            words += 1
            chosen_words += states == {True}
    assert_share(chosen_words, words, share)
    eligible = int((~np.isin(ids, SPECIAL)).sum())
    assert int((targets != IGNORED).sum()) / eligible == pytest.approx(share, rel=0.03)
    picked = inputs[targets != IGNORED]
    assert_share(int((picked == MASK).sum()), len(picked), 0.8)


def test_a_special_id_ends_a_word() -> None:
    ids = np.tile([50, 0], (100, 200))
    chosen = mask(ids, word_starts=WORD_STARTS).targets[:, ::2] != IGNORED
    assert_share(int((chosen[:, 1:] & chosen[:, :-1]).sum()), chosen[:, 1:].size, 0.15**2)


def test_words_of_one_token_are_chosen_as_tokens_are() -> None:
    ids = some_ids(50, 60)
    every = np.ones(VOCAB, dtype=bool)
    assert (mask(ids, word_starts=every).inputs == mask(ids).inputs).all()


def test_rows_with_nothing_to_choose_are_left_alone() -> None:
    ids = np.array([[0, 1, 2, 3, MASK] * 4, [50] * 20])
    inputs, targets = mask(ids, share=1.0, word_starts=WORD_STARTS)
    assert (inputs[0] == ids[0]).all()
    assert (targets[0] == IGNORED).all()
    assert (targets[1] == 50).all()


@pytest.mark.parametrize("shape", [(0, 10), (3, 0)])
def test_no_tokens_are_masked_to_none(shape: tuple[int, int]) -> None:
    ids = np.zeros(shape, dtype=np.int64)
    assert mask(ids).inputs.shape == mask(ids, word_starts=WORD_STARTS).targets.shape == shape


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask_id": VOCAB}, "ids 0 to 100 are not all in the vocabulary"),
        ({"special_ids": (-1,)}, "ids -1 to 4 are not all in the vocabulary"),
        ({"ids": np.array([[1, VOCAB]])}, "ids 0 to 100 are not all in the vocabulary"),
        ({"ids": np.array([[1, -2]])}, "ids -2 to 1 are not all in the vocabulary"),
        ({"special_ids": range(VOCAB)}, "all 100 ids are special"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], message: str) -> None:
    arguments = {"ids": np.array([[1, 50, 60]]), "row_numbers": np.array([0])} | OPTIONS | changes
    with pytest.raises(DataError, match=message):
        mask_rows(**arguments)
