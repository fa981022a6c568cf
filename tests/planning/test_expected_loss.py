"""The loss that a plan expects, by runs whose law is known; and the epoch after which it is expected to turn."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from test_make import make, with_documents

from shoestring.core.records import Cost
from shoestring.planning.expect import TURN_FACTOR, PastLoss, expected_loss, loss_lines, turn_epochs, turn_lines


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


MEASURED = [  # parameters, positions of an epoch, epochs at the lowest held-out loss
    (123_584, 16_320, 13.1),
    (636_544, 16_320, 9.5),
    (636_544, 49_088, 8.8),
    (4_900_000, 7_000_000, 9.6),
]


@pytest.mark.parametrize(("parameters", "unique", "epochs"), MEASURED)
def test_the_turn_is_near_what_was_measured(parameters: float, unique: float, epochs: float) -> None:
    turn = turn_epochs(parameters, unique)
    assert turn is not None
    assert abs(math.log(turn / epochs)) < math.log(TURN_FACTOR)


@pytest.mark.parametrize(("parameters", "unique"), [(21_792, 16_320), (21_792, 6_528), (1e8, 1e9)])
def test_nothing_is_said_where_no_run_turned_or_none_was_tried(parameters: float, unique: float) -> None:
    assert turn_epochs(parameters, unique) is None
    assert turn_lines(40.0, parameters, unique, "a text") == []


def test_many_epochs_of_a_small_text_are_expected_to_overfit() -> None:
    """The case of the first user: a network of 4.9 M parameters reads 7.3 MB 32 times."""
    (line,) = turn_lines(32.0, 4.9e6, 7.0e6, "7.3 MB")
    assert line.quantity == "overfitting"
    assert "32 epochs over 7.3 MB with 4.9M parameters: the held-out loss is expected to turn" in line.reason
    for change in ("more text", "smaller model", "model.dropout", "train.weight_decay", "budget.epochs"):
        assert change in line.reason
    assert turn_lines(3.0, 4.9e6, 7.0e6, "7.3 MB") == []


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({}, True),
        ({"model": {"dropout": 0.1}}, False),
        ({"model": {"family": "masked_lm"}}, False),
    ],
)
def test_a_plan_says_it_once_and_only_where_the_rule_was_measured(sections: dict[str, Any], said: bool) -> None:
    profile = replace(with_documents(50), cost=Cost(parameters={"mlp": 5_000_000}, forward_flops_per_token=1e6))
    few, many = (make({"epochs": epochs}, profile, **sections) for epochs in (2.0, 300.0))
    found = [line.quantity for line in many.lines if line.quantity in ("overfitting", "repetition")]
    assert found == (["overfitting"] if said else ["repetition"])
    assert not any(line.quantity == "overfitting" for line in few.lines)
