"""Plans from figures given by hand."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core.errors import PlanError
from shoestring.core.facts import Plan
from shoestring.core.units import Count, Seconds
from shoestring.plan.by_hand import Figures, plan_by_hand


def plan(**figures: Any) -> Plan:
    return plan_by_hand(Figures(**figures))


def shown(made: Plan) -> dict[str, str]:
    return {line.quantity: line.value for line in made.lines}


def test_five_days_of_text() -> None:
    made = plan(
        time=Seconds.parse("5d"),
        tokens_per_second=Count.parse("2500"),
        tokens_per_gb=Count.parse("200M"),
        entries_per_gb=Count.parse("400k"),
    )
    assert made.tokens == 1_080_000_000
    assert made.gigabytes == pytest.approx(5.4)
    assert made.entries == 2_160_000
    assert made.seconds == 432_000
    assert made.binding == "time"
    assert shown(made) == {"tokens": "1.08B", "text": "5.4 GB", "entries": "2.16M"}


def test_a_thousand_steps_with_a_quarter_more() -> None:
    made = plan(per_device=4, accumulate=4, devices=1, steps=1000, margin=1.25)
    assert made.effective_batch == 16
    assert made.samples == 16_000
    assert made.entries == 20_000
    assert made.steps == 1000
    assert made.binding == "steps"
    assert shown(made) == {"effective batch": "16 rows", "samples": "16,000", "entries": "20,000"}


def test_what_is_not_given_of_a_batch_is_one() -> None:
    assert plan(per_device=4).effective_batch == 4
    assert plan(accumulate=4).effective_batch == 4
    assert plan(per_device=4, devices=8).effective_batch == 32


def test_tokens_and_speed_give_the_time() -> None:
    made = plan(tokens=Count(10**9), tokens_per_second=2500.0)
    assert made.seconds == 400_000
    assert made.tokens == 10**9
    assert made.binding == "tokens"


def test_tokens_that_fit_the_time_are_planned_with_the_time_they_take() -> None:
    made = plan(time=Seconds(100), tokens=Count(1000), tokens_per_second=100.0)
    assert (made.tokens, made.seconds) == (1000, 10)


def test_a_margin_makes_the_text_larger_and_not_the_tokens() -> None:
    made = plan(tokens=Count(10**9), tokens_per_gb=2e8, entries_per_gb=4e5, margin=1.5)
    assert made.tokens == 10**9
    assert made.gigabytes == pytest.approx(7.5)
    assert made.entries == 3_000_000


@settings(deadline=None)
@given(
    seconds=st.integers(1, 10**7),
    speed=st.integers(1, 10**6),
    tokens_per_gb=st.integers(1, 10**10),
    entries_per_gb=st.integers(1, 10**8),
)
def test_time_times_speed_over_density_is_the_text(
    seconds: int, speed: int, tokens_per_gb: int, entries_per_gb: int
) -> None:
    made = plan(
        time=Seconds(seconds),
        tokens_per_second=float(speed),
        tokens_per_gb=float(tokens_per_gb),
        entries_per_gb=float(entries_per_gb),
    )
    gigabytes = Fraction(seconds * speed, tokens_per_gb)
    assert made.tokens == seconds * speed
    assert made.gigabytes == pytest.approx(float(gigabytes))
    assert made.entries == pytest.approx(math.ceil(gigabytes * entries_per_gb), rel=1e-9, abs=1)


@settings(deadline=None)
@given(
    per_device=st.integers(1, 64),
    accumulate=st.integers(1, 64),
    devices=st.integers(1, 8),
    steps=st.integers(1, 10**6) | st.integers(1, 100).map(lambda n: 25 * n),
    hundredths=st.integers(100, 300),
)
def test_entries_are_the_samples_times_the_margin_rounded_up_once(
    per_device: int, accumulate: int, devices: int, steps: int, hundredths: int
) -> None:
    made = plan(
        per_device=per_device,
        accumulate=accumulate,
        devices=devices,
        steps=steps,
        margin=float(Decimal(hundredths) / 100),
    )
    assert made.effective_batch == per_device * accumulate * devices
    assert made.samples == steps * per_device * accumulate * devices
    assert made.entries == math.ceil(Fraction(made.samples * hundredths, 100))


def test_a_margin_that_no_float_holds_adds_no_entry() -> None:
    assert plan(per_device=1, steps=100, margin=1.1).entries == 110


FIGURES = ["time", "tokens", "tokens_per_second", "tokens_per_gb", "entries_per_gb"]
FIGURES += ["per_device", "accumulate", "devices", "steps", "margin"]


def test_every_figure_is_known_here() -> None:
    assert set(FIGURES) == set(Figures.__dataclass_fields__)


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, -math.inf])
def test_a_figure_that_is_not_above_zero_is_refused_by_its_name(name: str, value: float) -> None:
    others: dict[str, Any] = {"per_device": 1, "accumulate": 1, "steps": 10}
    option = f"--{name.replace('_', '-')} = "
    with pytest.raises(PlanError, match=option):
        plan(**others | {name: value})


def test_a_margin_below_one_is_refused() -> None:
    with pytest.raises(PlanError, match=r"--margin = 0\.9: must be at least 1"):
        plan(per_device=1, steps=1, margin=0.9)


def test_more_tokens_than_the_time_allows_are_refused_with_what_fits() -> None:
    with pytest.raises(PlanError, match=r"--tokens 1k take 1m 40s .* more than --time 10s; 100 tokens fit"):
        plan(time=Seconds(10), tokens=Count(1000), tokens_per_second=10.0)


@pytest.mark.parametrize(
    "figures",
    [{}, {"time": Seconds(5)}, {"tokens_per_second": 5.0}, {"steps": 5}, {"margin": 2.0}, {"entries_per_gb": 1.0}],
)
def test_figures_that_nothing_follows_from_are_refused_with_an_example(figures: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=r"nothing follows.*--tokens-per-second"):
        plan(**figures)


def test_a_plan_by_hand_can_be_written_and_read(tmp_path: Any) -> None:
    made = plan(time=Seconds(100), tokens_per_second=7.0, tokens_per_gb=3e8, entries_per_gb=4e5, per_device=3, steps=7)
    made.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == made
