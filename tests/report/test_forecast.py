"""The forecast of a run's held-out loss, and the verdicts that its law allows."""

import math

import numpy as np
import pytest
from curves import Lines, clean_lines, cosine

from shoestring.report.forecast import (
    RECORDED_AT,
    Beside,
    forecast,
    heldout_shape,
    recorded_forecast,
    taken_path,
    verdicts_by_law,
)
from shoestring.track.curve import Curve


def lines_by_law(
    gain: float, slope: float = 0.25, steps: int = 800, gap: float = 0.05, seed: int = 0, decays: bool = True
) -> Lines:
    """A run whose loss is by the law: what the decay gains is given, and the slope in ln S at the end."""
    random = np.random.default_rng(seed)
    rates = [1e-3 * (cosine(step, steps) if decays else 1.0) for step in range(1, steps + 1)]
    lines: Lines = [{"step": step, "loss": 1.0, "lr": rate} for step, rate in enumerate(rates, start=1)]
    path = taken_path(Curve.of(lines))
    assert path is not None
    found = path.at(path.steps)
    true = 2 + slope * 2 * (((found.sums + 1) / found.sums[-1]) ** -0.3 - 1) / 0.3 - gain * found.fallen
    for line, loss in zip(lines[:], true):
        line["loss"] = float(loss * (1 + 0.01 * random.standard_normal()))
        if line["step"] % (steps // 10) == 0:
            lines.append({"step": line["step"], "heldout_loss": float(loss) + gap})
    return sorted(lines, key=lambda line: line["step"])


def test_the_recorded_forecast_is_made_after_a_fifth_and_knows_nothing_later() -> None:
    lines = lines_by_law(gain=0.1)
    found = recorded_forecast(Curve.of(lines))
    assert found is not None and found.step == RECORDED_AT[0] * 800
    assert found.low <= lines[-1]["heldout_loss"] <= found.high
    spoiled = [line | {name: 9.0 for name in line if "loss" in name} if line["step"] > 160 else line for line in lines]
    assert recorded_forecast(Curve.of(spoiled)) == found


def test_the_forecast_is_of_the_held_out_loss() -> None:
    found = []
    for gap in (0.0, 0.5):
        curve = Curve.of(lines_by_law(gain=0.1, gap=gap))
        path = taken_path(curve)
        assert path is not None
        early, late = (forecast(curve.until(share * 800), path) for share in (0.2, 0.7))
        assert early is not None and late is not None
        assert all(each.low <= curve.heldout[-1].loss <= each.high for each in (early, late))
        found.append(late.loss)
    assert found[1] - found[0] == pytest.approx(0.5, abs=0.02)


def test_nothing_is_expected_without_evaluations_or_a_learning_rate() -> None:
    training = [line for line in lines_by_law(gain=0.1) if "loss" in line]
    assert recorded_forecast(Curve.of(training)) is None
    fit = [{"step": epoch, "loss": 3.0 / epoch} for epoch in range(1, 20)]
    assert recorded_forecast(Curve.of([*fit, {"step": 19, "heldout_loss": 1.0}])) is None
    assert recorded_forecast(Curve.of([])) is None
    assert verdicts_by_law(Curve.of(fit)) == []


def test_nothing_is_expected_across_a_return_to_earlier_weights() -> None:
    lines = lines_by_law(gain=0.1)
    early, late = ({"step": step, "event": "overfitting", "best": 80} for step in (150, 400))
    assert recorded_forecast(Curve.of([*lines, early])) is None
    assert recorded_forecast(Curve.of([*lines, late])) == recorded_forecast(Curve.of(lines))


def test_a_curve_that_is_steep_is_expected_after_three_tenths_and_not_before() -> None:
    """It falls to a fifth in the first quarter, and by its law from there on: a fifth of it says nothing."""
    steep = [
        {
            name: value * 5 ** max(0.0, 1 - line["step"] / 200) if "loss" in name else value
            for name, value in line.items()
        }
        for line in lines_by_law(gain=0.1)
    ]
    curve = Curve.of(steep)
    path, found = taken_path(curve), recorded_forecast(curve)
    assert path is not None and forecast(curve.until(80), path) is None and forecast(curve.until(160), path) is None
    assert found is not None and found.step == 240
    assert found.low <= curve.heldout[-1].loss <= found.high and found.low < 0.75 * found.high, "it is wide"


@pytest.mark.parametrize("loss", [0.0, math.nan, math.inf])
def test_nothing_is_expected_by_evaluations_that_have_no_logarithm(loss: float) -> None:
    lines = [line | {"heldout_loss": loss} if "heldout_loss" in line else line for line in lines_by_law(gain=0.1)]
    assert recorded_forecast(Curve.of(lines)) is None


def test_earlier_runs_narrow_the_forecast_and_are_counted() -> None:
    """The same law, once in 600 steps and once in 1,000, and a run of 800 that has just begun."""
    shapes = {}
    for steps in (600, 1000):
        curve = Curve.of(lines_by_law(gain=0.1, steps=steps, seed=steps))
        path = taken_path(curve)
        assert path is not None
        shape = heldout_shape(curve, path, 1e5, 8)
        assert shape is not None
        shapes[str(steps)] = shape
    curve = Curve.of(lines_by_law(gain=0.1))
    alone, by_others = recorded_forecast(curve), recorded_forecast(curve, Beside(1e5, 8, shapes))
    assert alone is not None and by_others is not None
    assert alone.runs == 0 and by_others.runs == 2
    assert by_others.high - by_others.low < 0.8 * (alone.high - alone.low)
    assert by_others.low <= curve.heldout[-1].loss <= by_others.high


def kinds(lines: Lines) -> list[str]:
    return [verdict.kind for verdict in verdicts_by_law(Curve.of(lines), step_seconds=0.5)]


@pytest.mark.parametrize("seed", range(3))
def test_a_rate_whose_decay_gains_nothing_is_too_low(seed: int) -> None:
    assert kinds(lines_by_law(gain=0.0, slope=0.3, seed=seed)) == ["still_falling", "lr_too_low"]


@pytest.mark.parametrize("seed", range(3))
def test_a_rate_whose_decay_gains_is_not_too_low(seed: int) -> None:
    assert "lr_too_low" not in kinds(lines_by_law(gain=0.2, seed=seed))
    assert "lr_too_low" not in kinds(lines_by_law(gain=0.0, slope=0.3, seed=seed, decays=False)), "it never came down"


def test_a_run_that_still_falls_says_what_twice_the_steps_would_give() -> None:
    short, long = lines_by_law(gain=0.1), lines_by_law(gain=0.1)
    (verdict,) = verdicts_by_law(Curve.of(short), step_seconds=0.5)
    assert verdict.kind == "still_falling"
    assert "twice the steps, 6m 40s more, would give about 1." in verdict.text
    assert long[-1]["heldout_loss"] > float(verdict.text.split("about ")[1].split()[0])


def test_a_run_at_its_floor_does_not_fall() -> None:
    assert kinds(lines_by_law(gain=0.1, slope=0.001)) == []
    assert "lr_too_low" not in kinds(clean_lines())
