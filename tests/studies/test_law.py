"""Laws of tables and of run folders: against published fits, laws that the tests know, and brute force."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from law_runs import write_run
from scipy.stats import norm

from shoestring.core.errors import UserError
from shoestring.core.law_record import Estimate, Law
from shoestring.core.units import Count
from shoestring.laws.form import Surface
from shoestring.studies.allocation import fit_optima, one_table
from shoestring.studies.law import fit_law
from shoestring.studies.law_data import Columns, Given, read_given
from shoestring.studies.law_options import Asked, ask
from shoestring.studies.law_report import flops_levels, write_report
from shoestring.studies.optimum import (
    FACTORS,
    Measured,
    best_for_flops,
    best_for_time,
    find_best,
    off_rows,
    predict,
    read_speeds,
    time_runs,
)
from shoestring.studies.run_results import read_trained
from shoestring.studies.sizing import best_params, has_optimum, power_optimum, read_law, size_lines, surface_of

DATA = Path(__file__).resolve().parents[3] / "shared/data/scaling"
CHINCHILLA = DATA / "chinchilla_epoch_svg_extracted.csv"
TRUE = Surface(E=1.0, A=30.0, B=50.0, alpha=0.3, beta=0.35)
PUBLISHED = {"A": 477.826, "B": 2143.417, "E": 1.817218, "alpha": 0.3473105, "beta": 0.3671724, "a_opt": 0.5138995}
"""Of Huber's penalty, on the 240 points."""


def law(params: float, tokens: float) -> float:
    return float(TRUE.loss(params, tokens))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Six sizes at each of four budgets; steps such that steps · N is about equal."""
    folder = tmp_path_factory.mktemp("runs")
    found = []
    for product in (6.4e7, 1.6e8, 4e8, 1e9):
        for width, layers in ((16, 1), (32, 2), (48, 3), (64, 4), (96, 6), (128, 8)):
            params = 257 * width + 12 * layers * width**2
            found.append(write_run(folder, width, layers, math.ceil(product / params), law, evaluations=30))
    return found


@pytest.fixture(scope="module")
def given(runs: list[Path]) -> Given:
    return read_given(runs, Columns())


@pytest.mark.realdata
def test_chinchilla_s_points_give_the_published_law() -> None:
    if not CHINCHILLA.is_file():
        pytest.skip("the extracted points are not beside the project")
    columns = Columns(loss="loss", params="Model Size", flops="Training FLOP")
    points = read_given([CHINCHILLA], columns, drop_largest=5)
    assert len(points.points) == 240 and "5 points of the largest losses" in points.said[0]
    found = fit_law(points, ask("3", "huber", 0, None)).law
    assert found.objective == pytest.approx(0.00101827402, rel=1e-6)
    for name, value in PUBLISHED.items():
        assert found.coefficients[name].value == pytest.approx(value, rel=1e-5)
    shipped = read_law(None)
    assert {n: e.value for n, e in shipped.coefficients.items()} == pytest.approx(
        {n: e.value for n, e in found.coefficients.items()}, rel=1e-6
    )


def test_the_law_of_the_package_is_the_published_one() -> None:
    shipped = read_law(None)
    assert {name: found.value for name, found in shipped.coefficients.items()} == pytest.approx(PUBLISHED, rel=1e-5)
    grows = shipped.coefficients["a_opt"]
    assert grows.low == pytest.approx(0.4805, abs=0.004) and grows.high == pytest.approx(0.5561, abs=0.004)
    assert len(shipped.samples) == 1000 and "Epoch AI" in shipped.source


def test_the_law_behind_runs_is_found(given: Given) -> None:
    fitted = fit_law(given, Asked(resamples=50))
    found = fitted.law
    for name, value in zip(Surface._fields, TRUE):
        assert found.coefficients[name].value == pytest.approx(value, rel=1e-4)
    assert found.heldout_error == pytest.approx(0, abs=1e-6)
    assert fitted.predicted == pytest.approx(given.points.loss)
    per_product = given.points.flops / given.points.params / given.points.tokens
    assert min(per_product) < found.flops_per_product < max(per_product)
    by_approach = {one.approach: one for one in found.allocations}
    true_exponent = TRUE.beta / (TRUE.alpha + TRUE.beta)
    assert by_approach[2].params_exponent.value == pytest.approx(true_exponent, abs=0.12)
    assert by_approach[1].params_exponent.value == pytest.approx(true_exponent, abs=0.25)
    for flops, params, tokens in by_approach[2].optima:  # a parabola is not the law, but its minimum is near
        best = TRUE.optimum(flops, flops / params / tokens)[0]
        assert 0.4 < params / best < 2.5


def test_a_law_is_read_back_as_it_was_written(given: Given, tmp_path: Path) -> None:
    found = fit_law(given, Asked(resamples=20)).law
    found.write(tmp_path / "law.json")
    assert Law.read(tmp_path / "law.json") == found


def test_the_page_holds_everything_and_asks_the_network_for_nothing(given: Given, tmp_path: Path) -> None:
    write_report(tmp_path / "law.html", given, fit_law(given, Asked(resamples=20, name="<b>")))
    page = (tmp_path / "law.html").read_text()
    for title in (
        "Coefficients",
        "The best model by compute",
        "Loss by size",
        "What the law leaves over",
        "of the runs",
    ):
        assert title in page
    assert page.count("<svg") == 4 and "&lt;b&gt;" in page
    assert not [part for part in page.split('"') if part.startswith(("http", "//")) and "w3.org" not in part]


def test_levels_are_the_groups_of_the_data_where_there_are_few() -> None:
    flops = np.array([1e15, 1.02e15, 1e16, 0.97e16, 1e17])
    assert flops_levels(flops) == pytest.approx([1e15, 1e16, 1e17], rel=0.03)
    assert len(flops_levels(np.geomspace(1e15, 1e20, 200))) == 9


TABLE = "name,N,D,C,loss\n" + "".join(
    f"m{n}-{d},{n},{d},{6 * n * d},{law(n, d)}\n" for n in (1e5, 1e6, 1e7) for d in (1e6, 1e8, 1e9, 3e9)
)


def test_any_two_of_params_tokens_and_flops_will_do(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    for columns in (
        Columns(loss="loss", params="N", tokens="D"),
        Columns(loss="loss", params="N", flops="C"),
        Columns(loss="loss", tokens="D", flops="C"),
        Columns(loss="loss", params="N", tokens="D", flops="C"),
    ):
        found = fit_law(read_given([tmp_path / "t.csv"], columns), ask("3", "squares", 0, None)).law
        assert found.coefficients["alpha"].value == pytest.approx(TRUE.alpha, rel=1e-4)
        assert found.flops_per_product == pytest.approx(6)


def test_bad_rows_are_named_or_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE + "bad,nan,1,1,1\nworse,1e6,0,1,1\nworst,1e6,1e6,1,\n")
    columns = Columns(loss="loss", params="N", tokens="D")
    with pytest.raises(UserError, match="3 numbers or rows cannot be used") as caught:
        read_given([tmp_path / "t.csv"], columns)
    assert all(f"line {line}" in str(caught.value) for line in (14, 15, 16))
    found = read_given([tmp_path / "t.csv"], columns, skip_bad=True)
    assert len(found.points) == 12 and len(found.said) == 3


def test_what_cannot_be_fitted_is_said(tmp_path: Path, runs: list[Path]) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    for paths, columns, message in (
        ([tmp_path / "t.csv"], Columns(), "name its columns"),
        ([tmp_path / "t.csv", runs[0]], Columns(loss="loss"), "one table, or run folders"),
        ([tmp_path / "nothing"], Columns(), "no file or folder"),
        (runs, Columns(loss="loss"), "are for a table"),
    ):
        with pytest.raises(UserError, match=message):
            read_given(paths, columns)
    with pytest.raises(UserError, match="law compare RUN RUN"):
        fit_law(read_given(runs[:2], Columns()), Asked(resamples=0))
    with pytest.raises(UserError, match="only 24 points"):
        read_given(runs, Columns(), drop_largest=24)
    with pytest.raises(UserError, match="must be total or no-embeddings"):
        read_given(runs, Columns(), count="some")
    for approach, penalty in (("4", "huber"), ("3", "cubes")):
        with pytest.raises(UserError, match="must be"):
            ask(approach, penalty, 10, None)


def known(samples: bool = False) -> Law:
    """The true law as a record; with samples around it."""
    draw = np.random.default_rng(0)
    rows = np.array(TRUE) * np.exp(0.02 * draw.standard_normal((200, 5))) if samples else np.empty((0, 5))
    values = dict(zip(Surface._fields, TRUE)) | {"a_opt": TRUE.a_opt}
    return Law(
        source="test",
        count="test",
        flops_per_product=7.0,
        points=10,
        params=(1e5, 1e7),
        tokens=(1e6, 1e9),
        flops=(1e12, 1e16),
        penalty="huber",
        coefficients={name: Estimate(value=value) for name, value in values.items()},
        samples=tuple(tuple(map(float, row)) for row in rows),
    )


def test_the_best_model_for_flops_is_the_lowest_of_all_sizes() -> None:
    best = best_for_flops(known(samples=True), 1e15, FACTORS)
    sizes = np.geomspace(1e3, 1e10, 400_001)
    losses = TRUE.loss(sizes, 1e15 / 7 / sizes)
    assert best.params.value == pytest.approx(sizes[losses.argmin()], rel=1e-3)
    assert best.loss.value == pytest.approx(losses.min(), rel=1e-9)
    assert best.params.low is not None and best.params.high is not None
    assert best.params.low < best.params.value < best.params.high
    for off in best.off:
        assert off.params * off.tokens * 7 == pytest.approx(1e15)
        assert off.more_loss.value == pytest.approx(law(off.params, off.tokens) - best.loss.value)
        assert off.more_budget is not None
        assert law(off.params, off.tokens * (1 + off.more_budget)) == pytest.approx(best.loss.value)
    assert best_for_flops(known(), 1e14).notes == ()
    notes = best_for_flops(known(), 1e18).notes
    assert any("1 EFLOP is 100 times above the data" in note for note in notes)


def measured(params: float, rate: float) -> Measured:
    return Measured(name="m", machine="test (0)", params=int(params), tokens_per_second=rate, flops_per_second=1.0)


@pytest.mark.parametrize("sizes", [[(1e5, 1e6), (1e6, 2e5), (1e7, 1.5e4)], [(1e6, 2e5)]], ids=["three", "one"])
def test_the_best_model_for_a_deadline_is_the_lowest_of_all_sizes(sizes: list[tuple[float, float]]) -> None:
    found = best_for_time(known(), 3600.0, [measured(*one) for one in sizes], FACTORS)
    grid = np.geomspace(1e4, 1e9, 400_001)
    if len(sizes) == 1:
        speeds = 2e5 * 1e6 / grid
    else:
        logs = np.log(np.array(sizes))
        slopes = np.diff(logs[:, 1]) / np.diff(logs[:, 0])
        inside = np.interp(np.log(grid), *logs.T)
        inside += slopes[0] * np.minimum(np.log(grid) - logs[0, 0], 0) + slopes[-1] * np.maximum(
            np.log(grid) - logs[-1, 0], 0
        )
        speeds = np.exp(inside)
    losses = TRUE.loss(grid, speeds * 3600)
    assert found.loss.value == pytest.approx(losses.min(), rel=1e-9)
    assert found.params.value == pytest.approx(grid[losses.argmin()], rel=1e-3)
    assert found.tokens.value == pytest.approx(speeds[losses.argmin()] * 3600, rel=2e-3)
    for off in found.off:
        assert off.more_loss.value > 0 and off.more_budget is not None and off.more_budget > 0
        assert law(off.params, off.tokens * (1 + off.more_budget)) == pytest.approx(found.loss.value)
    assert any("one size was measured" in note for note in found.notes) == (len(sizes) == 1)


def test_a_budget_is_one_of_two() -> None:
    for flops, time, message in (
        (None, None, "give one budget"),
        ("1e21", "5d", "give one budget"),
        ("fast", None, "--flops 'fast'"),
        (None, "5", "has no unit"),
        ("0", None, "above zero"),
        (None, "5d", "needs --profile"),
    ):
        with pytest.raises(UserError, match=message):
            find_best(known(), flops, time, [], FACTORS)
    with pytest.raises(UserError, match="--profile: is for --time"):
        find_best(known(), "1e15", None, [Path("x")], FACTORS)
    assert len(off_rows(find_best(known(), "1e15", None, [], FACTORS))) == 2


def test_a_size_that_never_gets_there_says_so() -> None:
    best = best_for_flops(known(), 1e15, (0.001,))
    assert best.off[0].more_budget is None
    assert off_rows(best)[0][-1] == "never reached"


def test_a_law_without_a_term_has_no_best_size() -> None:
    flat = known()
    values = {name: found for name, found in flat.coefficients.items() if name != "a_opt"}
    assert not has_optimum(Law(**{**flat.__dict__, "coefficients": values}))
    for name in ("A", "beta"):
        one_term = Law(**{**flat.__dict__, "coefficients": flat.coefficients | {name: Estimate(value=0.0)}})
        with pytest.raises(UserError, match="gain nothing"):
            best_for_flops(one_term, 1e15, FACTORS)
        with pytest.raises(UserError, match="gain nothing"):
            best_for_time(one_term, 3600.0, [measured(1e6, 2e5)], FACTORS)
    with pytest.raises(UserError, match="--approach 3"):
        surface_of(Law(**{**flat.__dict__, "coefficients": {}}))


def test_speeds_are_those_of_the_profiles(runs: list[Path], tmp_path: Path) -> None:
    found = read_speeds([runs[2], runs[0]], "total")
    small, large = (read_trained(path, "total") for path in (runs[0], runs[2]))
    assert [one.params for one in found] == [small.params, large.params]
    for one, run in zip(found, (small, large)):  # 1e10 FLOP/s, as the helper made them
        assert one.flops_per_second == pytest.approx(1e10)
        assert one.tokens_per_second == pytest.approx(1e10 / run.flops_per_token)
    with pytest.raises(UserError, match="same number of parameters"):
        read_speeds([runs[0], runs[0]], "total")
    with pytest.raises(UserError, match="not a run folder"):
        read_speeds([tmp_path], "total")


def test_the_time_of_runs_is_their_flops_at_the_measured_rate(runs: list[Path]) -> None:
    from shoestring.core import recipe_file

    recipe = recipe_file.load(runs[1] / "recipe.toml")
    run = read_trained(runs[1], "total")
    for profiles in ([runs[0]], [runs[0], runs[1], runs[2]]):
        (time,), how = time_runs([recipe], 257, profiles, None)
        assert time is not None and time.expected == pytest.approx(run.flops / 1e10)
        assert "measured on test" in how
    assert time_runs([recipe], 257, [], None)[0] == [None]
    with pytest.raises(UserError, match="give one of the two"):
        time_runs([recipe], 257, [runs[0]], "NVIDIA H200")


def test_a_plan_is_told_whether_its_model_is_of_the_best_size(runs: list[Path]) -> None:
    from shoestring.core import recipe_file
    from shoestring.core.records import Plan, Profile

    recipe, profile = recipe_file.load(runs[1] / "recipe.toml"), Profile.read(runs[1] / "profile.json")
    params = profile.cost.total_parameters
    for flops, said in ((1e8, "too large"), (1e15, "too small")):
        best = TRUE.optimum(flops, 7.0)[0]
        lines = size_lines(known(), recipe, profile, Plan(binding="steps", flops=flops))
        assert (params > best) == (said == "too large")
        assert lines[0].quantity == "best model" and said in lines[1].reason
    assert size_lines(known(), recipe, profile, Plan(binding="steps")) == []


@pytest.mark.parametrize("flops", [1e17, 1e20, 1e24])
def test_the_best_size_beside_a_plan_is_that_of_the_law(flops: float) -> None:
    law = read_law(None)
    found, best = best_params(law, flops), best_for_flops(law, flops)
    assert tuple(found) == pytest.approx((best.params.low, best.params.value, best.params.high), rel=1e-12)
    alone = best_params(Law(**{**law.__dict__, "samples": ()}), flops)
    assert tuple(alone) == (best.params.value,) * 3


def test_a_prediction_says_how_far_it_is_from_the_data() -> None:
    record = Law(**{**known(samples=True).__dict__, "heldout_error": 0.02, "heldout_distance": math.log(4)})
    inside, outside = predict(record, 1e6, 1e8), predict(record, 4e7, 1e8)
    assert inside.notes == () and inside.loss.value == pytest.approx(law(1e6, 1e8))
    assert "40M parameters is 4 times above the data" in outside.notes[0]
    losses = np.array([Surface(*row).loss(4e7, 1e8) for row in record.samples])
    bias = norm.ppf(np.mean(losses < outside.loss.value))
    sampled = np.quantile(losses, norm.cdf(2 * bias + 1.959964))
    more = math.hypot(sampled - outside.loss.value, 0.05 * outside.loss.value)  # 2.5 times the held-out 2 %
    assert outside.loss.high == pytest.approx(outside.loss.value + more)
    with pytest.raises(UserError, match="--tokens 0: must be above 0"):
        predict(record, 1e6, 0.0)


def test_a_table_whose_sizes_and_tokens_move_together_is_not_trusted(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    rows = [(n, 20 * n * math.exp(0.1 * draw.normal())) for n in np.geomspace(1e6, 1e9, 12)]
    text = "N,D,L\n" + "".join(f"{n},{d},{law(n, d) * math.exp(0.003 * draw.normal())}\n" for n, d in rows)
    (tmp_path / "t.csv").write_text(text)
    given = read_given([tmp_path / "t.csv"], Columns(params="N", tokens="D", loss="L"))
    found = fit_law(given, ask("3", "huber", 0, None, 1e-2)).law
    assert any("move together" in note for note in found.notes) and found.delta == 1e-2
    if has_optimum(found):
        assert any("move together" in note for note in best_for_flops(found, 1e16).notes)
    with pytest.raises(UserError, match="is for --penalty huber"):
        ask("3", "l1", 0, None, 0.01)


def test_intervals_of_a_table_resample_its_runs(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    lines = []
    for run, (n, most) in enumerate(zip(np.geomspace(1e6, 1e9, 14), 10 ** draw.uniform(9, 11, 14))):
        shift = math.exp(0.01 * draw.normal())
        lines += [f"{n},{most * part},{law(n, most * part) * shift},{run}\n" for part in (0.1, 0.3, 0.6, 1.0)]
    (tmp_path / "t.csv").write_text("N,D,L,run\n" + "".join(lines))
    widths = {}
    for group in ("run", None):
        given = read_given([tmp_path / "t.csv"], Columns(params="N", tokens="D", loss="L", group=group))
        found = fit_law(given, ask("3", "squares", 100, None)).law
        widths[group] = found.coefficients["alpha"].high - found.coefficients["alpha"].low  # type: ignore[operator]
        assert found.groups == (14 if group else None)
        assert any("--group" in note for note in found.notes) == (group is None)
    assert widths["run"] > 1.5 * widths[None]


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("approach", "exponent", "k_params", "k_tokens"),
    [(1, 0.5, 0.0877200, 1.8959926), (2, 0.49, 0.1448492, 1.1519249)],
)
def test_the_factors_of_the_article_come_out(approach: int, exponent: float, k_params: float, k_tokens: float) -> None:
    table = DATA / f"perceiver_ar/estimates/approach_{approach}.csv"
    if not table.is_file():
        pytest.skip("the article's estimates are not beside the project")
    columns = Columns(params="Parameters", tokens="Tokens", flops="FLOPs")
    asked = ask("all", "huber", 200, None, exponent=exponent)
    found, said = fit_optima(table, columns, (), "total", False, asked)
    assert said == () and f"{k_params:.6g} and {k_tokens:.6g}" in found.notes[0]
    (powers,) = found.allocations
    assert powers.fixed and powers.params_exponent == Estimate(value=exponent)
    for factor, published in ((powers.params_factor, k_params), (powers.tokens_factor, k_tokens)):
        assert factor.value == pytest.approx(published, rel=0.02)
        assert factor.low is not None and factor.high is not None and factor.low < factor.value < factor.high


def test_given_minima_make_a_law(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("C,N\n" + "".join(f"{c},{0.2 * c**0.5}\n" for c in (1e18, 1e19, 1e20)))
    columns = Columns(params="N", flops="C")
    found, _ = fit_optima(tmp_path / "t.csv", columns, (), "total", False, ask("all", "huber", 20, None))
    assert found.allocations[0].params_exponent.value == pytest.approx(0.5)
    best = best_for_flops(found, 1e21)
    assert best.params.value == pytest.approx(0.2 * 1e21**0.5) and best.loss is None and best.off == ()
    assert sum("10 times above" in note for note in best.notes) == 1  # FLOPs; N and D by 3.16
    found.write(tmp_path / "law.json")
    assert Law.read(tmp_path / "law.json") == found
    with pytest.raises(UserError, match="--loss and --group"):
        fit_optima(tmp_path / "t.csv", Columns(params="N", flops="C", loss="L"), (), "total", False, Asked())
    with pytest.raises(UserError, match="two of params, tokens and flops"):
        fit_optima(tmp_path / "t.csv", Columns(params="N"), (), "total", False, Asked())
    with pytest.raises(UserError, match="0 rows can be used"):
        fit_optima(tmp_path / "t.csv", columns, ("C=5",), "total", False, Asked())
    with pytest.raises(UserError, match="needs one table"):
        one_table([tmp_path], "all", 0)
    with pytest.raises(UserError, match="do not apply"):
        one_table([tmp_path / "t.csv"], "2", 0)


def test_a_given_exponent_is_for_power_laws() -> None:
    assert ask("all", "huber", 0, None, exponent=0.5).approaches == (1, 2)
    for approach, exponent, message in (("3", 0.5, "approaches 1 and 2"), ("2", 1.5, "between 0 and 1")):
        with pytest.raises(UserError, match=message):
            ask(approach, "huber", 0, None, exponent=exponent)


def test_the_best_model_comes_from_each_approach(given: Given) -> None:
    found = fit_law(given, Asked(resamples=50)).law
    flops = given.points.flops.max()
    for powers in found.allocations:
        best = best_for_flops(found, flops, FACTORS, powers.approach)
        assert powers.samples or powers.approach == 2  # three sizes to a parabola leave no noise
        expected = powers.params_factor.value * flops**powers.params_exponent.value
        assert best.params.value == pytest.approx(expected) and best.off == ()
        drawn = [k * flops**a for k, a, _, _ in powers.samples]
        ends = tuple(np.quantile(drawn, (0.025, 0.975))) if drawn else (None, None)
        assert (best.params.low, best.params.high) == (pytest.approx(ends) if drawn else ends)
        assert best.loss is not None
        assert best.loss.value == pytest.approx(law(best.params.value, best.tokens.value), rel=1e-3)
    assert best_for_flops(found, flops, (), 3) == best_for_flops(found, flops)
    fixed = fit_law(given, ask("all", "huber", 20, None, exponent=0.5)).law
    assert [one.fixed for one in fixed.allocations] == [True, True] and not fixed.coefficients
    assert best_for_flops(fixed, flops) == best_for_flops(fixed, flops, (), 2)  # the default without a surface
    with pytest.raises(UserError, match="--approach 1: the law of test does not have it; its approaches are 3"):
        best_for_flops(known(), 1e15, (), 1)
    with pytest.raises(UserError, match="--time: needs the loss of every size"):
        find_best(found, None, "5d", [], FACTORS, 2)


def test_a_plan_judges_parameters_tokens_and_compute(runs: list[Path], given: Given) -> None:
    from shoestring.core import recipe_file
    from shoestring.core.records import Plan, Profile

    recipe, profile = recipe_file.load(runs[1] / "recipe.toml"), Profile.read(runs[1] / "profile.json")

    def reason(law: Law, flops: float) -> str:
        return size_lines(law, recipe, profile, Plan(binding="steps", flops=flops))[0].reason

    inside = Law(**{**known().__dict__, "flops": (1e12, 1e20), "tokens": (1e6, 5e8)})
    assert "extrapolated" not in reason(inside, 1e14)
    assert "parameters is" in reason(inside, 1e19) and "tokens is" in reason(inside, 1e19)  # though not the FLOPs
    assert "FLOP is" not in reason(inside, 1e19)
    for note in best_for_flops(inside, 1e19).notes:
        assert note in reason(inside, 1e19)
    powers = fit_law(given, ask("2", "huber", 20, None)).law
    size = power_optimum(powers.allocations[0], 1e16)[0]
    (best, _) = size_lines(powers, recipe, profile, Plan(binding="steps", flops=1e16))
    assert best.value.startswith(Count(size.value).short()) and "extrapolated" in best.reason
    flat = Law(**{**known().__dict__, "coefficients": {"E": Estimate(value=1.0)}})
    assert "tells no best size" in reason(flat, 1e15)


def test_notebooks_have_the_options_of_the_command(runs: list[Path], given: Given, tmp_path: Path) -> None:
    import shoestring as ss

    fixed = ss.fit_law(runs, exponent=0.5, window=3.0, resamples=20)
    assert fixed == fit_law(given, ask("all", "huber", 20, None, None, 3.0, 0.5)).law
    (tmp_path / "t.csv").write_text(TABLE)
    columns = Columns(params="N", tokens="D", loss="loss", group="name")
    found = ss.fit_law(
        tmp_path / "t.csv", approach="3", delta=0.01, resamples=20, params="N", tokens="D", loss="loss", group="name"
    )
    assert found == fit_law(read_given([tmp_path / "t.csv"], columns), ask("3", "huber", 20, None, 0.01)).law
    assert found.groups == 12 and found.delta == 0.01
    (tmp_path / "best.csv").write_text("C,N\n1e18,1e8\n1e20,1e9\n")
    minima = ss.fit_law(str(tmp_path / "best.csv"), params="N", flops="C", optima=True, resamples=0)
    assert ss.optimum(minima, 1e22).params.value == pytest.approx(1e10)
    assert ss.optimum(fixed, 1e15, 1) == best_for_flops(fixed, 1e15, (), 1)
    with pytest.raises(UserError, match="--delta"):
        ss.fit_law(runs, penalty="l1", delta=0.1)
    with pytest.raises(UserError, match="are for a table"):
        ss.fit_law(runs, group="name")
