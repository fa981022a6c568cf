"""Standard errors of held-out losses: against a bootstrap over rows, and how often their intervals hold the truth."""

from __future__ import annotations

import numpy as np
import pytest

from shoestring.baselines.standard_error import mean_error
from shoestring.baselines.streams import Baselines
from shoestring.report.scores import with_error
from shoestring.runs.evaluate import make_evaluation

NONE = Baselines({"uniform": 3.0})


def rows_of(random: np.random.Generator, rows: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Losses whose rows differ in level and in the number of predictions, and which are predicted."""
    level = random.gamma(4.0, 0.5, size=(rows, 1))
    losses = level * random.gamma(2.0, 0.5, size=(rows, length))
    predicted = np.arange(length) < random.integers(1, length + 1, size=(rows, 1))
    return losses, predicted


def test_it_is_that_of_a_bootstrap_over_rows() -> None:
    random = np.random.default_rng(1)
    losses, predicted = rows_of(random, 200, 12)
    found = make_evaluation(losses, 1, 4.0, NONE, predicted)
    sums, counts = np.where(predicted, losses, 0.0).sum(axis=1), predicted.sum(axis=1)
    drawn = random.integers(0, 200, size=(4000, 200))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    assert found.loss_error == pytest.approx(means.std(), rel=0.06)
    assert found.bits_per_byte is not None and found.loss_error is not None
    assert found.bits_per_byte_error == pytest.approx(found.bits_per_byte * found.loss_error / found.loss)


def test_equal_rows_have_the_error_of_a_mean() -> None:
    losses = np.random.default_rng(2).random((50, 7))
    found = make_evaluation(losses, 1, None, NONE)
    assert found.loss_error == pytest.approx(losses.mean(axis=1).std(ddof=1) / np.sqrt(50))
    assert found.bits_per_byte_error is None


def test_intervals_hold_the_truth_as_often_as_they_should() -> None:
    """Also that the error of independent predictions would not: the test can fail."""
    random, held, naive, trials = np.random.default_rng(3), 0, 0, 1000
    for _ in range(trials):
        losses, predicted = rows_of(random, 120, 16)
        found = make_evaluation(losses, 1, None, NONE, predicted)
        assert found.loss_error is not None
        held += abs(found.loss - 2.0) < 1.96 * found.loss_error  # both factors are independent of the lengths
        each = losses[predicted]
        naive += abs(found.loss - 2.0) < 1.96 * each.std() / np.sqrt(len(each))
    assert 0.925 < held / trials < 0.97 and naive / trials < 0.8


def test_rows_without_a_prediction_do_not_count() -> None:
    sums, counts = np.array([1.0, 4.0, 0.0, 2.0]), np.array([2, 2, 0, 1])
    expected = mean_error(sums[[0, 1, 3]], counts[[0, 1, 3]])
    assert mean_error(sums, counts) == expected and expected is not None
    assert mean_error(sums[:1], counts[:1]) is None and mean_error(sums + np.inf, counts + 1) is None


def test_a_score_is_shown_with_its_error() -> None:
    assert (with_error(1.23456, 0.0123), with_error(1.23456, None)) == ("1.235 ± 0.012", "1.235")
