"""The loss that a plan expects, by runs whose law is known; and the epoch after which it is expected to turn."""

import math
import random

import pytest

from shoestring.planning.expect import PastLoss, expected_loss, loss_lines


def test_without_runs_nothing_is_expected() -> None:
    assert expected_loss([], 1e6, 1e8) is None
    assert loss_lines(None, 0) == []


def test_the_same_run_again_is_expected_to_end_alike() -> None:
    found = expected_loss([PastLoss(1e6, 1e8, 1.5)], 1e6, 1e8)
    assert found is not None
    assert found.loss == pytest.approx(1.5, rel=0.01)
    assert found.low < 1.5 < found.high
    many = expected_loss([PastLoss(1e6, 1e8, 1.5)] * 8, 1e6, 1e8)
    assert many is not None and many.high - many.low < found.high - found.low
    (line,) = loss_lines(found, 1)
    assert line.value == "about 1.5" and "1 finished run on" in line.reason


def test_a_longer_run_of_a_larger_model_is_expected_to_end_lower_with_less_certainty() -> None:
    near, far = (expected_loss([PastLoss(1e6, 1e8, 1.5)], 1e6 * by, 1e8 * by) for by in (1.0, 10.0))
    assert near is not None and far is not None
    assert far.loss < near.loss
    assert math.log(far.high / far.low) > 1.5 * math.log(near.high / near.low)


def test_intervals_hold_the_loss_of_a_planted_law() -> None:
    """1.2 + 300 N^-0.34 + 500 D^-0.28 (Hoffmann's exponents), with 3 % between settings; 200 plans after six runs."""
    draw = random.Random(3)

    def run() -> PastLoss:
        size, tokens = 10 ** draw.uniform(5.5, 7.5), 10 ** draw.uniform(7.5, 9.5)
        true = 1.2 + 300 * size**-0.34 + 500 * tokens**-0.28
        return PastLoss(size, tokens, true * math.exp(draw.gauss(0, 0.03)))

    held, errors = [], []
    for _ in range(200):
        past, next_run = [run() for _ in range(6)], run()
        found = expected_loss(past, next_run.parameters, next_run.predictions)
        assert found is not None
        held.append(found.low <= next_run.loss <= found.high)
        errors.append(abs(found.loss / next_run.loss - 1))
    assert sum(held) / len(held) >= 0.8
    assert sorted(errors)[100] < 0.1
