"""The text that a budget could read, however much there is: the question of the first notebook."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_make import PROFILE, make

from shoestring.core.errors import PlanError
from shoestring.core.records import Density, Plan, Point, Profile
from shoestring.planning.by_hand import plan_by_hand
from shoestring.planning.lines import with_margin

GB = Density(
    documents=400_000, text_bytes=10**9, tokens=200_000_000, seconds=1e-3, total_documents=400_000,
    total_documents_error=0.0, tokens_per_gb_error=0.0, entries_per_gb_error=0.0,
)  # fmt: skip
"""One gigabyte that was downloaded: 400,000 entries of 500 tokens."""


def line(plan: Plan, quantity: str) -> str:
    (found,) = [line for line in plan.lines if line.quantity == quantity]
    return f"{found.value}: {found.reason}"


def five_days(profile: Profile) -> Plan:
    return make({"time": "5d"}, profile, data={"length": 1000, "heldout": 0.02}, train={"batch": 10})


def test_a_sample_says_how_much_to_download_for_five_days() -> None:
    """By the notebook: 400,000 ÷ 200M × 2,500 tokens/s × 5 days = 2.16M entries, of 5.4 GB; and 2 % are held out."""
    step = Point(batch=10, seconds=4.0, slowest_seconds=4.0, peak_bytes=None)
    plan = five_days(replace(PROFILE, points=(step,), update_seconds=0.0, density=GB, length=1000))
    assert plan.tokens_per_second == 2500
    assert plan.entries == 400_000, "the sample is read again and again"
    assert plan.tokens is not None and plan.wanted_entries is not None and plan.wanted_gigabytes is not None
    exact = plan.tokens / 500 / 0.98
    assert plan.wanted_entries == pytest.approx(exact, rel=1e-3)
    assert plan.wanted_entries == pytest.approx(2_160_000 / 0.98, rel=0.05)
    assert plan.wanted_gigabytes == pytest.approx(plan.wanted_entries / 400_000)
    assert "one epoch of what the budget reads; this plan reads 400,000 entries" in line(plan, "to download")
    assert line(plan, "repetition").startswith("5.4")
    assert "all counted" in line(plan, "text")
    more = with_margin(plan, 1.1)
    assert more.wanted_entries == pytest.approx(1.1 * exact, rel=1e-3)
    assert "× 1.1 margin" in line(more, "to download")
    assert len(more.lines) == len(plan.lines)


def test_the_time_to_prepare_text_that_is_not_there_yet_is_counted() -> None:
    """A token takes 40 µs to read and 400 µs to train on, so a tenth of the time is for text that only 1 GB has."""
    step = Point(batch=10, seconds=4.0, slowest_seconds=4.0, peak_bytes=None)
    slow = replace(GB, seconds=200_000_000 * 40e-6)
    plan = five_days(replace(PROFILE, points=(step,), update_seconds=0.0, density=slow, length=1000))
    assert plan.wanted_entries == pytest.approx(2_160_000 / (0.98 + 0.1), rel=0.05)


def test_the_overall_speed_is_that_of_training_with_evaluations_and_checkpoints() -> None:
    plan = make({"steps": 1000})
    assert plan.tokens is not None and plan.overall_tokens_per_second is not None
    during = sum(plan.parts[name] for name in ("train", "evaluations", "checkpoints"))
    assert plan.overall_tokens_per_second == pytest.approx(plan.tokens / during)
    assert plan.overall_tokens_per_second < (plan.tokens_per_second or 0)
    assert "with evaluations and checkpoints" in line(plan, "overall speed")


@pytest.mark.parametrize(("epochs", "is_said"), [(4.0, False), (4.5, True), (250.0, True)])
def test_more_than_four_epochs_are_said(epochs: float, is_said: bool) -> None:
    profile = replace(PROFILE, density=GB)
    by_recipe = make({"epochs": epochs}, profile)
    by_hand = plan_by_hand({"epochs": epochs, "corpus_tokens": 1e9})
    for plan in (by_recipe, by_hand):
        assert any(line.quantity in ("repetition", "overfitting") for line in plan.lines) is is_said
    assert by_recipe.wanted_entries is None, "the budget is the end of the text itself"


def test_a_margin_needs_text_to_download_and_is_at_least_one() -> None:
    plan = make({"epochs": 2.0}, replace(PROFILE, density=GB))
    with pytest.raises(PlanError, match="no text to download"):
        with_margin(plan, 1.5)
    with pytest.raises(PlanError, match="must be at least 1"):
        with_margin(make({"steps": 9}), 0.5)
