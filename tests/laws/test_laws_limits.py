"""What a law does not know: noise that rows share, terms that cannot be told apart, distance from the data."""

from pathlib import Path

import numpy as np
import pytest
from law_oracle import TRUTH, grid_points

from shoestring.core.errors import UserError
from shoestring.laws.extrapolation import beyond, distance, extrapolation_error, together
from shoestring.laws.form import Surface
from shoestring.laws.limits import apart, clustered
from shoestring.laws.noise import Noise, draw_noise, estimate_noise
from shoestring.laws.points import Points, read_points
from shoestring.laws.surface import fit_surface, heldout_error, spread_surface

LAW = Surface(*TRUTH)
RUNS, CHECKPOINTS = 22, 10


def checkpoints(seed: int, per_run: float = 5e-3, per_row: float = 1e-3) -> Points:
    """Ten checkpoints of each of 22 runs, with noise that a run's checkpoints have in common."""
    generator = np.random.default_rng(seed)
    groups = np.repeat(np.arange(RUNS), CHECKPOINTS)
    params = np.geomspace(1e7, 1e10, RUNS)[groups]
    tokens = (10 ** generator.uniform(10, 11.5, RUNS))[groups] * np.tile(np.linspace(0.1, 1, CHECKPOINTS), RUNS)
    noise = per_run * generator.normal(size=RUNS)[groups] + per_row * generator.normal(size=len(groups))
    return Points(params=params, tokens=tokens, loss=LAW.loss(params, tokens) * np.exp(noise), given_groups=groups)


def alone(points: Points) -> Points:
    """The same rows without their runs."""
    return Points(params=points.params, tokens=points.tokens, loss=points.loss)


def test_checkpoints_of_one_run_are_one_witness() -> None:
    """By rows the interval is too narrow; by runs it is as wide as the spread over new data."""
    exponents = [fit_surface(alone(checkpoints(seed)), "squares").surface.alpha for seed in range(30)]
    points = checkpoints(100)
    fit = fit_surface(points, "squares")
    by_run, by_row = (np.std(spread_surface(each, fit, 200).values()["alpha"]) for each in (points, alone(points)))
    assert by_run == pytest.approx(np.std(exponents), rel=0.5)
    assert by_row < 0.6 * np.std(exponents)


def test_the_two_sizes_of_noise_are_found() -> None:
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 5)
    slopes = np.stack((np.ones(200), groups / 40, generator.normal(size=200)), 1)
    found = []
    for _ in range(40):
        noise = 0.3 * generator.normal(size=40)[groups] + 0.1 * generator.normal(size=200)
        left = noise - slopes @ np.linalg.lstsq(slopes, noise, rcond=None)[0]
        found.append(estimate_noise(left, slopes, groups).noise)
    assert np.sqrt(np.mean(np.square(found), 0)) == pytest.approx((0.1, 0.3), rel=0.05)


def test_noise_that_was_estimated_from_little_is_student_s() -> None:
    drawn = draw_noise(Noise(1.0, 0.0), np.arange(2), 3, 20_000, 0)[:, 0]
    assert np.quantile(drawn, 0.975) == pytest.approx(3.182, rel=0.05)  # t of 3 degrees
    grouped = draw_noise(Noise(0.0, 1.0), np.array([0, 0, 1]), 100, 50, 0)
    assert (grouped[:, 0] == grouped[:, 1]).all() and (grouped[:, 0] != grouped[:, 2]).all()


def test_rows_that_look_like_checkpoints_are_pointed_out() -> None:
    points = alone(checkpoints(3))
    assert "--group" in str(clustered(points, fit_surface(points).residuals))
    separate = alone(checkpoints(3, per_run=0.0))
    assert clustered(separate, fit_surface(separate).residuals) is None
    grouped = checkpoints(3)
    assert clustered(grouped, fit_surface(grouped).residuals) is None


def test_the_run_of_a_row_is_read_from_a_column(tmp_path: Path) -> None:
    lines = [f"{1e6 * i},{1e9 * i * i},3,{name}" for i, name in enumerate("bbaac", 1)]
    path = tmp_path / "t.csv"
    path.write_text("N,D,L,run\n" + "\n".join(lines) + "\n")
    points, _ = read_points(path, params="N", tokens="D", loss="L", group="run")
    assert points.groups.tolist() == [1, 1, 0, 0, 2] and points.group_count == 3
    assert points.take(slice(1, 3)).groups.tolist() == [1, 0]
    path.write_text("N,D,L,run\n" + "\n".join(lines) + "\n1,1,1,\n")
    with pytest.raises(UserError, match='line 7, column "run": missing'):
        read_points(path, params="N", tokens="D", loss="L", group="run")


def test_parameters_and_tokens_that_move_together_are_pointed_out() -> None:
    params = np.geomspace(1e7, 1e10, 16)
    tokens = 20 * params * np.exp(0.15 * np.random.default_rng(0).normal(size=16))
    points = Points(params=params, tokens=tokens, loss=LAW.loss(params, tokens))
    (said,) = together(apart(points))
    assert "move together" in said and "do not trust its best size" in said
    assert together(apart(grid_points())) == []


def test_each_of_n_d_and_c_is_judged() -> None:
    ranges = {"params": (1e7, 2e9), "tokens": (1e9, 1e12), "flops": (6e16, 1e22)}
    (line,) = beyond(ranges, {"params": 4e9, "tokens": 1e11, "flops": 2.4e21})
    assert "4B parameters is 2 times above the data" in line
    (line,) = beyond(ranges, {"params": 1e9, "tokens": 1e8, "flops": 6e17})
    assert "100M tokens is 10 times below the data" in line
    assert beyond(ranges, {"params": 2e9, "tokens": 1e9, "flops": 1e22}) == []
    assert distance(ranges, {"params": 4e9, "tokens": 1e8, "flops": 1e20}) == pytest.approx(np.log(10))


def test_the_error_of_extrapolation_grows_with_the_distance() -> None:
    near, far = (extrapolation_error(np.log(factor), 0.02, np.log(2)) for factor in (2, 8))
    assert near == pytest.approx(0.05) and far == pytest.approx(0.15)
    assert extrapolation_error(0.0, None, None) == 0.0 and extrapolation_error(1.0, None, None) is None


def test_held_out_points_know_how_far_they_are() -> None:
    held = heldout_error(grid_points(noise=2e-3))
    assert len(held.distances) == held.predicted and held.distances.max() > np.log(3)
