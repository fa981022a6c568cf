"""Past plans: how good they were, and what the next one learns."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_make import PROFILE, make, recipe, store_bytes

from shoestring.core.recipe_file import build
from shoestring.core.records import Plan
from shoestring.core.results import Forecast, Outcome
from shoestring.planning.history import (
    DRIFT,
    FEWEST_STEPS,
    HISTORY_HEAD,
    NO_HISTORY,
    Correction,
    Past,
    errors,
    history_table,
    learn,
)
from shoestring.planning.hmm import plan_hmm
from shoestring.planning.make import make_plan


def outcome(**values: Any) -> Outcome:
    base = {"steps": 100, "tokens": 1000, "seconds": 110.0, "segments": 1, "tokens_per_second": 50.0}
    rest = {"disk_bytes": 90, "peak_bytes": None, "loss": 1.0, "shortened": None}
    return Outcome(**base | rest | values)


def past(
    ratio: float,
    machine: str | None = "here",
    correction: float | None = None,
    measured_on: str | None = "here",
    kind: str | None = "llama",
    **actual: Any,
) -> Past:
    """A run whose steps took `ratio` times what was measured."""
    plan = Plan(
        binding="time",
        tokens=1000,
        seconds=100.0,
        disk_bytes=100,
        tokens_per_second=50.0 * ratio / (correction or 1.0),
        correction=correction,
        intervals={"seconds": (90.0, 111.0)},
    )
    return Past(name="run", machine=machine, measured_on=measured_on, kind=kind, plan=plan, outcome=outcome(**actual))


@given(st.lists(st.floats(0.2, 5.0), max_size=20))
def test_the_factor_is_the_geometric_mean_with_one_run_as_measured(ratios: list[float]) -> None:
    found = learn([past(ratio) for ratio in ratios], "here", "llama")
    assert found.factor == pytest.approx(math.prod(ratios) ** (1 / (len(ratios) + 1)))
    assert found.runs == len(ratios)


def test_a_run_of_few_steps_teaches_nothing() -> None:
    """Its first steps are slow. Iterations of an HMM are alike."""
    runs = [past(9.0, steps=1), past(4.0, steps=FEWEST_STEPS)]
    assert learn(runs, "here", "llama").factor == pytest.approx(2.0)
    assert learn([past(4.0, kind="hmm", steps=1)], "here", "hmm").factor == pytest.approx(2.0)


def test_without_runs_nothing_is_corrected() -> None:
    assert learn([], "here", "llama") == NO_HISTORY
    assert learn([past(2.0, "elsewhere"), past(2.0, None)], "here", "llama") == NO_HISTORY
    elsewhere = [past(9.0, measured_on="elsewhere"), past(9.0, measured_on=None), past(9.0, None, measured_on=None)]
    for machine in ("here", "elsewhere"):
        assert learn(elsewhere, machine, "llama") == NO_HISTORY, "measured on another machine than it ran on"
    assert NO_HISTORY.factor == 1.0
    assert NO_HISTORY.lines() == []


def test_a_run_teaches_plans_of_its_own_kind() -> None:
    runs = [past(9.0, kind="hmm"), past(4.0), past(5.0, kind=None)]
    assert learn(runs, "here", "hmm").factor == pytest.approx(3.0)
    assert learn(runs, "here", "llama").factor == pytest.approx(2.0)
    assert learn(runs, "here", "gpt2") == NO_HISTORY


def test_a_plan_that_was_corrected_teaches_what_was_measured_and_not_what_it_said() -> None:
    """A machine whose steps take 1.3 times what is measured, run after run, each planned with what was learned."""
    runs: list[Past] = []
    for _ in range(40):
        correction = learn(runs, "here", "llama")
        runs.append(past(1.3, correction=correction.factor if correction.runs else None))
    assert learn(runs, "here", "llama").factor == pytest.approx(1.3, rel=0.01)
    assert errors(runs[-1])["step"] == pytest.approx(0.0, abs=0.01), "the last plan was right"
    assert errors(runs[0])["step"] == pytest.approx(0.3)


def test_the_spread_is_that_of_the_runs() -> None:
    draw = random.Random(3)
    runs = [past(math.exp(draw.gauss(0.1, 0.2))) for _ in range(400)]
    assert learn(runs, "here", "llama").spread == pytest.approx(0.2, rel=0.1)
    assert learn([], "here", "llama").spread == DRIFT


def test_errors_are_actual_by_planned() -> None:
    found = errors(past(1.1, tokens=900, seconds=110.0))
    assert found == {
        "tokens": pytest.approx(-0.1),
        "seconds": pytest.approx(0.1),
        "step": pytest.approx(0.1),
        "memory": None,
        "disk": pytest.approx(-0.1),
        "loss": None,
    }


@pytest.mark.parametrize("disturbed", [{"segments": 2}, {"shortened": "slow"}])
def test_the_time_of_a_run_that_was_cut_is_no_error_of_its_plan(disturbed: dict[str, Any]) -> None:
    assert errors(past(1.0, **disturbed))["seconds"] is None


def test_the_table_has_a_line_a_run_and_the_mean_of_each_column() -> None:
    table = history_table([past(1.1, seconds=110.0), past(0.7, seconds=120.0)])
    assert all(len(row) == len(HISTORY_HEAD) for row in table)
    assert table[0] == ("run", "+0.0%", "+10.0%", "+10.0%", "unknown", "-10.0%", "unknown", "yes", "unknown")
    assert table[1][-2] == "no", "120 s are more than 111"
    assert table[2] == ("mean absolute error", "0.0%", "15.0%", "20.0%", "unknown", "10.0%", "unknown", "", "")
    assert len(history_table([past(1.0)])) == 1


@pytest.mark.parametrize(("high", "held"), [(1.6, "yes"), (1.45, "no")])
def test_the_forecast_stands_beside_time_and_memory(high: float, held: str) -> None:
    run = past(1.0, loss=1.5, forecast=Forecast(step=20, loss=1.4, low=1.2, high=high))
    assert errors(run)["loss"] == pytest.approx(1.5 / 1.4 - 1)
    assert history_table([run])[0][-3:] == ("+7.1%", "yes", held)


def test_a_corrected_plan_takes_longer_for_its_steps_and_says_why() -> None:
    correction = Correction(factor=1.5, spread=0.1, runs=3, left_out=("runs/x (torn)",))
    plain = make({"steps": 100})
    made = make_plan(recipe({"steps": 100}), PROFILE, store_bytes, correction=correction)
    assert made.parts["train"] == pytest.approx(1.5 * plain.parts["train"])
    assert made.step_seconds == pytest.approx(1.5 * (plain.step_seconds or 0))
    assert (made.correction, plain.correction) == (1.5, None)
    (line,) = [line for line in made.lines if line.quantity == "correction"]
    assert line.value == "× 1.500"
    assert "3 finished runs" in line.reason
    assert "runs/x (torn)" in line.reason
    timed, slower = (
        make_plan(recipe({"time": "1000s"}), PROFILE, store_bytes, correction=c).steps for c in (NO_HISTORY, correction)
    )
    assert timed is not None and slower is not None
    assert slower == pytest.approx(timed / 1.5, rel=0.02)


def test_an_hmm_is_corrected_too() -> None:
    values = {"budget": {"epochs": 2}, "data": {"tokenizer": "words:50", "length": 10, "documents": 9}, "hmm": {}}
    made = build(values, "test")
    assert made.hmm is not None
    plain = plan_hmm(made, PROFILE, 1000)
    corrected = plan_hmm(made, PROFILE, 1000, correction=Correction(factor=2.0, runs=1))
    assert corrected.parts["train"] == pytest.approx(2 * plain.parts["train"])
    assert corrected.correction == 2.0
