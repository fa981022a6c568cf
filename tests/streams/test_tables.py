"""Weights and alias tables: every one of the 2³² words is counted, none is drawn."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from shoestring.core.errors import DataError
from shoestring.streams import hmm, loops
from shoestring.streams.tables import Compact, alias_tables, quantise

UNIT = 2**32
TINY = 5e-324

probabilities = st.lists(
    st.one_of(st.floats(0, 1), st.sampled_from([0.0, TINY, 2.0**-33, 2.0**-32, 1e-9, 0.5, 1.0])),
    min_size=1,
    max_size=40,
)


@st.composite
def weights_of_rows(draw: st.DrawFn, unit: int = UNIT) -> list[int]:
    """Whole numbers that sum to the unit; zeros, ones and all but everything are common."""
    near = st.sampled_from([0, 1, 2, unit // 2, unit - 2, unit - 1, unit])
    cuts = draw(st.lists(st.one_of(st.integers(0, unit), near, st.integers(0, 50)), max_size=40))
    edges = [0, *sorted(cuts), unit]
    return [end - begin for begin, end in pairwise(edges)]


def scalar_alias(weights: list[int]) -> list[tuple[int, int]]:
    """Threshold and alias of every cell of a row; of cells too empty and of cells too full, the last is taken first."""
    cells = len(weights)
    firsts = [-(-cell * UNIT // cells) for cell in range(cells + 1)]
    room = [end - begin for begin, end in pairwise(firsts)]
    left, table = list(weights), [(0, cell) for cell in range(cells)]
    small = [cell for cell in range(cells) if left[cell] < room[cell]]
    large = [cell for cell in range(cells) if left[cell] > room[cell]]
    while small:
        low, high = small.pop(), large.pop()
        table[low] = (left[low] * cells, high)
        left[high] -= room[low] - left[low]
        if left[high] < room[high]:
            small.append(high)
        elif left[high] > room[high]:
            large.append(high)
    return table


def scalar_draw(table: list[tuple[int, int]], word: int) -> int:
    """The outcome of a word in a row of `scalar_alias`."""
    cell, place = divmod(word * len(table), UNIT)
    threshold, alias = table[cell]
    return cell if place < threshold else alias


def parts(entries: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Thresholds and aliases."""
    return entries >> 32 & 0xFFFFFFFF, entries & 0xFFFF


def edges(entries: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """For every cell of a row: its first word, the first whose place is not below the threshold, and its last + 1."""
    cells = len(entries)
    begins = np.arange(cells + 1, dtype=np.int64) * UNIT
    firsts = -(-begins // cells)
    beyond = -(-(begins[:-1] + parts(entries)[0]) // cells)
    return firsts[:-1], np.minimum(beyond, firsts[1:]), firsts[1:]


def words_of_outcomes(entries: NDArray[np.int64]) -> list[int]:
    """How many of all words give each outcome of a row, by arithmetic."""
    first, beyond, end = edges(entries)
    found = beyond - first  # words that keep their cell
    np.add.at(found, parts(entries)[1], end - beyond)
    return found.tolist()


def telling_words(entries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Words on both sides of everything that decides: the ends of all cells and their thresholds."""
    near = np.concatenate([edge + offset for edge in edges(entries) for offset in (-2, -1, 0, 1)])
    return np.unique(near[(near >= 0) & (near < UNIT)])


@njit
def _each(entries: Any, rows: Any, cells: Any, words: Any) -> Any:  # pragma: no cover
    found = np.empty(len(words), np.int64)
    for i in range(len(words)):
        found[i] = loops._draw(entries, rows[i], cells, words[i])
    return found


def draw_in_a_loop(entries: NDArray[np.int64], row: int, words: NDArray[np.int64]) -> NDArray[np.int64]:
    rows = np.full(len(words), row, dtype=np.uint64)
    flat = np.ascontiguousarray(entries).reshape(-1).view(np.uint64)
    found: NDArray[np.int64] = _each(flat, rows, np.uint64(entries.shape[1]), words.astype(np.uint64))
    return found


def draw_compactly(entries: NDArray[np.int64], row: int, words: NDArray[np.int64]) -> NDArray[np.int64]:
    """By the rule of `Compact`, in plain numpy."""
    compact = Compact.of(torch.from_numpy(entries))
    heads, tails = compact.heads.numpy().view(np.uint32)[row].astype(np.int64), compact.tails.numpy()[row].astype(int)
    cell, place = np.divmod(words * entries.shape[1], UNIT)
    above, threshold, low = place >> compact.bits, heads[cell] >> compact.bits, (1 << compact.bits) - 1
    mine = (above < threshold) | ((above == threshold) & (place & low < tails[cell]))
    return np.where(mine, cell, heads[cell] & low)


def draw_in_torch(entries: NDArray[np.int64], row: int, words: NDArray[np.int64]) -> NDArray[np.int64]:
    drawn = torch.from_numpy(words)
    return hmm.draw(torch.from_numpy(entries), torch.full_like(drawn, row), drawn).numpy()


@settings(deadline=None)
@given(probabilities)
@example([1 / 3] * 3)
@example([1.0] + [TINY] * 30)
@example([0.1] * 10)
def test_weights_are_within_one_unit_of_their_probabilities(values: list[float]) -> None:
    total = sum(map(Fraction, values))
    assume(total >= Fraction(1, 1000))
    shares = np.array(values) / float(total)
    (found,) = quantise("row", shares).tolist()
    assert sum(found) == UNIT
    exact = sum(map(Fraction, shares.tolist()))
    for weight, share in zip(found, shares.tolist()):
        assert abs(Fraction(weight, UNIT) - Fraction(share) / exact) < Fraction(1, UNIT)
        assert weight == 0 if share == 0 else weight >= 0


@settings(deadline=None)
@given(weights_of_rows(unit=2**40))
@example([2**40 // 4 + 1] * 3 + [2**40 // 4 - 3])
@example([2**40 - 255] + [1] * 255)
@example([2**7] * 4 + [2**40 - 2**9])
def test_units_left_over_go_to_the_largest_remainders_and_lower_cells(shares: list[int]) -> None:
    """Probabilities k · 2⁻⁴⁰ are exact, and so are their remainders."""
    expected = [share // 256 for share in shares]
    ranked = sorted(range(len(shares)), key=lambda cell: -(shares[cell] % 256))
    for cell in ranked[: UNIT - sum(expected)]:
        expected[cell] += 1
    assert quantise("row", np.array(shares) / 2**40).tolist() == [expected]


def test_rows_are_divided_by_their_sums() -> None:
    table = np.random.default_rng(0).dirichlet(np.full(7, 0.3), size=5)
    exact = quantise("table", table)
    assert exact.shape == (5, 7) and exact.dtype == np.int64
    assert exact.sum(1).tolist() == [UNIT] * 5
    near = quantise("table", table * (1 + 1e-7))
    assert np.abs(near - exact).max() <= 1
    assert near.sum(1).tolist() == [UNIT] * 5
    assert all(quantise("row", row).tolist() == [found] for row, found in zip(table, exact.tolist()))
    assert quantise("half", np.array([0.5, 0.5]) * (1 + 1e-7)).tolist() == [[UNIT // 2] * 2]


def test_as_many_outcomes_as_an_alias_can_name() -> None:
    assert quantise("row", np.full(2**16, 2.0**-16)).tolist() == [[2**16] * 2**16]
    with pytest.raises(DataError, match="row: 65,537 outcomes; a stream draws from at most 65,536"):
        quantise("row", np.full(2**16 + 1, 1 / (2**16 + 1)))
    with pytest.raises(DataError, match="row: 0 outcomes"):
        quantise("row", np.zeros((3, 0)))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0.5, -1e-300, 0.5], r"move\[1, 1\] = -1e-300 is not a probability"),
        ([0.75, -0.5, 0.75], r"move\[1, 1\] = -0.5 is not a probability"),
        ([0.5, 0.5, float("nan")], r"move\[1, 2\] = nan is not a probability"),
        ([float("inf"), 0.5, 0.5], r"move\[1, 0\] = inf is not a probability"),
        ([1e308, 1e308, 1e308], r"move\[1"),
        ([0.5, 0.5, 2e-6], r"move\[1\] sums to 1\.000002, not to 1; divide it by its sum"),
        ([0.5, 0.25, 0.125], r"move\[1\] sums to 0\.875, not to 1"),
        ([0.0, 0.0, 0.0], r"move\[1\] sums to 0, not to 1"),
    ],
)
def test_what_is_no_distribution_is_refused_by_its_place(row: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        quantise("move", np.array([[0.25, 0.25, 0.5], row]))


@settings(max_examples=100, deadline=None)
@given(weights_of_rows())
@example([UNIT])
@example([UNIT, 0])
@example([0, 0, UNIT])
@example([1] * 30 + [UNIT - 30])
@example([UNIT // 3, UNIT // 3, UNIT // 3 + 1])
@example([UNIT // 8] * 8)
@example([0, UNIT - 1, 1])
@example([UNIT // 5 + 1, *[UNIT // 5] * 4])
@example([UNIT // 7] * 3 + [UNIT // 7 + 1] * 4)
def test_each_outcome_has_exactly_as_many_words_as_its_weight(weights: list[int]) -> None:
    entries = alias_tables(np.array([weights]))
    assert words_of_outcomes(entries[0]) == weights
    thresholds, aliases = (part[0].tolist() for part in parts(entries))
    assert list(zip(thresholds, aliases)) == scalar_alias(weights)


@pytest.mark.parametrize("cells", [255, 256, 257, 10_007, 2**16 - 1, 2**16])
def test_large_tables_are_exact_as_well(cells: int) -> None:
    cuts = np.sort(np.random.default_rng(cells).integers(0, UNIT, cells - 1))
    weights = np.diff(cuts, prepend=0, append=UNIT)
    weights[: cells // 3] = 0
    weights[-1] += UNIT - weights.sum()
    entries = alias_tables(np.stack([weights, weights[::-1]]))
    assert words_of_outcomes(entries[0]) == weights.tolist()
    assert words_of_outcomes(entries[1]) == weights[::-1].tolist()


def test_counting_by_arithmetic_is_counting() -> None:
    """For cells as wide as this, all words of one."""
    weights = np.full(2**16, 2**16)
    weights[5], weights[6] = 2**16 - 1000, 2**16 + 1000
    entries = alias_tables(weights[None])
    drawn = draw_in_torch(entries, 0, np.arange(5 * 2**16, 6 * 2**16))
    assert np.bincount(drawn).tolist() == [0, 0, 0, 0, 0, 2**16 - 1000, 1000]
    first, beyond, end = (int(edge[5]) for edge in edges(entries[0]))
    assert (first, beyond, end) == (5 * 2**16, 6 * 2**16 - 1000, 6 * 2**16)


@pytest.mark.parametrize("cells", [1, 2, 3, 4, 5, 37, 256, 300, 2**16 - 1, 2**16])
def test_compact_tables_decide_as_full_ones_around_every_threshold(cells: int) -> None:
    rng = np.random.default_rng(cells)
    weights = quantise("rows", rng.dirichlet(np.full(cells, 0.5), size=2))
    entries = alias_tables(weights)
    compact = Compact.of(torch.from_numpy(entries))
    ties = {True: 0, False: 0}
    for row in range(2):
        words = telling_words(entries[row])
        drawn = draw_in_torch(entries, row, words)
        assert np.array_equal(draw_in_a_loop(entries, row, words), drawn)
        assert np.array_equal(draw_compactly(entries, row, words), drawn)
        table = list(zip(*(part[row].tolist() for part in parts(entries))))
        few = rng.permutation(len(words))[:2000]
        assert drawn[few].tolist() == [scalar_draw(table, word) for word in words[few].tolist()]
        cell, place = np.divmod(words * cells, UNIT)
        thresholds = parts(entries)[0][row][cell]
        tied = place >> compact.bits == thresholds >> compact.bits
        for keeps in (True, False):
            ties[keeps] += int((tied & ((place < thresholds) == keeps)).sum())
    if cells > 2:
        assert ties[False] > 0  # the branch that reads the tails
    if cells > 2 and cells & cells - 1:  # a power of two leaves nothing to them
        assert ties[True] > 0


@settings(max_examples=100, deadline=None)
@given(weights_of_rows())
def test_compact_tables_decide_as_full_ones_for_any_weights(weights: list[int]) -> None:
    entries = alias_tables(np.array([weights]))
    words = telling_words(entries[0])
    table = scalar_alias(weights)
    expected = [scalar_draw(table, word) for word in words.tolist()]
    assert draw_in_torch(entries, 0, words).tolist() == expected
    assert draw_in_a_loop(entries, 0, words).tolist() == expected
    assert draw_compactly(entries, 0, words).tolist() == expected


def test_compact_tables_hold_every_bit_of_the_full_ones() -> None:
    for cells in (1, 2, 3, 300, 2**16):
        weights = quantise("rows", np.random.default_rng(1).dirichlet(np.ones(cells), size=2))
        entries = torch.from_numpy(alias_tables(weights))
        heads, tails, bits = Compact.of(entries)
        assert (heads.dtype, tails.dtype) == (torch.int32, torch.uint16)
        low = (1 << bits) - 1
        whole = heads.long() & 0xFFFFFFFF
        assert torch.equal((whole & ~low | tails.long()) << 32 | whole & low, entries)
