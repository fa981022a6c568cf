"""Run folders as points of a law: what is counted, what is refused, and whether two curves cross."""

from __future__ import annotations

import csv
import dataclasses
import math
import random
from pathlib import Path

import pytest
from law_runs import BATCH, LENGTH, VOCABULARY, write_run

from shoestring.core.errors import UserError
from shoestring.core.records import Plan
from shoestring.studies import compare as module
from shoestring.studies.compare import ONE_SEED, compare_runs
from shoestring.studies.run_results import CurveColumns, Trained, compare, read_all, read_trained, wobble


def law(params: float, tokens: float) -> float:
    return 1.0 + 30 / params**0.3 + 50 / tokens**0.35


def test_a_run_is_counted_in_predictions(tmp_path: Path) -> None:
    run = read_trained(write_run(tmp_path, 32, 2, 100, law), "total")
    d = 32
    hidden = 96  # 8/3 of 32, up to a multiple of 32
    layer = 4 * d * d + 3 * d * hidden
    assert run.params == VOCABULARY * d + 2 * layer + 5 * d
    assert run.tokens == 100 * BATCH * LENGTH
    assert run.flops_per_token == 6 * (2 * layer + VOCABULARY * d + 2 * 2 * LENGTH * d)
    assert run.loss == law(run.params, run.tokens)
    assert run.curve[-1] == (run.tokens, run.loss) and len(run.curve) == 10
    other = read_trained(tmp_path / "32x2-100", "no-embeddings")
    assert run.params - other.params == VOCABULARY * d


def test_a_perceiver_counts_its_latents(tmp_path: Path) -> None:
    run = read_trained(write_run(tmp_path, 32, 2, 100, law, latents=16), "total")
    assert run.tokens == 100 * BATCH * 16
    assert run.curve[-1][0] == run.tokens
    d, n, m = 32, 16, 24  # of the prefix of 48 half is left out
    forward = 2 * (n * 2 * 12 * d * d + m * 2 * d * d + 2 * d * (2 * n * n + n * m) + n * VOCABULARY * d)
    assert run.flops_per_token == pytest.approx(3 * forward / n)


def test_runs_that_cannot_be_used_are_named_together(tmp_path: Path) -> None:
    good = write_run(tmp_path, 32, 2, 100, law)
    going = write_run(tmp_path, 48, 2, 100, law, done=False)
    paths = [good, going, tmp_path / "nothing"]
    with pytest.raises(UserError, match="2 of 3 runs cannot be used") as caught:
        read_all(paths, "total")
    assert "48x2-100 is not finished" in str(caught.value) and "nothing is not a run folder" in str(caught.value)
    runs, bad = read_all(paths, "total", skip_bad=True)
    assert [run.name for run in runs] == ["32x2-100"] and len(bad) == 2


def test_losses_on_other_held_out_rows_are_pointed_out(tmp_path: Path) -> None:
    first = write_run(tmp_path, 32, 2, 100, law)
    second = write_run(tmp_path, 48, 2, 100, law)
    assert read_all([first, second], "total")[1] == []
    recipe = second / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("seed = 0", "seed = 1"))
    (note,) = read_all([first, second], "total")[1]
    assert "held-out rows of more than one kind" in note


def run_of(name: str, losses: list[float], noise: float = 0.0) -> Trained:
    """A run of 1e9 FLOPs, evaluated at equal distances."""
    draw = random.Random(name)
    curve = tuple((1e6 * (i + 1), loss + draw.gauss(0, noise)) for i, loss in enumerate(losses))
    return Trained(
        name=name,
        params=1000,
        tokens=curve[-1][0],
        loss=curve[-1][1],
        flops_per_token=1e9 / curve[-1][0],
        curve=curve,
        heldout="",
    )


FALL = [2 + 2 / math.sqrt(i) for i in range(1, 21)]


def test_curves_that_cross_are_told_where() -> None:
    slow = [loss + 0.2 - 0.02 * i for i, loss in enumerate(FALL)]  # behind until step 11, then ahead
    found = compare(run_of("a", FALL), run_of("b", slow))
    (crossing,) = found.crossings
    assert 10 / 20 < crossing / 1e9 <= 13 / 20
    assert "The curves cross" in found.verdict and "b is ahead by 0.18" in found.verdict


def test_curves_that_stay_apart_do_not_cross() -> None:
    found = compare(run_of("a", FALL, 0.005), run_of("b", [loss + 0.1 for loss in FALL], 0.005))
    assert found.crossings == [] and "do not cross" in found.verdict and "beyond the noise" in found.verdict


def test_a_difference_within_the_noise_is_no_crossing() -> None:
    found = compare(run_of("a", FALL, 0.02), run_of("b", FALL, 0.02))
    assert found.noise is not None and 0.01 < found.noise < 0.06
    assert found.crossings == [] and "within the noise" in found.verdict


def test_the_wobble_is_the_deviation_of_the_noise() -> None:
    draw = random.Random(0)
    curve = [(i, 3 - 0.001 * i + draw.gauss(0, 0.03)) for i in range(1, 4001)]
    assert wobble(curve) == pytest.approx(0.03, rel=0.08)
    assert wobble(curve[:8]) is None


def test_curves_need_something_in_common() -> None:
    with pytest.raises(UserError, match="two evaluations"):
        compare(run_of("a", FALL), run_of("b", [1.0]))
    other = run_of("b", FALL)
    far = Trained(**{**other.__dict__, "flops_per_token": 1e9})
    with pytest.raises(UserError, match="no compute in common"):
        compare(run_of("a", FALL), far)


@pytest.mark.realdata
def test_the_article_s_curves_of_experiment_2b_do_not_cross() -> None:
    folder = Path(__file__).resolve().parents[3] / "shared/data/scaling/perceiver_ar/validation"
    if not folder.is_dir():
        pytest.skip("the validation losses of the article are not beside the project")

    def published(version: int, params: int, flops: int) -> Trained:
        with open(folder / f"run-logs-0.8.0_scaling-2b_version_{version}-tag-val_loss.csv") as file:
            rows = [(float(row["Step"]) + 1, float(row["Value"])) for row in csv.DictReader(file)]
        curve = tuple((step * 80 * 512, loss) for step, loss in rows)
        name, loss = f"2b.{version + 1}", curve[-1][1]
        tokens = curve[-1][0]
        return Trained(
            name=name, params=params, tokens=tokens, loss=loss, flops_per_token=flops, curve=curve, heldout=""
        )

    small, large = published(0, 29514502, 184836096), published(1, 42301134, 264425856)
    assert (round(small.loss, 4), round(large.loss, 4)) == (0.8713, 0.8762)
    found = compare(small, large)
    assert found.crossings == []
    assert found.verdict.startswith(
        "The curves do not cross; at the end 2b.1 is ahead by 0.0049 nats (beyond the noise"
    )


def test_words_counted_in_other_documents_are_another_vocabulary(tmp_path: Path) -> None:
    """Of bytes it does not matter how many documents there are; words are counted in them."""
    runs = [write_run(tmp_path, width, 2, 100, law) for width in (32, 48)]
    for run, entries in zip(runs, (100, 900)):
        Plan(binding="steps", entries=entries).write(run / "plan.json")
    assert read_all(runs, "total")[1] == []
    for run in runs:
        recipe = run / "recipe.toml"
        recipe.write_text(recipe.read_text().replace('tokenizer = "bytes"', 'tokenizer = "words:50"'))
    (note,) = read_all(runs, "total")[1]
    assert "vocabulary" in note


VALIDATION = Path(__file__).resolve().parents[3] / "shared/data/scaling/perceiver_ar/validation"


@pytest.mark.realdata
def test_the_curves_of_the_article_are_compared_as_it_does(tmp_path: Path) -> None:
    files = [VALIDATION / f"run-logs-0.8.0_scaling-1_version_{i}-tag-val_loss.csv" for i in range(3)]
    if not files[0].is_file():
        pytest.skip("the article's curves are not beside the project")
    per_step = ",".join(str(count * 80 * 512) for count in (282335232, 449287488, 664923168))
    columns = CurveColumns(loss="Value", step="Step", flops_per_step=per_step, names="1.1, 1.2, 1.3")
    first, second = compare_runs(files, tmp_path / "page.html", columns).to_json()
    assert [first["losses"][-1][0], first["losses"][-1][1]] == pytest.approx([3.2629, 3.2453], abs=1e-3)
    assert second["losses"][-1][1] == pytest.approx(3.2601, abs=1e-3)
    assert first["crossings"] and 0.5 < first["crossings"][-1] / 578222555136000000 < 0.7
    assert "1.2 is ahead" in first["verdict"] and "1.2" in (tmp_path / "page.html").read_text()


def write_curves(path: Path) -> Path:
    rows = [f"{run},{t},{6e6 * t},{3 + run / 10 - t / 1e4}" for run in (0, 1) for t in (300, 100, 200, 400)]
    path.write_text("run,tokens,flops,loss\n" + "\n".join(rows) + "\n1,400,2.4e9,2.0\n")
    return path


def test_tables_are_curves_by_flops_or_by_tokens(tmp_path: Path) -> None:
    table = write_curves(tmp_path / "t.csv")
    page = tmp_path / "p.html"
    (by_flops,) = compare_runs([table], page, CurveColumns(loss="loss", flops="flops", group="run")).to_json()
    by = CurveColumns(loss="loss", tokens="tokens", params="1M", group="run", names="a,b")
    (by_tokens,) = compare_runs([table], page, by).to_json()
    assert by_flops["flops"] == by_tokens["flops"] == [6e8, 1.2e9, 1.8e9, 2.4e9]
    assert by_flops["losses"] == by_tokens["losses"]
    assert by_flops["losses"][0] == pytest.approx([2.99, 3.09])
    assert by_flops["losses"][-1] == pytest.approx([2.96, 2.0])  # of two rows at equal compute the later
    assert by_flops["params"] == [None, None] and by_tokens["params"] == [1e6, 1e6]
    assert (by_tokens["first"], by_flops["second"]) == ("a", "1")
    run = write_run(tmp_path, 16, 1, 100, lambda *_: 3.0)
    both = compare_runs([run, table], page, CurveColumns(loss="loss", flops="flops", where=("run=0",)))
    assert both.comparisons[0].second.name == "t" and any("as given" in line for line in both.said)


def test_a_table_without_compute_is_refused(tmp_path: Path) -> None:
    table = write_curves(tmp_path / "t.csv")
    for columns, message in (
        (CurveColumns(), "name its columns"),
        (CurveColumns(loss="loss", flops="flops", step="tokens"), "one of --flops, --step and --tokens"),
        (CurveColumns(loss="loss", step="tokens"), "--flops-per-step: missing"),
        (CurveColumns(loss="loss", flops="flops", params="1M"), "--params: is for --tokens"),
        (CurveColumns(loss="loss", step="tokens", flops_per_step="1,2,3"), "3 values for 1 curves"),
        (CurveColumns(loss="loss", step="tokens", flops_per_step="lots"), "--flops-per-step lots"),
        (CurveColumns(loss="loss", step="tokens", flops_per_step="0"), "not above 0"),
        (CurveColumns(loss="loss", flops="flops"), "at least two runs"),
        (CurveColumns(loss="los", flops="flops"), 'no column "los"'),
        (CurveColumns(loss="loss", flops="flops", where=("run=7",)), "no row can be used"),
    ):
        with pytest.raises(UserError, match=message):
            compare_runs([table], tmp_path / "p.html", columns)
    with pytest.raises(UserError, match="run folders need none"):
        compare_runs([tmp_path, tmp_path], tmp_path / "p.html", CurveColumns(loss="loss"))


def test_runs_that_differ_in_their_seed_alone_are_one_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        dataclasses.replace(run_of(name, [loss + more for loss in FALL], 0.005), setting=name[0])
        for name, more in (("a1", 0.0), ("b1", 0.1), ("a2", 0.01), ("b2", 0.11), ("c1", 0.0))
    ]
    monkeypatch.setattr(module, "read_all", lambda paths, _: ([runs[int(path.name)] for path in paths], []))
    places = [tmp_path / str(number) for number in range(5)]
    both = compare_runs(places[:4], tmp_path / "page.html")
    (pair,) = both.comparisons
    assert (pair.first.name, pair.second.name) == ("a1", "b1")
    assert pair.difference is not None and pair.difference.counts == (2, 2) and pair.difference.different
    assert "over 2 seeds" in both.said[0] and "They differ." in both.said[0] and ONE_SEED not in both.said
    assert both.to_json()[0]["difference"]["different"]
    assert "over 2 seeds" in (tmp_path / "page.html").read_text()
    one = compare_runs(places, tmp_path / "page.html")
    assert [pair.difference is None for pair in one.comparisons] == [False, True] and ONE_SEED in one.said
    same = compare_runs(places[:3:2], tmp_path / "page.html")
    assert len(same.comparisons) == 1 and "these runs differ in their seed alone" in same.said
