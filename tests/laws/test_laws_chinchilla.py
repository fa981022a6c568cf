"""Fits of published data: the coefficients that a correct fit gives."""

import numpy as np
import pytest
from law_oracle import SCALING, many_starts

from shoestring.laws.points import Points, read_points
from shoestring.laws.surface import bootstrap_surface, fit_surface, heldout_error

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(not SCALING.exists(), reason="needs shared/data/scaling"),
]


def chinchilla() -> Points:
    path = SCALING / "chinchilla_epoch_svg_extracted.csv"
    points, _ = read_points(path, params="Model Size", flops="Training FLOP", loss="loss")
    return points


def test_the_huber_fit_of_240_points() -> None:
    fit = fit_surface(chinchilla().take(slice(5, None)))
    assert fit.objective <= 0.00101827402 * (1 + 1e-6)
    assert fit.surface == pytest.approx((1.817218, 477.826, 2143.417, 0.3473105, 0.3671724), rel=5e-7)
    assert fit.surface.a_opt == pytest.approx(0.5138995, abs=5e-8)
    assert fit.converged and fit.boundary == ()


def test_the_l1_fit_of_240_points() -> None:
    fit = fit_surface(chinchilla().take(slice(5, None)), "l1")
    assert fit.objective == pytest.approx(1.1294947, abs=5e-8)
    assert fit.surface == pytest.approx((1.816864, 482.006, 2085.436, 0.3478131, 0.3658542), rel=5e-7)
    assert fit.surface.a_opt == pytest.approx(0.512640, abs=5e-7)


def test_all_245_points() -> None:
    assert fit_surface(chinchilla()).surface.a_opt == pytest.approx(0.5646, abs=5e-5)


def test_the_bootstrap_of_240_points() -> None:
    """The tolerances are three times the spread of such numbers over repetitions with this many resamples."""
    points = chinchilla().take(slice(5, None))
    found = bootstrap_surface(points, fit_surface(points), 2000)
    assert found.failed == 0 and found.moved == 0
    published = {"A": 124.5, "B": 1293, "E": 0.02566, "alpha": 0.01540, "beta": 0.02059, "a_opt": 0.01997}
    wide = {"A": 0.15, "B": 0.35}  # long tails
    values = found.values()
    for name, value in published.items():
        assert np.nanstd(values[name], ddof=1) == pytest.approx(value, rel=wide.get(name, 0.1)), name
    assert found.interval()["a_opt"] == pytest.approx((0.4805, 0.5561), abs=6e-3)


FILES = {
    "gadre": ("gadre_104_with_errors.csv", {"params": "N", "tokens": "D", "loss": "loss_c4_val"}),
    "gemstones": (
        "gemstones/runs_cool_end.jsonl",
        {"params": "params_active_precise", "tokens": "tokens", "loss": "final_loss"},
    ),
    "misfitting": ("misfitting_last_ckpt.csv", {"params": "N_no_emb", "tokens": "D", "loss": "loss"}),
}


@pytest.mark.parametrize("name", FILES)
def test_other_tables_are_fitted_at_least_as_well(name: str) -> None:
    path, columns = FILES[name]
    points, messages = read_points(SCALING / path, **columns)
    assert messages == []
    fit = fit_surface(points)
    assert fit.converged
    assert 0 < fit.surface.a_opt < 1
    assert np.abs(fit.residuals).mean() < 0.03
    assert fit.objective <= many_starts(points, 1e-3) * (1 + 1e-9)


def test_the_small_runs_of_gadre_foretell_the_large_ones() -> None:
    path, columns = FILES["gadre"]
    points, _ = read_points(SCALING / path, **columns, where=["train_set=rw_original"])
    assert heldout_error(points).mean_absolute < 0.02
