"""Profile intervals, against SciPy's own search along a fixed coefficient, and what their noise is made of."""

import numpy as np
import pytest
from law_oracle import TRUTH, grid_points
from scipy import stats
from scipy.optimize import brentq, least_squares

from shoestring.laws.form import Surface
from shoestring.laws.isoflop import _minima
from shoestring.laws.noise import Noise, draw_noise, estimate_noise
from shoestring.laws.points import Points
from shoestring.laws.region import _reweighted, inefficiency, shortfall, student_quantile
from shoestring.laws.surface import fit_surface, spread_surface

LAW = Surface(*TRUTH)


def together(seed: int, count: int = 16) -> Points:
    """Tokens within 15 % of 20 per parameter."""
    generator = np.random.default_rng(seed)
    params = np.geomspace(1e7, 1e10, count)
    tokens = 20 * params * np.exp(0.15 * generator.normal(size=count))
    loss = LAW.loss(params, tokens) * np.exp(5e-3 * generator.normal(size=count))
    return Points(params=params, tokens=tokens, loss=loss)


def profile(points: Points, fitted: Surface, name: str) -> tuple[float, float]:
    """Where the squares of the best law with a given E or α exceed the least ones by Student's t squared."""
    index, freedom = {"E": 0, "alpha": 3}[name], len(points) - 5
    others = np.array([np.log(fitted.E), np.log(fitted.A), np.log(fitted.B), fitted.alpha, fitted.beta])
    fixed_start = others.copy()

    def left(theta: np.ndarray) -> np.ndarray:
        E, A, B, alpha, beta = theta
        terms = np.exp(E) + np.exp(A - alpha * np.log(points.params)) + np.exp(B - beta * np.log(points.tokens))
        return np.log(terms) - np.log(points.loss)

    def squares(value: float) -> float:
        held = np.log(value) if name == "E" else value
        free = [place for place in range(5) if place != index]

        def put(part: np.ndarray) -> np.ndarray:
            theta = fixed_start.copy()
            theta[free], theta[index] = part, held
            return theta

        found = least_squares(lambda part: left(put(part)), others[free], x_scale="jac", xtol=1e-14, ftol=1e-14)
        return float(2 * found.cost)

    least = float((left(others) ** 2).sum())
    limit = least * (1 + stats.t.ppf(0.975, freedom) ** 2 / freedom)
    own = float(fitted[index])
    return (
        float(brentq(lambda value: squares(value) - limit, own * 0.3, own, xtol=1e-3)),
        float(brentq(lambda value: squares(value) - limit, own, own * 2, xtol=1e-3)),
    )


@pytest.mark.parametrize(("points", "name"), [(grid_points(noise=5e-3), "alpha"), (together(1), "E")])
def test_intervals_are_those_of_the_profile(points: Points, name: str) -> None:
    fit = fit_surface(points, "squares")
    low, high = spread_surface(points, fit, 300).interval()[name]
    expected = profile(points, fit.surface, name)
    assert (low, high) == pytest.approx(expected, abs=0.12 * (expected[1] - expected[0]))


def test_laws_at_the_edge_fit_equally_well() -> None:
    points = grid_points(noise=5e-3)
    fit = fit_surface(points, "squares")
    found = spread_surface(points, fit, 200)
    losses = np.array([one.loss(points.params, points.tokens) for one in found.surfaces])
    squares = (np.log(losses / points.loss) ** 2).sum(1)
    least = (fit.residuals**2).sum()
    far = np.sqrt((squares - least) / (least / 31))
    assert found.failed == 0 and found.edge
    assert far == pytest.approx(stats.t.ppf(0.975, 31) / (1 - shortfall(200, 5)), rel=0.02)


def test_a_term_that_the_points_do_not_show_is_not_identified() -> None:
    generator = np.random.default_rng(0)
    params, tokens = 10 ** generator.uniform(7, 8, 9), 10 ** generator.uniform(9, 12, 9)
    loss = (2 + 900 / tokens**0.31) * np.exp(5e-3 * generator.normal(size=9))
    points = Points(params=params, tokens=tokens, loss=loss)
    found = spread_surface(points, fit_surface(points), 100)
    ends, best = found.interval(), found.optimum_interval(1e21)
    assert all(np.isnan(ends[name]).all() for name in ("A", "alpha", "a_opt"))
    assert np.isnan(best["params"]).all()
    assert ends["beta"][0] < 0.31 < ends["beta"][1] and ends["E"][0] < 2 < ends["E"][1]


def test_points_without_noise_have_intervals_without_width() -> None:
    points = grid_points()
    fit = fit_surface(points)
    low, high = spread_surface(points, fit, 20).interval()["alpha"]
    assert (low, high) == pytest.approx((fit.surface.alpha,) * 2, abs=1e-6)


@pytest.mark.parametrize("freedom", [1, 1.5, 3, 11, 200])
def test_student_s_quantiles_are_scipy_s(freedom: float) -> None:
    assert student_quantile(0.95, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-5)


@pytest.mark.parametrize("dimensions", [2, 3, 5])
def test_the_shortfall_is_that_of_random_places(dimensions: int) -> None:
    places = np.random.default_rng(0).normal(size=(300, 400, dimensions))
    farthest = (places[..., 0] / np.linalg.norm(places, axis=2)).max(1)
    assert shortfall(400, dimensions) == pytest.approx(1 - farthest.mean(), rel=0.15, abs=1e-4)


def test_the_mean_of_groups_has_one_degree_of_freedom_less_than_there_are_groups() -> None:
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(6), 5)
    loss = 0.3 * generator.normal(size=6)[groups] + 0.1 * generator.normal(size=30)
    found = estimate_noise(loss - loss.mean(), np.ones((30, 1)), groups)
    means = loss.reshape(6, 5).mean(1)
    assert found.freedom == pytest.approx([5])
    assert found.deviations / np.sqrt(30) == pytest.approx([stats.sem(means)])


def test_the_inefficiency_of_huber_s_penalty_is_that_of_its_fits() -> None:
    groups = np.arange(400)
    noise = estimate_noise(np.random.default_rng(0).normal(size=400), np.ones((400, 1)), groups)
    deviation = noise.total
    assert inefficiency(noise, groups, np.inf, 0) == pytest.approx([1])
    assert inefficiency(noise, groups, 0.0, 0) == pytest.approx([np.pi / 2], rel=0.15)
    drawn = draw_noise(Noise(deviation, 0.0), groups, None, 400, 1)
    ratio = np.var(np.median(drawn, axis=1)) / np.var(drawn.mean(axis=1))
    assert inefficiency(noise, groups, 0.0, 0) == pytest.approx([ratio], rel=0.3)


@pytest.mark.parametrize(
    ("directions", "noise", "delta"),
    [
        (np.eye(3)[:, :2], 1e300, 1e-30),  # all weights are zero
        (np.eye(3)[:, [0, 0]], 1.0, 0.1),  # one direction twice
        (np.zeros((3, 2)), 1.0, 0.1),
    ],
)
def test_a_singular_fit_with_huber_s_penalty_is_finite(directions: np.ndarray, noise: float, delta: float) -> None:
    drawn = noise * np.array([[1.0, -2.0, 3.0], [-1.0, 0.5, 2.0]])
    found = _reweighted(directions, drawn, np.zeros((2, 2)), delta)
    assert np.isfinite(found).all()
    assert np.abs(found).max() <= 3 * noise


def test_one_singular_fit_does_not_move_the_others() -> None:
    directions, regular = np.eye(3)[:, :2], np.array([[1.0, -2.0, 3.0]])
    alone = _reweighted(directions, regular, np.zeros((1, 2)), 1e-30)
    both = _reweighted(directions, np.concatenate([regular, 1e300 * regular]), np.zeros((2, 2)), 1e-30)
    assert both[0] == pytest.approx(alone[0], rel=1e-4)


def test_sizes_that_differ_by_rounding_make_no_parabola() -> None:
    logs = np.array([13.0, np.nextafter(13.0, 14), np.nextafter(13.0, 12), 14.0])
    best, height = _minima(logs, np.array([3.0, 3.1, 2.9, 2.5]), np.ones((1, 4)), inside=False)
    assert np.isnan(best).all() and np.isnan(height).all()
