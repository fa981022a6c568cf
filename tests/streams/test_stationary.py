"""Stationary distributions: those of exact fractions, to the last digits, and of numpy's eigenvectors."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoestring.core.errors import DataError
from shoestring.hmm import sampling
from shoestring.streams.stationary import stationary

DIGITS = 1e-13


def exact(transition: NDArray[np.float64]) -> list[Fraction] | None:
    """p = p A and a sum of 1, by elimination of fractions; None if more than one p is a solution.

    A state stays with all that its other moves leave, as where a float has no room for it.
    """
    size = len(transition)
    moves = [[Fraction(cell) for cell in row] for row in transition.tolist()]
    for state, row in enumerate(moves):
        row[state] -= sum(row)  # A - 1
    rows = [[moves[i][j] for i in range(size)] + [Fraction(0)] for j in range(size)]
    rows.append([Fraction(1)] * (size + 1))
    for column in range(size):
        pivot = next((row for row in range(column, size + 1) if rows[row][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        lead = rows[column]
        for row, line in enumerate(rows):
            if row != column and line[column]:
                factor = line[column] / lead[column]
                rows[row] = [cell - factor * above for cell, above in zip(line, lead)]
    return [rows[i][size] / rows[i][i] for i in range(size)]


def agree(found: NDArray[np.float64], expected: list[Fraction]) -> None:
    """Every number to its last digits, however small, and zero for zero."""
    for ours, theirs in zip(found.tolist(), expected, strict=True):
        assert abs(Fraction(ours) - theirs) <= Fraction(DIGITS) * theirs


def chain(rows: list[list[int]]) -> NDArray[np.float64]:
    """Rows of whole numbers as probabilities that sum to 1 exactly."""
    unit = 2 ** max(sum(row) for row in rows).bit_length()
    table = np.array(rows, dtype=np.float64)
    np.fill_diagonal(table, table.diagonal() + unit - table.sum(1))
    return table / unit


@st.composite
def chains(draw: st.DrawFn) -> NDArray[np.float64]:
    size = draw(st.integers(1, 6))
    cell = st.one_of(st.just(0), st.integers(0, 9), st.sampled_from([0, 1, 2**30]))
    return chain(draw(st.lists(st.lists(cell, min_size=size, max_size=size), min_size=size, max_size=size)))


@settings(max_examples=100, deadline=None)
@given(chains())
@example(np.eye(1))
@example(np.eye(2))
@example(np.full((4, 4), 0.25))
@example(np.array([[0.0, 1.0], [1.0, 0.0]]))
def test_it_is_that_of_exact_fractions_where_there_is_one(transition: NDArray[np.float64]) -> None:
    expected = exact(transition)
    if expected is None:
        message = "classes that it cannot leave, so it has no single stationary distribution"
        with pytest.raises(DataError, match=message):
            stationary(transition)
    else:
        agree(stationary(transition), expected)


@pytest.mark.parametrize("size", [2, 10, 100])
@pytest.mark.parametrize("concentration", [0.05, 1.0])
def test_it_is_the_eigenvector_of_the_eigenvalue_one(size: int, concentration: float) -> None:
    transition = np.random.default_rng(size).dirichlet(np.full(size, concentration), size=size)
    values, vectors = np.linalg.eig(transition.T)
    vector = vectors[:, np.abs(values - 1).argmin()].real
    found = stationary(transition)
    np.testing.assert_allclose(found, vector / vector.sum(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(found @ transition, found, rtol=0, atol=1e-14)
    assert found.sum() == pytest.approx(1, abs=1e-15) and (found >= 0).all()
    np.testing.assert_allclose(found, sampling.stationary(torch.from_numpy(transition)).numpy(), rtol=0, atol=1e-10)


def test_states_that_are_left_for_ever_have_probability_zero() -> None:
    transition = np.array(
        [
            [0.5, 0.25, 0.25, 0.0, 0.0],
            [0.0, 0.5, 0.0, 0.5, 0.0],
            [0.25, 0.0, 0.5, 0.0, 0.25],
            [0.0, 0.0, 0.0, 0.75, 0.25],
            [0.0, 0.0, 0.0, 0.5, 0.5],
        ]
    )
    assert stationary(transition).tolist() == pytest.approx([0, 0, 0, 2 / 3, 1 / 3], abs=1e-15)
    assert stationary(transition)[:3].tolist() == [0.0] * 3
    back = transition[::-1, ::-1]
    assert stationary(back).tolist() == pytest.approx([1 / 3, 2 / 3, 0, 0, 0], abs=1e-15)
    absorbed = np.array([[1.0, 0.0, 0.0], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])
    assert stationary(absorbed).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("size", [2, 3, 7])
def test_a_cycle_is_even(size: int) -> None:
    assert stationary(np.roll(np.eye(size), 1, axis=1)).tolist() == pytest.approx([1 / size] * size, abs=1e-16)


def test_a_periodic_chain_that_is_not_even() -> None:
    transition = np.array([[0.0, 0.75, 0.25], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert stationary(transition).tolist() == pytest.approx([0.5, 0.375, 0.125], abs=1e-16)


@pytest.mark.parametrize(
    ("transition", "parts"),
    [
        (np.eye(3), 3),
        (np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]), 2),
        (np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), 2),
    ],
)
def test_a_chain_that_can_end_in_different_parts_is_refused(transition: NDArray[np.float64], parts: int) -> None:
    with pytest.raises(DataError, match=rf"the chain ends in one of {parts} classes that it cannot leave"):
        stationary(transition)


@pytest.mark.parametrize("link", [2.0**-20, 2.0**-50, 2.0**-200, 1e-300])
def test_parts_that_hardly_ever_meet_keep_every_digit(link: float) -> None:
    """To solve p = p A with subtractions would leave no digit of these."""
    transition = np.array(
        [[0.5, 0.5, link, 0.0], [0.5, 0.5, 0.0, 0.0], [3 * link, 0.0, 0.25, 0.75], [0.0, 0.0, 0.25, 0.75]]
    )
    expected = exact(transition)
    assert expected is not None
    agree(stationary(transition), expected)
    assert float(expected[0] / expected[2]) == pytest.approx(3)  # as many crossings here as there


def test_rare_states_keep_every_digit() -> None:
    """A walk that falls back far more often than it climbs."""
    up, size = 2.0**-30, 12
    transition = np.diag(np.full(size - 1, up), 1) + np.diag(np.full(size - 1, 0.5), -1)
    np.fill_diagonal(transition, 1 - transition.sum(1))
    expected = (up / 0.5) ** np.arange(size)
    np.testing.assert_allclose(stationary(transition), expected / expected.sum(), rtol=DIGITS)


def test_the_chain_is_left_as_it_was() -> None:
    transition = np.random.default_rng(0).dirichlet(np.ones(5), size=5)
    before = transition.copy()
    stationary(transition)
    assert np.array_equal(transition, before)
