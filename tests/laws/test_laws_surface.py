"""The surface: the global minimum, whatever the points are, and what is said where there is none."""

import numpy as np
import pytest
from law_oracle import TRUTH, drawn, grid_points, many_starts, objective
from scipy.optimize import check_grad, linprog, minimize_scalar, nnls

from shoestring.core.errors import UserError
from shoestring.laws.descent import STEEPEST, _solve, centre, descend, evaluate
from shoestring.laws.form import Surface
from shoestring.laws.points import Points
from shoestring.laws.resampling import draw_counts, interval
from shoestring.laws.starts import grid_starts, nonnegative
from shoestring.laws.surface import bootstrap_surface, fit_surface, spread_surface

KINDS = ["plain", "no E", "no A", "no B", "flat", "steep", "noise"]


def summed(points: Points, surface: Surface, delta: float) -> float:
    r = np.log(surface.loss(points.params, points.tokens)) - np.log(points.loss)
    size = np.abs(r)
    return float(np.where(size <= delta, r * r / 2, delta * (size - delta / 2) if np.isfinite(delta) else 0).sum())


def test_the_oracle_has_the_right_gradient() -> None:
    points = drawn(0, 20)
    theta = np.array([5.0, 6.0, 0.3, 0.3, 0.4])
    error = check_grad(lambda x: objective(x, points, 0.1)[0], lambda x: objective(x, points, 0.1)[1], theta)
    assert error < 1e-4 * np.abs(objective(theta, points, 0.1)[1]).max()


@pytest.mark.parametrize("truth", [TRUTH, (0.4, 30.0, 60.0, 0.2, 0.25), (1.0, 1e9, 50.0, 1.3, 0.15)])
@pytest.mark.parametrize("penalty", ["huber", "l1", "squares"])
def test_a_law_without_noise_is_found_exactly(truth: tuple[float, ...], penalty: str) -> None:
    fit = fit_surface(grid_points(truth), penalty)  # type: ignore[arg-type]
    assert np.allclose(fit.surface, truth, rtol=1e-6)
    assert fit.converged and fit.boundary == ()
    assert np.abs(fit.residuals).max() < 1e-9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("count", "delta"), [(9, 1e-3), (40, 1e-3), (40, np.inf)])
def test_no_other_way_finds_a_lower_minimum(kind: str, count: int, delta: float) -> None:
    seed = 100 * count + KINDS.index(kind)
    points = drawn(seed, count, kind, noise=0.02 if seed % 2 else 3e-3)
    fit = fit_surface(points, "huber" if np.isfinite(delta) else "squares", min(delta, 1.0))
    assert fit.converged
    assert fit.objective == pytest.approx(summed(points, fit.surface, delta), rel=1e-9)
    assert fit.objective <= many_starts(points, delta) * (1 + 1e-7)


@pytest.mark.parametrize("seed", range(14))
def test_no_other_start_leads_lower(seed: int) -> None:
    """80 random starts to one grid, over more data sets than BFGS has time for; each kind by both penalties."""
    points = drawn(seed, [6, 8, 15, 60][seed % 4], KINDS[seed % 7], [0.0, 1e-4, 3e-3, 0.05][seed % 3])
    centred = centre(points.params, points.tokens, points.loss)
    generator = np.random.default_rng(seed)
    starts = np.concatenate((generator.uniform(0, 1.5, (80, 3)), np.exp(generator.uniform(-5, 2.3, (80, 2)))), 1)
    starts[:, 0] *= np.exp(-starts[:, 3] * np.abs(centred.u).max() * generator.random(80))
    starts[:, 1] *= np.exp(-starts[:, 4] * np.abs(centred.v).max() * generator.random(80))
    penalty, delta = (("huber", 1e-3), ("squares", np.inf))[seed % 2]
    others = descend(centred, np.ones((1, len(points))), starts, delta).objective.min()
    assert fit_surface(points, penalty).objective <= others * (1 + 1e-6) + 1e-18  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(3))
def test_l1_cannot_be_improved_by_any_small_step(seed: int) -> None:
    """The best small step of Σ|r|, linearised, as a linear program: it finds nothing to gain."""
    points = drawn(seed, 30)
    fit = fit_surface(points, "l1")
    assert fit.objective == pytest.approx(np.abs(fit.residuals).sum(), rel=1e-9)
    E, A, B, alpha, beta = fit.surface
    n, d = np.log(points.params), np.log(points.tokens)
    prediction = fit.surface.loss(points.params, points.tokens)
    p, q = A * points.params**-alpha / prediction, B * points.tokens**-beta / prediction
    slopes = np.stack([p, q, E / prediction, -p * n, -q * d], 1)  # by ln A, ln B, ln E, α, β
    count, reach = len(points), 1e-6
    eye = np.eye(count)
    upper = np.block([[slopes, -eye], [-slopes, -eye]])
    found = linprog(
        np.r_[np.zeros(5), np.ones(count)],
        A_ub=upper,
        b_ub=np.r_[-fit.residuals, fit.residuals]
        / reach,  # in units of the step, since the solver's tolerance is fixed
        bounds=[(-1, 1)] * 5 + [(0, None)] * count,
    )
    assert found.success
    assert fit.objective - found.fun * reach < 1e-9 * fit.objective


def test_residuals_and_objective_are_those_of_the_surface() -> None:
    points = drawn(3, 25)
    fit = fit_surface(points, "squares")
    r = np.log(fit.surface.loss(points.params, points.tokens) / points.loss)
    assert np.allclose(fit.residuals, r, atol=1e-12)
    assert fit.objective == pytest.approx((r**2).sum() / 2)
    assert 0 <= fit.failed < fit.starts


def test_an_absent_term_is_named() -> None:
    points = grid_points((1.5, 0.0, 900.0, 0.3, 0.31))
    fit = fit_surface(points)
    assert fit.boundary == ("A",)
    assert fit.surface.A == 0 and fit.surface.alpha == 0
    assert pytest.approx(900, rel=1e-6) == fit.surface.B
    with pytest.raises(UserError, match="A = 0: more parameters gain nothing"):
        fit.surface.optimum(1e20)
    assert fit_surface(grid_points((0.0, 40.0, 90.0, 0.1, 0.11))).boundary == ("E",)


def test_a_step_is_named() -> None:
    points = grid_points((1.5, 400.0, 900.0, 0.34, 0.31))
    loss = points.loss + 0.3 * (points.params == points.params.min())
    only = Points(params=points.params, tokens=points.tokens, loss=loss - 400 / points.params**0.34)
    fit = fit_surface(only)
    assert fit.boundary == ("alpha",) and fit.surface.alpha == STEEPEST


@pytest.mark.parametrize(
    ("params", "tokens", "match"),
    [
        (np.geomspace(1e6, 1e9, 8), 20 * np.geomspace(1e6, 1e9, 8), r"tokens are proportional to params\^1 "),
        (np.geomspace(1e6, 1e9, 8), 1e18 / np.geomspace(1e6, 1e9, 8), r"params\^-1 "),
        (np.full(8, 1e8), np.geomspace(1e6, 1e9, 8), "params take 1 different value:"),
        (np.geomspace(1e6, 1e9, 8), np.array([1e9, 2e9] * 4), "tokens take 2 different values:"),
        (np.geomspace(1e6, 1e9, 4), np.array([1e9, 2e9, 5e9, 1e8]), "4 points; a law of 5 coefficients needs 5"),
        (np.array([1e6]), np.array([1e9]), "^1 point; a law of 5 coefficients needs 5"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(params: np.ndarray, tokens: np.ndarray, match: str) -> None:
    loss = np.linspace(4, 3, len(params))
    with pytest.raises(UserError, match=match):
        fit_surface(Points(params=params, tokens=tokens, loss=loss))


def test_five_points_are_enough_for_a_fit() -> None:
    fit = fit_surface(drawn(5, 5, noise=0))
    assert fit.objective < 1e-6


def test_units_do_not_matter() -> None:
    points = drawn(11, 40)
    scaled = Points(params=points.params * 1e-5, tokens=points.tokens * 1e3, loss=points.loss / 7)
    one, other = fit_surface(points).surface, fit_surface(scaled).surface
    assert pytest.approx(other.E * 7, rel=1e-5) == one.E
    assert one[3:] == pytest.approx(other[3:], rel=1e-5)


def test_the_optimum_is_where_a_search_finds_it() -> None:
    surface = Surface(*TRUTH)
    for flops in (1e15, 1e21, 1e27):
        params, tokens, loss = surface.optimum(flops)
        assert 6 * params * tokens == pytest.approx(flops)
        found = minimize_scalar(
            lambda x, flops=flops: surface.loss(np.exp(x), flops / 6 / np.exp(x)), bounds=(5, 45), method="bounded"
        )
        assert loss == pytest.approx(found.fun, rel=1e-10)
        assert np.log(params) == pytest.approx(found.x, abs=1e-3)
    ratio = surface.optimum(1e22)[0] / surface.optimum(1e20)[0]
    assert np.log(ratio) / np.log(100) == pytest.approx(surface.a_opt)
    assert surface.optimum(2e21, per_token=12)[0] == pytest.approx(surface.optimum(1e21)[0])


def test_coefficients_of_three_are_those_of_a_quadratic_program() -> None:
    generator = np.random.default_rng(0)
    design, right = generator.normal(size=(200, 8, 3)), generator.normal(size=(200, 8))
    gram = np.einsum("gni,gnj->gij", design, design)
    found = nonnegative(gram, np.einsum("gni,gn->gi", design, right))
    for one, matrix, target in zip(found, design, right, strict=True):
        assert np.allclose(one, nnls(matrix, target)[0], atol=1e-9)


def test_the_starts_hold_the_best_cell() -> None:
    points = drawn(2, 30)
    centred = centre(points.params, points.tokens, points.loss)
    starts = grid_starts(centred, 1e-3)
    assert (starts[:, :3] >= 0).all()
    heights = np.abs(evaluate(centred, starts).residuals).mean(1)
    assert heights[0] < 2 * heights.min()


def test_a_bootstrap_has_the_spread_of_new_data() -> None:
    """Standard errors of resamples against the spread over 50 data sets drawn from the same law."""
    fits = np.array([fit_surface(grid_points(noise=5e-3, seed=seed), "squares").surface for seed in range(50)])
    spread = fits[:, 3:].std(0)
    errors = []
    for seed in range(3):
        points = grid_points(noise=5e-3, seed=1000 + seed)
        found = bootstrap_surface(points, fit_surface(points, "squares"), 100, seed)
        assert found.failed == 0
        errors.append([np.nanstd(found.values()[name], ddof=1) for name in ("alpha", "beta")])
    assert np.mean(errors, 0) == pytest.approx(spread, rel=0.35)


@pytest.mark.parametrize("kind", ["plain", "no A", "noise"])
def test_every_resample_is_at_its_own_minimum(kind: str) -> None:
    points = drawn(8, 60, kind, 0.02)
    fit = fit_surface(points)
    found = bootstrap_surface(points, fit, 40, seed=3)
    weights = draw_counts(60, 40, seed=3, size=55).astype(int)
    ratios = []
    for row, counts in zip(found.samples[:6], weights[:6], strict=True):
        resample = points.take(np.repeat(np.arange(60), counts))
        reached = summed(resample, Surface(*row), 1e-3)
        ratios.append(reached / fit_surface(resample).objective)
    assert np.min(ratios) > 1 - 1e-6
    assert np.max(ratios) < 1.02 and np.median(ratios) < 1 + 1e-6


def test_a_bootstrap_is_the_same_each_time() -> None:
    points = drawn(4, 6)
    fit = fit_surface(points)
    for spread in (bootstrap_surface, spread_surface):
        one, two = (spread(points, fit, 50, seed=1) for _ in range(2))
        assert (one.samples == two.samples).all()
        assert len(one.surfaces) == 50 - one.failed
        assert (one.samples != spread(points, fit, 50, seed=2).samples).any()


def test_five_points_leave_nothing_to_tell_the_noise_from() -> None:
    points = drawn(5, 5)
    with pytest.raises(UserError, match="5 groups for 5 coefficients"):
        spread_surface(points, fit_surface(points), 10)


def test_the_interval_of_an_optimum_holds_the_optimum() -> None:
    points = grid_points(noise=5e-3)
    fit = fit_surface(points)
    for found in (spread_surface(points, fit, 200), bootstrap_surface(points, fit, 200)):
        low, high = found.interval()["a_opt"]
        assert low < fit.surface.a_opt < high
        for name, value in zip(("params", "tokens", "loss"), fit.surface.optimum(1e21)):
            low, high = found.optimum_interval(1e21)[name]
            assert low < value < high


def test_an_interval_leaves_nan_out() -> None:
    assert interval(np.array([np.nan, 1.0, 2.0, 3.0]), 1.0) == (1.0, 3.0)
    assert np.isnan(interval(np.array([np.nan]))).all()
    assert interval(np.array([1.0, 2.0, np.inf, np.inf])) == (1.0, np.inf)


def test_a_loss_that_never_changes_is_a_law_without_terms() -> None:
    points = grid_points()
    fit = fit_surface(Points(params=points.params, tokens=points.tokens, loss=np.full(36, 2.5)))
    assert pytest.approx(2.5) == fit.surface.E and {"A", "B"} <= set(fit.boundary)
    with pytest.raises(UserError, match="more parameters and tokens gain nothing"):
        _ = fit.surface.a_opt


def test_a_rising_loss_has_no_term_that_rises() -> None:
    """More is never modelled as worse: the term is absent instead."""
    points = grid_points()
    loss = 2 + 0.1 * np.log10(points.params) + 900 / points.tokens**0.31
    fit = fit_surface(Points(params=points.params, tokens=points.tokens, loss=loss))
    assert fit.boundary == ("A",) and fit.converged


def test_what_a_fit_cannot_do_is_refused() -> None:
    with pytest.raises(UserError, match='penalty = "cubes": must be huber, l1, squares'):
        fit_surface(grid_points(), "cubes")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="delta = 0"):
        fit_surface(grid_points(), delta=0)


def test_a_singular_matrix_among_others_is_no_error() -> None:
    """A valley that is exactly flat; the steps of the others are those of their own matrices, nearly."""
    flat = np.full((5, 5), 1 + 1e-13)
    np.fill_diagonal(flat, 1.0)
    curved = np.diag([1.0, 2.0, 3.0, 4.0, 5.0])
    free = np.zeros((2, 5), dtype=bool)
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.solve(flat + 1e-13 * np.eye(5), np.ones(5))
    step, promise = _solve(np.ones((2, 5)), np.stack([flat, curved]), free)
    assert np.isfinite(step).all() and (promise > 0).all()
    assert step[1] == pytest.approx(-1 / np.diag(curved), rel=1e-4)
