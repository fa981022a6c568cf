"""Power laws, parabolas at equal compute and envelopes of curves, against known laws and NumPy's own fits."""

from dataclasses import replace

import numpy as np
import pytest
from law_oracle import SCALING, TRUTH

from shoestring.core.errors import UserError
from shoestring.laws.envelope import Curve, bootstrap_envelope, fit_envelope
from shoestring.laws.form import Surface
from shoestring.laws.isoflop import bootstrap_isoflop, fit_isoflop
from shoestring.laws.points import Points, read_points
from shoestring.laws.power import PowerBootstrap, fit_power, fit_rows, linear_factor, resample_power
from shoestring.laws.resampling import draw_counts

generator = np.random.default_rng(0)
X = np.geomspace(1e18, 1e25, 12)
Y = 0.3 * X**0.48 * np.exp(0.1 * generator.normal(size=12))
LAW = Surface(*TRUTH)


def test_logarithms_are_fitted_as_by_polyfit() -> None:
    slope, level = np.polyfit(np.log(X), np.log(Y), 1)
    law = fit_power(X, Y)
    assert law == pytest.approx((np.exp(level), slope), rel=1e-9)


@pytest.mark.parametrize(("x", "y"), [([1, 1], [2, 3]), ([1, 2], [0, 3]), ([1, np.nan], [1, 2]), ([1, 2, 3], [1, 2])])
def test_what_has_no_power_law_is_refused(x: list[float], y: list[float]) -> None:
    with pytest.raises(UserError):
        fit_power(np.array(x, float), np.array(y, float))


def resampled(x: np.ndarray, y: np.ndarray, resamples: int, seed: int = 0) -> PowerBootstrap:
    """Laws of draws of as many points, with replacement."""
    logs = np.broadcast_to(np.log(y), (resamples, len(y)))
    k, a = fit_rows(np.log(x), logs, draw_counts(len(x), resamples, seed))
    return PowerBootstrap(k=k, a=a)


def test_resamples_are_fits_of_repeated_points() -> None:
    found = resampled(X, Y, 5, seed=7)
    counts = draw_counts(12, 5, seed=7).astype(int)
    for row, k, a in zip(counts, found.k, found.a, strict=True):
        pick = np.repeat(np.arange(12), row)
        assert fit_power(X[pick], Y[pick]) == pytest.approx((k, a), rel=1e-9)


def test_an_interval_covers_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(60):
        y = 2 * X[:, None].repeat(3, 1).ravel() ** 0.5
        y = y * np.exp(0.2 * np.random.default_rng(seed).normal(size=36))
        low, high = resampled(X.repeat(3), y, 300, seed).interval(0.9)["a"]
        hits += low < 0.5 < high
    assert 45 <= hits <= 60


def test_a_resample_with_one_x_fails_and_is_counted() -> None:
    found = resampled(np.array([1.0, 2.0]), np.array([1.0, 3.0]), 200)
    assert 60 < found.failed < 140
    assert found.interval()["a"] == pytest.approx((np.log2(3), np.log2(3)))
    assert found.interval()["k"] == pytest.approx((1, 1))


def bowls(budgets: np.ndarray, noise: float = 0.0, seed: int = 0) -> Points:
    """Nine sizes a budget, a factor 8 to either side of the best."""
    best = np.array([LAW.optimum(flops)[0] for flops in budgets])
    params = (best[:, None] * np.geomspace(1 / 8, 8, 9)).ravel()
    flops = budgets.repeat(9)
    tokens = flops / 6 / params
    loss = LAW.loss(params, tokens) * np.exp(noise * np.random.default_rng(seed).normal(size=len(params)))
    return Points(params=params, tokens=tokens, loss=loss, given_flops=flops)


BUDGETS = np.geomspace(1e18, 1e22, 6)


def test_parabolas_find_the_optima_of_a_known_law() -> None:
    fit = fit_isoflop(bowls(BUDGETS))
    assert fit.left_out == ()
    for flops, one in zip(BUDGETS, fit.optima, strict=True):
        params, _, loss = LAW.optimum(flops)
        assert one.flops == pytest.approx(flops)
        assert one.params == pytest.approx(params, rel=0.1)  # a bowl is no parabola
        assert one.loss == pytest.approx(loss, rel=5e-3)
        assert 6 * one.params * one.tokens == pytest.approx(flops)
    assert fit.params_law.a == pytest.approx(LAW.a_opt, abs=0.01)
    assert fit.params_law.a + fit.tokens_law.a == pytest.approx(1, abs=1e-9)


def test_a_parabola_is_that_of_polyfit() -> None:
    points = bowls(BUDGETS[:2], noise=0.01)
    fit = fit_isoflop(points, np.inf)
    a, b, _ = np.polyfit(np.log(points.params[:9]), points.loss[:9], 2)
    assert np.log(fit.optima[0].params) == pytest.approx(-b / 2 / a, rel=1e-7)


def test_intervals_of_parabolas_hold_the_law() -> None:
    """30 data sets of a true parabola; 95 % of them in expectation, 3.4 standard deviations below at least."""
    logs = np.linspace(-1, 1, 5)
    hits = 0
    for seed in range(30):
        noise = 0.01 * np.random.default_rng(seed).normal(size=20)
        budgets = np.array([1e18, 1e19, 1e20, 1e21]).repeat(5)
        params = budgets**0.5 * np.exp(np.tile(logs, 4))
        loss = 3 + 0.1 * np.tile(logs, 4) ** 2 + noise
        points = Points(params=params, tokens=budgets / 6 / params, loss=loss, given_flops=budgets)
        law, tokens = bootstrap_isoflop(fit_isoflop(points, np.inf), 200, seed)
        low, high = law.interval()["a"]
        hits += low < 0.5 < high
        assert np.allclose((law.a + tokens.a)[np.isfinite(law.a)], 1, atol=1e-6)
    assert hits >= 25


def test_groups_without_an_optimum_are_named() -> None:
    good = bowls(BUDGETS)
    params = np.geomspace(1e8, 1e9, 5)
    extra = {
        1e24: np.linspace(3, 2, 5),  # falls to the end
        1e26: -((np.arange(5) - 2.0) ** 2) * 0.1 + 4,  # a hill
        1e28: None,  # two sizes
    }
    parts = [(good.params, good.tokens, good.loss)]
    for flops, loss in extra.items():
        sizes = params if loss is not None else params[:2]
        parts.append((sizes, flops / 6 / sizes, loss if loss is not None else np.array([2.0, 2.1])))
    points = Points(**{k: np.concatenate(v) for k, v in zip(("params", "tokens", "loss"), zip(*parts))})
    fit = fit_isoflop(points)
    assert len(fit.optima) == len(BUDGETS)
    told = "\n".join(fit.left_out)
    assert "1e+24 FLOP, 5 points" in told and "1e+26 FLOP, 5 points: the parabola opens downward" in told
    assert "1e+28 FLOP, 2 points: 2 sizes, and a parabola needs three or more" in told
    with pytest.raises(UserError, match="0 budgets with an optimum"):
        fit_isoflop(points.take(slice(len(good), None)))


def test_budgets_that_differ_by_a_little_are_one_group() -> None:
    points = bowls(BUDGETS)
    shaken = points.flops * np.exp(np.random.default_rng(0).uniform(-0.04, 0.04, len(points)))
    near = Points(params=points.params, tokens=points.tokens, loss=points.loss, given_flops=shaken)
    fit = fit_isoflop(near)
    assert [one.flops for one in fit.optima] == pytest.approx(BUDGETS, rel=0.04) and fit.left_out == ()


def curves(count: int = 14) -> list[Curve]:
    tokens = np.geomspace(1e8, 3e12, 150)
    sizes = np.geomspace(1e7, 1e10, count)
    return [Curve(params=float(size), tokens=tokens, loss=LAW.loss(size, tokens)) for size in sizes]


def test_an_envelope_finds_the_law_of_its_curves() -> None:
    fit = fit_envelope(curves(), budgets=1500)
    assert fit.params_law.a == pytest.approx(LAW.a_opt, abs=0.03)
    assert fit.params_law.a + fit.tokens_law.a == pytest.approx(1)
    for one in fit.minima:
        assert 6 * one.params * one.tokens == pytest.approx(one.flops)
        assert np.log(one.params / LAW.optimum(one.flops)[0]) == pytest.approx(0, abs=0.2)
    every = np.array([LAW.loss(c.params, fit.flops / 6 / c.params) for c in curves()])
    inside = slice(200, 1200)
    assert np.allclose(fit.loss[inside], every.min(0)[inside], rtol=1e-3)
    assert (np.diff(np.array([one.flops for one in fit.minima])) > 0).all()


def noisy(seed: int) -> list[Curve]:
    """The curves with noise that the evaluations of a run have in common."""
    draw = np.random.default_rng(seed)
    return [replace(one, loss=one.loss * np.exp(3e-3 * draw.normal() + 5e-4 * draw.normal())) for one in curves()]


def test_intervals_of_envelopes_are_as_wide_as_new_runs_spread() -> None:
    exponents = [fit_envelope(noisy(seed), 80).params_law.a for seed in range(40)]
    params, tokens = bootstrap_envelope(noisy(50), 40, budgets=80)
    assert 0.6 < np.std(params.a) / np.std(exponents) < 2
    assert params.a + tokens.a == pytest.approx(1)
    low, high = params.interval()["a"]
    assert low < fit_envelope(noisy(50), 80).params_law.a < high


def test_five_curves_tell_no_noise() -> None:
    with pytest.raises(UserError, match="5 runs for 5 coefficients"):
        bootstrap_envelope(curves()[:5], 10)


def test_curves_that_cannot_be_compared_are_refused() -> None:
    one, *_ = curves()
    with pytest.raises(UserError, match="1 curve; an envelope needs two"):
        fit_envelope([one])
    with pytest.raises(UserError, match="tokens must ascend"):
        fit_envelope([one, Curve(params=1e8, tokens=one.tokens[::-1], loss=one.loss, name="b")])
    with pytest.raises(UserError, match="lowest somewhere: 1;"):
        fit_envelope([one, one])


def have(name: str) -> object:
    return pytest.mark.skipif(not (SCALING / name).exists(), reason=f"needs shared/data/scaling/{name}")


PORIAN = {
    "rw/tuned/short/const/standard/val": 0.4970,
    "rw/base/short/chinchilla/standard/val": 0.5714,
    "rw/base/short/kaplan/standard/val": 0.6035,
    "rw/base/long/kaplan/standard/val": 0.7009,
    "rw/base/long/kaplan/kaplan/train": 0.8338,
}


@pytest.mark.realdata
@have("porian_all15_optima.csv")
@pytest.mark.parametrize("config", PORIAN)
def test_published_exponents_come_out(config: str) -> None:
    where = [f"config={config}"]
    path = SCALING / "porian_all15_optima.csv"
    optima, _ = read_points(path, params="n_star", flops="flops", loss="loss_star", where=where, skip_bad=True)
    assert fit_power(optima.flops, optima.params).a == pytest.approx(PORIAN[config], abs=5e-5)
    path = SCALING / "porian_all15_isoflop.csv"
    points, _ = read_points(path, params="N", tokens="D", flops="flops", loss="loss", where=where)
    assert fit_isoflop(points).params_law.a == pytest.approx(PORIAN[config], abs=0.025)


def test_a_parabola_is_fitted_near_the_lowest_loss() -> None:
    """Sizes far from the best, on a flat wall, pull a parabola of all sizes aside."""
    points = bowls(BUDGETS)
    flat = Points(
        params=points.params,
        tokens=points.tokens,
        loss=np.where(np.tile(np.arange(9), len(BUDGETS)) == 0, points.loss + 1, points.loss),
        given_flops=points.given_flops,
    )
    near, far = (fit_isoflop(flat, window).optima for window in (5.0, np.inf))
    for flops, one, other in zip(BUDGETS, near, far, strict=True):
        best = np.log(LAW.optimum(flops)[0])
        assert abs(np.log(one.params) - best) < 0.1 < abs(np.log(other.params) - best)
    assert [len(group.points) for group in fit_isoflop(flat, 1.1).groups] == [5] * len(BUDGETS)
    with pytest.raises(UserError, match="window = 1"):
        fit_isoflop(flat, 1.0)


def test_noise_that_runs_share_moves_parabolas_less() -> None:
    """Nine runs, each with a point at every budget: noise of a run moves all budgets alike, and the exponent little."""
    points = bowls(BUDGETS)
    which = np.tile(np.arange(9), len(BUDGETS))
    loss = points.loss + 0.01 * np.random.default_rng(0).normal(size=9)[which]
    given = {"params": points.params, "tokens": points.tokens, "loss": loss, "given_flops": points.given_flops}
    spreads = [
        np.nanstd(bootstrap_isoflop(fit_isoflop(Points(**given, given_groups=groups), np.inf), 100)[0].a)
        for groups in (which, None)
    ]
    assert spreads[0] < 0.9 * spreads[1]


def test_draws_are_of_as_many_points_each_as_likely() -> None:
    counts = draw_counts(10, 4000, seed=0)
    assert (counts.sum(1) == 10).all()
    assert counts.mean(0) == pytest.approx(np.ones(10), abs=0.08)  # five standard errors
    assert (counts == draw_counts(10, 4000, 0)).all() and (counts != draw_counts(10, 4000, 0, "other")).any()


def test_a_given_exponent_leaves_only_the_factor() -> None:
    x, y = np.geomspace(1e18, 1e24, 5), np.array([3e8, 1.2e9, 4e9, 1.1e10, 4e10])
    law = fit_power(x, y, 0.5)
    assert law == pytest.approx((np.exp(np.mean(np.log(y) - 0.5 * np.log(x))), 0.5), rel=1e-12)
    assert fit_power(x[:1], y[:1], 0.5).k == pytest.approx(y[0] / x[0] ** 0.5)
    with pytest.raises(UserError, match="needs 2"):
        fit_power(x[:1], y[:1])
    k = np.linalg.lstsq((x**0.5)[:, None], y, rcond=None)[0][0]
    assert linear_factor(x, y, 0.5) == pytest.approx(k, rel=1e-9)


@pytest.mark.parametrize("exponent", [0.5, None])
def test_noise_put_on_a_power_law_covers_as_often_as_it_says(exponent: float | None) -> None:
    generator = np.random.default_rng(3)
    x = np.geomspace(1e18, 1e22, 6)
    held = 0
    for trial in range(400):
        y = 0.1 * x**0.5 * np.exp(0.1 * generator.normal(size=6))
        low, high = resample_power(x, y, exponent, 400, seed=trial).interval()["k"]
        held += low <= 0.1 <= high
    assert 0.92 <= held / 400 <= 0.98
    two = resample_power(x[:2], y[:2], None, 10)
    assert two.failed == 10 and resample_power(x[:2], y[:2], 0.5, 10).failed == 0


def test_parabolas_and_envelopes_take_a_given_exponent() -> None:
    points = bowls(np.geomspace(1e18, 1e21, 5), noise=1e-4)
    free, fixed = fit_isoflop(points), fit_isoflop(points, exponent=0.5)
    flops, params, tokens = (np.array([getattr(o, n) for o in free.optima]) for n in ("flops", "params", "tokens"))
    assert fixed.params_law == fit_power(flops, params, 0.5) and fixed.tokens_law == fit_power(flops, tokens, 0.5)
    of_params, of_tokens = bootstrap_isoflop(fixed, 200, exponent=0.4)
    assert set(of_params.a) == {0.4} and set(of_tokens.a) == {0.6}
    low, high = bootstrap_isoflop(fixed, 200, exponent=0.5)[0].interval()["k"]
    assert low < fixed.params_law.k < high
    envelope = fit_envelope(curves(), exponent=0.45)
    assert (envelope.params_law.a, envelope.tokens_law.a) == (0.45, 0.55)
    drawn, _ = bootstrap_envelope(curves(), 50, exponent=0.45)
    assert set(drawn.a[~np.isnan(drawn.a)]) == {0.45}
    one = points.take(np.isclose(points.flops, points.flops[0], rtol=0.05))
    assert len(fit_isoflop(one, exponent=0.5).optima) == 1
    with pytest.raises(UserError, match="two or more"):
        fit_isoflop(one)
