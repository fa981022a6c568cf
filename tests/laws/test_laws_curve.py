"""The law of a single curve: its sums against those of the article, and its intervals on curves of known laws."""

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from shoestring.laws.curve import DELAY_SHARE, Path, fit_curve

Floats = NDArray[np.float64]


def rates(steps: Floats, total: float, kind: str) -> Floats:
    progress = (steps - 0.5) / total
    left = (1 - progress) / 0.95
    shape = {"cosine": 0.5 - 0.5 * np.cos(math.pi * left), "linear": left, "constant": np.ones_like(left)}[kind]
    return 3e-3 * np.where(progress < 0.05, progress / 0.05, shape)


def path_of(kind: str = "cosine", total: int = 4000, lines: int = 400) -> Path:
    steps = np.arange(1, lines + 1) * (total / lines)
    return Path(steps, rates(steps, total, kind))


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_the_sums_are_those_of_the_article(kind: str) -> None:
    """S1 = Σ η, and S2 = Σ_i Σ_{k≤i} (η_{k-1} - η_k) λ^(i-k), by steps; ours are by the peak, and S2 by its delay."""
    total = 600
    steps = np.arange(1.0, total + 1)
    eta = rates(steps, total, kind) / rates(steps, total, kind).max()
    delay = DELAY_SHARE * total
    decay, momentum, area = math.exp(-1 / delay), 0.0, [0.0]
    for before, after in itertools.pairwise(eta):
        momentum = decay * momentum + max(before - after, 0.0)
        area.append(area[-1] + momentum)
    found = Path(steps, eta).at(steps)
    np.testing.assert_allclose(found.sums, np.cumsum(eta), atol=1.0)
    np.testing.assert_allclose(found.fallen, np.array(area) / delay, atol=0.02)


def planted(random: np.random.Generator, path: Path) -> Floats:
    """A loss by the law, with a floor, a power and a gain that are drawn."""
    found = path.at(path.steps)
    end, alpha, floor = random.uniform(0.6, 3.5), random.uniform(0.2, 0.8), random.uniform(0.3, 0.95)
    power = (1 - floor) * (found.sums / found.sums[-1]) ** -alpha
    return np.asarray(end * (floor + power - random.uniform(0.0, 0.1) * found.fallen))


@pytest.mark.parametrize(("share", "most"), [(0.2, 0.06), (0.5, 0.02)])
def test_intervals_hold_the_ends_of_simulated_curves(share: float, most: float) -> None:
    random, held, errors = np.random.default_rng(5), [], []
    for _ in range(40):
        path = path_of(str(random.choice(["cosine", "linear", "constant"])))
        true = planted(random, path)
        seen = true * (1 + random.choice([0.003, 0.01, 0.03]) * random.standard_normal(len(true)))
        known = path.steps <= share * path.steps[-1]
        fit = fit_curve(path.steps[known], seen[known], path)
        assert fit is not None
        found = fit.predict(path, path.steps[-1])
        assert found.low < found.loss < found.high
        held.append(found.low <= true[-1] <= found.high)
        errors.append(abs(found.loss / true[-1] - 1))
    assert np.mean(held) >= 0.85
    assert np.median(errors) <= most


def test_a_curve_that_is_known_is_fitted_closely() -> None:
    path = path_of()
    true = planted(np.random.default_rng(1), path)
    fit = fit_curve(path.steps, true, path)
    assert fit is not None
    for place in (100, 200, 399):
        assert fit.predict(path, path.steps[place]).loss == pytest.approx(true[place], rel=0.02)


def test_a_curve_that_broke_its_law_has_a_wide_interval() -> None:
    """A plateau that is left late: the errors of earlier forecasts widen the interval."""
    path = path_of("constant")
    power = 2 + 1.5 * (path.steps / path.steps[-1]) ** -0.3
    plateau = np.where(path.steps < 500, 5.0, power)
    known = path.steps <= 800
    widths = []
    for losses in (power, plateau):
        fit = fit_curve(path.steps[known], losses[known], path)
        assert fit is not None
        found = fit.predict(path, path.steps[-1])
        widths.append(found.high - found.low)
    assert widths[1] > 3 * widths[0]


def test_too_few_lines_are_no_fit_and_the_same_lines_the_same_fit() -> None:
    path = path_of()
    losses = planted(np.random.default_rng(2), path)
    assert fit_curve(path.steps[:4], losses[:4], path) is None
    assert fit_curve(path.steps, losses, Path(path.steps, 0 * path.rates)) is None
    first, second = (fit_curve(path.steps[:80], losses[:80], path) for _ in range(2))
    assert first is not None and second is not None
    assert first.predict(path, 4000) == second.predict(path, 4000)
