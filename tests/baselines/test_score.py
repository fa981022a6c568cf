"""From losses to a record: each figure by its definition."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core.results import Evaluation
from shoestring.runs.evaluate import make_evaluation


@dataclass(frozen=True)
class Rate:
    nats: float = 1.5
    error: float = 0.1


@dataclass(frozen=True)
class Others:
    losses: dict[str, float] = field(default_factory=dict)
    by_position: dict[str, tuple[float, ...]] = field(default_factory=dict)
    rate: Rate | None = None


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 5).flatmap(
        lambda length: st.lists(st.lists(st.floats(0, 20), min_size=length, max_size=length), min_size=1, max_size=6)
    ),
    st.floats(0.1, 10),
)
def test_figures_follow_from_the_losses(losses: list[list[float]], bytes_per_token: float) -> None:
    found = make_evaluation(np.array(losses), 7, bytes_per_token, Others(losses={"uniform": 3.0}))
    flat = [loss for row in losses for loss in row]
    mean = math.fsum(flat) / len(flat)
    assert (found.step, found.rows, found.tokens) == (7, len(losses), len(flat))
    assert found.loss == pytest.approx(mean)
    assert found.perplexity == pytest.approx(math.e**mean)
    total_bytes = bytes_per_token * len(flat)
    assert found.bits_per_byte == pytest.approx(sum(math.log2(math.e) * loss for loss in flat) / total_bytes)
    assert found.loss_by_position == pytest.approx([math.fsum(column) / len(losses) for column in zip(*losses)])
    assert found.baselines == {"uniform": 3.0}


def test_a_uniform_guess_among_bytes_costs_eight_bits() -> None:
    found = make_evaluation(np.full((2, 3), math.log(256)), 0, 1.0, Others())
    assert found.bits_per_byte == pytest.approx(8)
    assert found.perplexity == pytest.approx(256)


def test_bits_per_byte_are_unknown_without_bytes() -> None:
    assert make_evaluation(np.ones((2, 3)), 0, None, Others()).bits_per_byte is None


def test_a_hopeless_loss_is_still_a_record() -> None:
    found = make_evaluation(np.full((1, 2), 5000.0), 0, 1.0, Others())
    assert math.isfinite(found.perplexity)
    assert Evaluation.from_dict(found.to_dict(), "here") == found


def test_only_predictions_count() -> None:
    losses = np.array([[1.0, 2.0, math.nan], [3.0, math.nan, math.nan]])
    found = make_evaluation(losses, 0, None, Others(), ~np.isnan(losses))
    assert (found.tokens, found.loss, found.loss_by_position) == (3, 2.0, (2.0, 2.0, None))
    assert Evaluation.from_dict(found.to_dict(), "here") == found


def test_what_others_know_is_kept() -> None:
    found = make_evaluation(np.ones((1, 2)), 0, None, Others({"oracle": 0.5}, {"oracle": (0.25, 0.75)}, Rate()))
    assert (found.entropy_rate, found.entropy_rate_error) == (1.5, 0.1)
    assert found.baselines_by_position == {"oracle": (0.25, 0.75)}
    assert Evaluation.from_dict(found.to_dict(), "here") == found
