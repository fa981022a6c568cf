"""The learning rate by earlier runs: which comparisons count, and what they say."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoestring.core.recipe_file import build
from shoestring.planning.auto import Facts, choose
from shoestring.planning.earlier import Tried, by_earlier_runs

N, D = 1e6, 1e8


def runs(losses: dict[float, float], **fields: Any) -> list[Tried]:
    """Runs at factors of the law's rate."""
    base = Tried(lr=0.01, law=0.01, loss=1.0, n=N, d=D, setting="a")
    return [replace(base, lr=0.01 * factor, loss=loss, **fields) for factor, loss in losses.items()]


def test_the_best_of_three_rates_is_the_vertex_of_a_parabola() -> None:
    """Against numpy's fit, for rates at uneven distances."""
    losses = {0.3: 1.30, 0.6: 1.10, 2.0: 1.25}
    found = by_earlier_runs(runs(losses), N, D)
    a, b, _ = np.polyfit([math.log(rate) for rate in losses], list(losses.values()), 2)
    assert found is not None
    assert found.factor == pytest.approx(math.exp(-b / (2 * a)))
    assert "1.1 at × 0.6" in found.reason and "3 finished runs" in found.reason


def test_more_rates_than_three_are_read_around_the_best() -> None:
    three, five = {0.25: 1.2, 0.5: 1.1, 1.0: 1.15}, {0.01: 9.0, 0.25: 1.2, 0.5: 1.1, 1.0: 1.15, 4.0: 7.0}
    one, other = (by_earlier_runs(runs(losses), N, D) for losses in (three, five))
    assert one is not None and other is not None and one.factor == other.factor


def test_losses_of_several_seeds_are_averaged() -> None:
    noisy = [*runs({0.25: 1.2, 0.5: 1.0, 1.0: 1.1}), *runs({0.25: 1.2, 0.5: 1.2, 1.0: 1.1})]
    flat = runs({0.25: 1.2, 0.5: 1.1, 1.0: 1.1})
    one, other = (by_earlier_runs(tried, N, D) for tried in (noisy, flat))
    assert one is not None and other is not None and one.factor == pytest.approx(other.factor)


@pytest.mark.parametrize(
    ("losses", "factor"),
    [
        ({0.5: 1.0, 1.0: 1.1}, 0.5),  # the law's rate was tried, and is worse
        ({0.5: 1.0, 0.8: 1.1}, 0.5),  # it lies on the side where losses rise
        ({2.0: 1.0, 1.0: 1.1}, 2.0),
        ({0.05: 1.1, 0.1: 1.0}, None),  # it lies beyond all that were tried, on the side where they fall
        ({8.0: 1.1, 4.0: 1.0}, None),
        ({0.5: 1.0}, None),  # nothing to compare with
        ({0.5: 1.0, 0.51: 1.1}, None),  # the same rate twice
    ],
)
def test_an_end_of_the_rates_counts_where_the_law_lies_among_worse_ones(
    losses: dict[float, float], factor: float | None
) -> None:
    found = by_earlier_runs(runs(losses), N, D)
    assert (None if found is None else found.factor) == pytest.approx(factor)


@pytest.mark.parametrize("fields", [{"n": 5 * N}, {"n": N / 5}, {"d": 5 * D}, {"d": D / 5}, {"loss": math.inf}])
def test_runs_that_are_too_different_say_nothing(fields: dict[str, float]) -> None:
    near = runs({0.5: 1.0, 1.0: 1.1})
    assert by_earlier_runs([replace(run, **fields) for run in near], N, D) is None


def test_only_runs_of_one_setting_and_length_are_compared() -> None:
    """A longer run, or a larger model, is better whatever its rate."""
    assert by_earlier_runs([*runs({0.5: 1.0}, setting="a"), *runs({1.0: 1.1}, setting="b")], N, D) is None
    assert by_earlier_runs([*runs({0.5: 1.0}, d=2 * D), *runs({1.0: 1.1})], N, D) is None


def test_the_nearest_comparison_counts() -> None:
    far = runs({0.5: 0.1, 1.0: 0.2}, n=3 * N, setting="far")
    near = runs({2.0: 1.0, 1.0: 1.1}, n=1.2 * N, setting="near")
    found = by_earlier_runs([*far, *near], N, D)
    assert found is not None and found.factor == pytest.approx(2.0)


def test_a_rate_that_is_measured_changes_the_decay_that_goes_with_it() -> None:
    recipe = build({"budget": {"tokens": 1e8}, "data": {"length": 128}, "train": {"lr": "auto"}}, "test")
    facts = Facts(vocabulary=257, unique=None, device="cpu", speed=None)
    law = {choice.field: choice for choice in choose(recipe, facts).chosen}
    n = float(law["train.lr"].reason.partition("N = ")[2].partition("M")[0]) * 1e6
    tried = tuple(runs({0.5: 1.0, 1.0: 1.1}, n=n, d=1e8))
    found = {choice.field: choice for choice in choose(recipe, replace(facts, tried=tried)).chosen}
    assert found["train.lr"].value == pytest.approx(law["train.lr"].value / 2, rel=0.01)
    assert found["train.weight_decay"].value == pytest.approx(2 * law["train.weight_decay"].value, rel=0.1)
    assert found["train.batch"] == law["train.batch"]
    assert law["train.lr"].reason in found["train.lr"].reason, "the law and its constants are still told"
