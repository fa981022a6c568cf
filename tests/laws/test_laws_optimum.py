"""The best model for a budget, what another size costs, and how well a law foretells."""

import math

import numpy as np
import pytest
from law_oracle import TRUTH, corrected, grid_points
from scipy.optimize import brentq, minimize_scalar

from shoestring.core.errors import UserError
from shoestring.laws.form import Surface
from shoestring.laws.optimum import cost_interval, cost_of_size, fit_speed, lowest, optimum_for_flops, optimum_for_time
from shoestring.laws.points import Points
from shoestring.laws.surface import bootstrap_surface, fit_surface, heldout_error, spread_surface

LAW = Surface(*TRUTH)
SIZES, RATES = np.array([1e7, 1e8, 1e9]), np.array([1e6, 1.4e5, 1.5e4])


def test_lowest_finds_the_lowest_of_several_hollows() -> None:
    shifts = np.array([[0.1], [0.7], [-0.4]])

    def waves(x: np.ndarray) -> np.ndarray:
        return np.cos(9 * (x - shifts)) + 0.3 * (x - shifts - 0.3) ** 2

    dense = np.linspace(-3, 3, 600_001)
    expected = dense[waves(dense[None]).argmin(1)]
    assert np.allclose(lowest(waves, -3, 3, 3), expected, atol=2e-5)
    assert lowest(lambda x: x, 2, 5)[0] == 2 and lowest(lambda x: -x, 2, 5)[0] == 5


def test_time_with_a_speed_of_one_over_size_is_a_budget_of_flops() -> None:
    best = optimum_for_flops(LAW, 1e20)
    timed = optimum_for_time(LAW, 1000.0, lambda n: 1e20 / 6000 / n, (1e6, 1e12))
    assert timed.loss == pytest.approx(best.loss, rel=1e-12)
    assert timed.params == pytest.approx(best.params, rel=1e-5)
    assert timed.at_edge is None and not timed.extrapolated


def test_the_optimum_for_time_is_where_a_search_finds_it() -> None:
    speed = fit_speed(SIZES, RATES)
    best = optimum_for_time(LAW, 86400.0, speed, (1e6, 1e11))
    found = min(
        (
            minimize_scalar(
                lambda x: LAW.loss(np.exp(x), float(speed(np.exp(x))) * 86400), bounds=(low, low + 2), method="bounded"
            )
            for low in np.arange(13.8, 25, 1.5)
        ),
        key=lambda result: result.fun,
    )
    assert best.loss == pytest.approx(found.fun, rel=1e-9)
    assert best.tokens == pytest.approx(float(speed(best.params)) * 86400)


def test_the_end_of_the_range_is_named() -> None:
    speed = fit_speed(SIZES, RATES)
    free = optimum_for_time(LAW, 86400.0, speed, (1e6, 1e11))
    low = optimum_for_time(LAW, 86400.0, speed, (free.params * 3, 1e11))
    high = optimum_for_time(LAW, 86400.0, speed, (1e6, free.params / 3))
    assert (low.at_edge, high.at_edge) == ("smallest", "largest")
    assert optimum_for_time(LAW, 3e9, speed, (1e6, 1e12)).extrapolated


def test_speeds_are_lines_in_logarithms() -> None:
    speed = fit_speed(SIZES[::-1], RATES[::-1])
    assert speed(SIZES) == pytest.approx(RATES)
    assert speed(np.sqrt(1e7 * 1e8)) == pytest.approx(np.sqrt(1e6 * 1.4e5))
    assert speed(1e10) == pytest.approx(1.5e4 * 1.5e4 / 1.4e5)
    assert speed(1e6) == pytest.approx(1e6 * 1e6 / 1.4e5)
    assert [speed.extrapolated(n) for n in (9e6, 1e7, 5e8, 1e9, 1.1e9)] == [True, False, False, False, True]
    doubled = fit_speed(np.array([1e7, 1e7, 1e8]), np.array([1e6, 4e6, 1e5]))
    assert doubled(1e7) == pytest.approx(2e6)
    for sizes, rates in (([1e7], [1e6]), ([1e7, 1e7], [1e6, 2e6]), ([1e7, 1e8], [1e6, 0]), ([1e7, 1e8], [1e6])):
        with pytest.raises(UserError):
            fit_speed(np.array(sizes), np.array(rates))


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.0, 2.0, 5.0])
def test_the_cost_of_a_size_by_searching(factor: float) -> None:
    flops = 1e21
    cost = cost_of_size(LAW, flops, factor)
    params, tokens, loss = LAW.optimum(flops)
    assert cost.params == pytest.approx(params * factor) and cost.tokens == pytest.approx(tokens / factor)
    assert cost.loss_difference == pytest.approx(LAW.loss(params * factor, tokens / factor) - loss, abs=1e-12)
    more = brentq(lambda m: LAW.loss(cost.params, cost.tokens * m) - loss, 0.5, 1e4)
    assert 1 + cost.extra_compute == pytest.approx(more, rel=1e-9)


def test_a_model_too_small_never_gets_there() -> None:
    assert cost_of_size(LAW, 1e21, 1e-3).extra_compute == np.inf
    with pytest.raises(UserError, match="factor = 0"):
        cost_of_size(LAW, 1e21, 0)
    with pytest.raises(UserError, match="flops = -1"):
        optimum_for_flops(LAW, -1)
    with pytest.raises(UserError, match="sizes from"):
        optimum_for_time(LAW, 10, fit_speed(SIZES, RATES), (1e9, 1e8))


@pytest.mark.parametrize("resampled", [True, False])
def test_intervals_are_of_the_laws_that_the_points_allow(resampled: bool) -> None:
    points = grid_points(noise=5e-3)
    fit = fit_surface(points)
    spread = bootstrap_surface(points, fit, 100) if resampled else spread_surface(points, fit, 100)
    speed = fit_speed(SIZES, RATES)
    best = optimum_for_time(fit.surface, 86400.0, speed, (1e6, 1e11), spread)
    every = [optimum_for_time(one, 86400.0, speed, (1e6, 1e11)) for one in spread.surfaces]
    for name in ("params", "tokens", "loss"):
        values = [getattr(one, name) for one in every]
        expected = corrected(values, getattr(best, name), 0.95) if resampled else (min(values), max(values))
        assert best.intervals[name] == pytest.approx(expected, rel=1e-6)
    flops = optimum_for_flops(fit.surface, 1e21, spread)
    assert flops.intervals == spread.optimum_interval(1e21)
    cost = cost_interval(spread, 1e21, flops.params)
    assert cost["loss_difference"][0] >= 0
    low, high = cost["loss"]
    assert low < flops.loss < high


def test_held_out_points_are_the_dearest_and_not_fitted_to() -> None:
    points = grid_points(noise=2e-3)
    order = points.flops.argsort(kind="stable")
    spoiled = points.loss.copy()
    spoiled[order[29:]] *= 1.5
    other = Points(params=points.params, tokens=points.tokens, loss=spoiled)
    plain, changed = heldout_error(points), heldout_error(other)
    assert plain.surface == changed.surface
    assert plain.predicted == len(points) - 29 == 7
    assert np.allclose((1 + plain.errors) / 1.5, 1 + changed.errors)
    assert plain.mean_absolute == pytest.approx(np.abs(plain.errors).mean()) and plain.mean_absolute < 0.02
    expected = plain.surface.loss(points.params[order[-1]], points.tokens[order[-1]]) / points.loss[order[-1]] - 1
    assert plain.errors[-1] == pytest.approx(expected)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.99, 1.0])
def test_a_share_that_leaves_too_few_to_fit_or_none_to_predict_is_refused(share: float) -> None:
    with pytest.raises(UserError, match=r"share = |to fit"):
        heldout_error(grid_points(), share)


def test_beyond_the_measured_sizes_a_larger_model_is_never_faster() -> None:
    """A busy moment made the middle one look slow."""
    speed = fit_speed(np.array([1e4, 3e4, 1e5]), np.array([3e4, 6e3, 2e4]))
    assert speed(1e7) == pytest.approx(2e4) and speed(1e3) > 3e4


@pytest.mark.parametrize(("most", "least"), [(1e30, 1e-30), (1e-30, 1e30)])
def test_a_law_whose_exponents_are_near_zero_has_a_finite_optimum(most: float, least: float) -> None:
    """Resamples of few points reach such laws, and an interval must not fail for one of them."""
    found = Surface(1.7, most, least, 0.01, 0.01).optimum(1e21)
    assert all(map(math.isfinite, found)) and min(found) > 0
