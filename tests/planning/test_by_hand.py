"""Plans from figures given by hand."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core.errors import PlanError
from shoestring.core.records import Plan
from shoestring.core.units import Bytes, Count, Flops, Interval, Seconds
from shoestring.planning.by_hand import plan_by_hand
from shoestring.planning.figures import FIGURES, QUANTITIES, relations


def plan(**figures: Any) -> Plan:
    return plan_by_hand(figures)


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
    assert shown(made) == {"tokens": "1.08B", "text": "5.4 GB", "entries": "2.16M", "binding": "time"}
    assert made.intervals == {}


def test_five_days_of_text_of_a_density_between_two_values() -> None:
    """200M to 400M tokens a gigabyte: half the text at the dense end, and three quarters in the middle."""
    made = plan(time=432_000.0, tokens_per_second=2500.0, tokens_per_gb=Interval(2e8, 3e8, 4e8), entries_per_gb=4e5)
    assert made.tokens == 1_080_000_000
    assert made.gigabytes == pytest.approx(3.6)
    assert made.intervals == {"gigabytes": (2.7, 5.4), "entries": pytest.approx((1_080_000, 2_160_000))}
    assert shown(made)["text"] == "3.6 GB (2.7 GB – 5.4 GB)"
    assert shown(made)["entries"] == "1.44M (1.08M – 2.16M)"


def test_a_thousand_steps_with_a_quarter_more() -> None:
    made = plan(per_device=4, accumulate=4, devices=1, steps=1000, margin=1.25)
    assert made.effective_batch == 16
    assert made.samples == 16_000
    assert made.entries == 20_000
    assert made.steps == 1000
    assert made.binding == "steps"
    assert shown(made) == {
        "effective batch": "16 rows",
        "samples": "16,000",
        "entries": "20,000",
        "binding": "steps",
    }


@pytest.mark.parametrize(("per_device", "accumulate"), [(16, 1), (8, 2), (4, 4), (2, 8), (1, 16)])
def test_halving_the_rows_at_a_time_doubles_the_accumulation(per_device: int, accumulate: int) -> None:
    made = plan(batch=16, per_device=per_device, steps=1000, margin=1.25)
    assert (made.accumulate, made.effective_batch, made.entries) == (accumulate, 16, 20_000)


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


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_a_figure_that_is_not_above_zero_is_refused_by_its_name(name: str, value: float) -> None:
    others: dict[str, Any] = {"per_device": 1, "accumulate": 1, "steps": 10}
    option = f"--{name.replace('_', '-')} = "
    with pytest.raises(PlanError, match=option):
        plan(**others | {name: value})


def test_a_margin_below_one_is_refused() -> None:
    with pytest.raises(PlanError, match=r"--margin = 0\.9: must be at least 1"):
        plan(per_device=1, steps=1, margin=0.9)


def test_of_two_budgets_the_tighter_binds_and_the_other_says_what_it_would_take() -> None:
    made = plan(time=Seconds(10), tokens=Count(1000), tokens_per_second=10.0)
    assert (made.binding, made.tokens, made.seconds) == ("time", 100, 10)
    (line,) = [line for line in made.lines if line.quantity == "tokens not reached"]
    assert (line.value, line.reason) == ("1,000", "--time 10s is reached first; it would take 1m 40s")


def test_a_time_and_tokens_without_a_speed_say_which_speed_is_needed() -> None:
    made = plan(time=Seconds.parse("5d"), tokens=Count.parse("1.08B"))
    assert made.tokens_per_second == pytest.approx(2500)
    assert shown(made)["speed"] == "2.5k tokens/s"
    assert shown(made)["binding"] == made.binding == "time and tokens"


# --- the other notebooks


def test_tokens_for_a_model_are_twenty_a_parameter_where_nothing_else_limits() -> None:
    made = plan(params=1e8)
    assert (made.tokens, made.binding) == (2_000_000_000, "tokens_per_parameter")
    assert made.flops == 1.2e18
    assert plan(params=1e8, tokens=1e6).tokens == 1_000_000
    assert plan(params=1e8, tokens_per_parameter=7.0).tokens == 700_000_000


def test_each_number_says_the_way_from_the_budget_to_it() -> None:
    """The first experiment of the article on Perceiver AR: 50,000 steps of 80 rows."""
    made = plan(flops=578222555136000000, flops_per_token=282335232, batch=80, length=2048, latents=512)
    reasons = {line.quantity: line.reason for line in made.lines}
    assert made.steps == 50_000
    assert reasons["predictions"] == "578 PFLOP ÷ 282 MFLOP per token"
    assert reasons["samples"] == "2.05B predictions ÷ 512 latents per row"
    assert reasons["steps"] == "4M samples ÷ 80 rows"
    assert reasons["parameters"] == "282 MFLOP per token ÷ 6"


def test_a_perceiver_reads_every_latent_in_length_by_latents_epochs_and_its_steps_come_from_flops() -> None:
    """Of a row of 2,048 tokens 512 are predicted; a step is 20 × 512 predictions of 6 × 100M FLOPs."""
    made = plan(flops=1e18, params=1e8, batch=20, length=2048, latents=512)
    assert shown(made)["to predict every position"] == "4 epochs"
    assert made.steps == int(1e18 / (6e8 * 20 * 512))
    assert made.tokens == made.steps * 20 * 2048
    assert plan(flops=1e18, params=1e8, batch=20, length=2048).steps == int(1e18 / (6e8 * 20 * 2048))


def test_a_perceiver_computes_its_latents_and_reads_its_rows() -> None:
    """10^14 FLOP/s are 10^14 ÷ 6·10^8 predictions a second, of 512 in a row of 2,048 tokens."""
    made = plan(time=1e5, flops_per_second=1e14, params=1e8, batch=20, length=2048, latents=512)
    assert made.steps == int(1e5 * 1e14 / (6e8 * 20 * 512))
    assert made.tokens_per_second == pytest.approx(1e14 / 6e8 * 4)
    assert made.binding == "time"


def test_a_synthetic_set_takes_disk_and_a_stream_takes_none() -> None:
    """The notebook's: 100M rows of 100 tokens as 8-byte integers."""
    made = plan(samples=1e8, length=100.0, bytes_per_token=8.0)
    assert made.disk_bytes == 80 * 10**9
    assert shown(made)["disk of a stream"] == "none"
    limited = plan(samples=1e8, length=100.0, bytes_per_token=8.0, disk=Bytes.parse("10GB"), checkpoints=2e9)
    assert (limited.binding, limited.samples, limited.disk_bytes) == ("disk", 10**7, 10 * 10**9)


def test_rows_that_fit_a_memory() -> None:
    assert shown(plan(memory=35e9, rows_per_gb=270.0)) == {"rows that fit": "9,450"}


def test_several_devices_are_as_many_times_as_fast_with_a_word_of_warning() -> None:
    made = plan(time=100.0, tokens_per_second=10.0, devices=3.0)
    assert (made.tokens, made.tokens_per_second) == (3000, 30)
    (line,) = [line for line in made.lines if line.quantity == "speed"]
    assert "not counted" in line.reason


def test_epochs_of_a_corpus_need_no_more_text_than_there_is() -> None:
    made = plan(epochs=3.0, corpus=1e9, tokens_per_gb=2e8, batch_tokens=65536.0)
    assert made.steps == 600_000_000 // 65536
    assert made.gigabytes == 1.0


# --- any budgets


@settings(deadline=None, max_examples=200)
@given(
    budgets=st.dictionaries(
        st.sampled_from(["time", "flops", "tokens", "steps", "samples", "epochs", "disk"]),
        st.floats(1.0, 1e9),
        min_size=1,
    ),
    speed=st.integers(1, 10**5),
    params=st.integers(1, 10**4),
    rows=st.integers(1, 64),
    length=st.integers(1, 512),
    corpus=st.integers(1, 10**6),
    token=st.integers(1, 8),
)
def test_the_smallest_run_that_any_budget_allows_is_planned(
    budgets: dict[str, float], speed: int, params: int, rows: int, length: int, corpus: int, token: int
) -> None:
    """Tokens that each budget allows, by formulas of this test alone."""
    exact = {name: Fraction(value) for name, value in budgets.items()}
    a_unit = {
        "time": Fraction(speed),
        "flops": Fraction(1, 6 * params),
        "tokens": Fraction(1),
        "steps": Fraction(rows * length),
        "samples": Fraction(length),
        "epochs": Fraction(corpus),
        "disk": Fraction(1, token),
    }
    allowed = {name: value * a_unit[name] for name, value in exact.items()}
    facts = {"tokens_per_second": speed, "params": params, "batch": rows, "length": length, "corpus_tokens": corpus}
    steps = min(allowed.values()) / (rows * length)
    try:
        made = plan(**budgets, **facts, bytes_per_token=token)
    except PlanError:
        assert steps < 1
        return
    assert made.steps is not None and made.tokens is not None
    assert abs(made.steps - math.floor(steps)) <= (1 if abs(steps - round(steps)) < 1e-5 else 0)
    assert made.tokens == made.steps * rows * length
    assert made.samples == made.steps * rows
    assert allowed[made.binding] <= min(allowed.values()) * (1 + Fraction(1, 10**6))


@pytest.mark.parametrize(
    ("figures", "kind"),
    [
        ({"time": 1.0, "tokens_per_second": 10.0}, Seconds),
        ({"flops": 1e6, "params": 1e6}, Flops),
        ({"tokens": 7.0}, Count),
        ({"samples": 3.0}, Count),
        ({"epochs": 0.001, "corpus_tokens": 1000.0}, None),
        ({"disk": 100.0, "bytes_per_token": 2.0}, Bytes),
    ],
)
def test_a_budget_of_less_than_a_step_is_refused_with_the_least_that_is_not(
    figures: dict[str, float], kind: Any
) -> None:
    budget = next(iter(figures))
    with pytest.raises(PlanError, match=f"nothing fits: --{budget} .* of one step of 1,024 tokens") as caught:
        plan(**figures, batch=8.0, length=128.0)
    asked = str(caught.value).rpartition(f"--{budget} ")[2]
    enough = float(kind.parse(asked)) if kind else float(asked)
    assert plan(**figures | {budget: enough}, batch=8.0, length=128.0).steps >= 1  # type: ignore[operator]
    with pytest.raises(PlanError):
        plan(**figures | {budget: enough * 0.8}, batch=8.0, length=128.0)


@pytest.mark.parametrize(
    ("figures", "parts"),
    [
        ({"batch": 16, "per_device": 4, "accumulate": 2, "devices": 1}, ("16 rows as given", "8 rows = 4 rows")),
        ({"batch": 16, "per_device": 3}, ("16 rows ÷ 3 rows per micro-batch = 5.33333", "whole number")),
        ({"batch": 8, "length": 100, "batch_tokens": 1000}, ("1,000 tokens as given", "800 tokens = 8 rows")),
        ({"params": 100, "flops_per_token": 500}, ("500 FLOP per token as given", "600 FLOP per token = 6 × 100")),
        ({"latents": 600, "length": 512}, ("--latents 600", "--length 512")),
        ({"batch": 16, "devices": 3, "steps": 10}, ("--batch 16", "--devices 3")),
        (
            {"memory": 35e9, "rows_per_gb": 270, "per_device": 10_000, "steps": 10},
            ("--per-device 10000", "35 GB × 270 rows/GB = 9,450 rows"),
        ),
        ({"disk": 1e9, "checkpoints": 2e9, "bytes_per_token": 2}, ("--disk 1GB", "--checkpoints 2GB")),
        ({"tokens_per_parameter": 20}, ("--tokens-per-parameter 20", "--params")),
        (
            {"tokens_per_second": 10, "flops_per_second": 1e6, "params": 100},
            ("10 tokens/s as given", "1.67k tokens/s = 1 MFLOP/s ÷ 600 FLOP per token"),
        ),
    ],
)
def test_figures_that_contradict_each_other_are_both_named(figures: dict[str, float], parts: tuple[str, ...]) -> None:
    with pytest.raises(PlanError) as caught:
        plan(**figures)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_every_name_of_an_equation_can_be_printed() -> None:
    for latents in (False, True):
        for equation in relations(latents=latents, corpus=False):
            assert {equation.result, *equation.factors, *equation.divisors} <= QUANTITIES.keys()


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


@pytest.mark.parametrize(
    ("epochs", "entries", "gigabytes"), [(1.0, 800_000, 2.0), (0.25, 200_000, 0.5), (3.0, 800_000, 2.0)]
)
def test_epochs_of_a_corpus_read_its_entries(epochs: float, entries: int, gigabytes: float) -> None:
    figures = {"epochs": epochs, "corpus": 2e9, "tokens_per_gb": 200e6, "entries_per_gb": 400_000.0}
    plan = plan_by_hand(figures)
    assert (plan.entries, plan.gigabytes) == (entries, pytest.approx(gigabytes))
    assert plan.tokens == epochs * 400_000_000
    without = plan_by_hand({name: value for name, value in figures.items() if name != "tokens_per_gb"})
    assert without.entries == entries
