"""Scaling laws through the real command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from conftest import Command, last_json
from law_runs import write_run

from shoestring.api import optimum
from shoestring.cli.main import main
from shoestring.cli.root import root
from shoestring.core import recipe_file
from shoestring.core.errors import UserError
from shoestring.studies.sizing import read_law

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes/perceiver_scaling"


def law(params: float, tokens: float) -> float:
    return 1.0 + 30 / params**0.3 + 50 / tokens**0.35


def told(shoestring: Command, *arguments: str | Path, **environment: str) -> dict[str, Any]:
    result = shoestring("law", *arguments, "--json", **environment)
    assert result.returncode == 0, result.stderr
    return last_json(result.stdout)


def refused(shoestring: Command, *arguments: str | Path) -> str:
    result = shoestring("law", *arguments)
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


def test_the_runs_of_the_article_are_designed_as_published(tmp_path: Path, shoestring: Command) -> None:
    options = ("--sizes", "512x9,624x11,728x13", "--convention", "article", "--vocabulary", "32000")
    found = told(shoestring, "isoflop", RECIPES / "1_1.toml", *options, "--out", tmp_path / "designed")
    assert [run["steps"] for run in found["runs"]] == [50000, 31421, 21231]
    assert [run["params"] for run in found["runs"]] == [45796096, 72704912, 107536488]
    assert found["full_passes"] == 4
    for run in found["runs"]:
        made = recipe_file.load(run["recipe"])
        assert (made.model.width, made.budget.steps, made.train.batch) == (run["width"], run["steps"], 80)
        assert run["seconds"] is None


def test_flops_are_counted_in_every_convention(shoestring: Command) -> None:
    found = told(shoestring, "flops", RECIPES / "1_1.toml", "--vocabulary", "32000")
    rows = {row["convention"]: row for row in found["conventions"]}
    assert sum(found["parameters"].values()) == 45796096
    assert rows["article"]["per_prediction"] == 282335232
    assert rows["6N, no embeddings"]["per_prediction"] < rows["6N, all parameters"]["per_prediction"]


def test_two_runs_are_compared_over_compute(tmp_path: Path, shoestring: Command) -> None:
    # the larger one reads less data with the same compute, and both follow one law: it is behind, and later ahead
    small = write_run(tmp_path, 16, 1, 12000, law, evaluations=40)
    large = write_run(tmp_path, 64, 2, 1500, law, evaluations=40)
    found = told(shoestring, "compare", small, large, "--out", tmp_path / "page.html", NO_FIGURES="")
    (pair,) = found["comparisons"]
    signs = [x < y for x, y in pair["losses"]]
    assert len(pair["crossings"]) == (1 if signs[0] != signs[-1] else 0)
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_runs_become_a_law_and_the_law_an_answer(tmp_path: Path, shoestring: Command) -> None:
    sizes = ((16, 1), (32, 2), (48, 3), (64, 4), (96, 6))
    runs = [write_run(tmp_path, w, n, round(b / (w * w * n)), law) for b in (3e6, 1e7, 3e7) for w, n in sizes]
    file = tmp_path / "out/law.json"
    found = told(shoestring, "fit", *runs, "--bootstraps", "50", "--out", file, NO_FIGURES="")
    assert found["coefficients"]["alpha"]["value"] == pytest.approx(0.3, rel=1e-3)
    assert found["coefficients"]["beta"]["value"] == pytest.approx(0.35, rel=1e-3)
    assert found["points"] == 15 and "samples" not in found
    assert "<svg" in file.with_suffix(".html").read_text()
    assert all("samples" not in powers for powers in found["allocations"])
    by_envelope = told(shoestring, "optimum", "--law", file, "--flops", "1e12", "--approach", "1")
    assert by_envelope["off"] == [] and by_envelope["params"]["low"] <= by_envelope["params"]["high"], "no noise"
    best = told(shoestring, "optimum", "--law", file, "--time", "2h", "--profile", runs[0], "--profile", runs[4])
    assert best["seconds"] == 7200
    assert best["tokens"]["value"] == pytest.approx(7200 * best["tokens_per_second"])
    assert best["loss"]["value"] == pytest.approx(law(best["params"]["value"], best["tokens"]["value"]), rel=1e-3)


def test_a_table_is_fitted_by_its_columns(tmp_path: Path, shoestring: Command) -> None:
    rows = [f"{n:.0f},{d:.0f},{law(n, d)},{kind}" for n in (1e5, 1e6, 1e7) for d in (1e7, 1e8, 1e9) for kind in "ab"]
    (tmp_path / "t.csv").write_text("N,D,final loss,kind\n" + "\n".join(rows) + "\n1e6,,3,a\n")
    columns = ("--params", "N", "--tokens", "D", "--loss", "final loss")
    assert 'column "D": missing' in refused(shoestring, "fit", "t.csv", *columns)
    assert 'no column "M"' in refused(shoestring, "fit", "t.csv", "--params", "M", *columns[2:])
    options = ("--skip-bad", "--where", "kind=a", "--bootstraps", "0", "--penalty", "l1")
    found = told(shoestring, "fit", "t.csv", *columns, *options)
    assert found["points"] == 9 and len(found["said"]) == 1
    assert found["coefficients"]["E"]["value"] == pytest.approx(1.0, rel=1e-3)
    assert found["coefficients"]["E"]["low"] is None
    assert (tmp_path / "law.json").is_file() and (tmp_path / "law.html").is_file()


def test_the_law_of_the_package_answers_at_once(shoestring: Command) -> None:
    best = told(shoestring, "optimum", "--flops", "1e21")
    assert best["params"]["value"] == pytest.approx(2.79e9, rel=0.01)
    assert 6 * best["params"]["value"] * best["tokens"]["value"] == pytest.approx(1e21)
    assert [off["factor"] for off in best["off"]] == [0.5, 2.0]
    assert all(off["more_budget"] > 0 for off in best["off"])
    assert "Epoch AI" in best["law"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["isoflop", RECIPES / "2b_1.toml", "--sizes", "512x9", "--flops", "lots", "--vocabulary", "262"], "lots"),
        (["isoflop", RECIPES / "2b_1.toml", "--sizes", "512x9", "--flops", "1e3", "--vocabulary", "262"], "one step"),
        (["isoflop", RECIPES / "2b_1.toml", "--sizes", "big", "--vocabulary", "262"], "WIDTHxLAYERS"),
        (["compare", "nowhere", "nowhere"], "2 of 2 runs cannot be used"),
        (["compare", "nowhere"], "at least two runs"),
        (["flops", ROOT / "recipes/icll/hmm.toml"], "[hmm]"),
        (["fit", "nowhere.csv"], "no file or folder nowhere.csv"),
        (["fit", "nowhere.csv", "--optima"], "--optima: needs one table"),
        (["fit", "nowhere.csv", "--exponent", "2"], "--exponent 2"),
        (["optimum"], "give one budget"),
        (["optimum", "--flops", "1e20", "--approach", "1"], "--approach 1"),
        (["optimum", "--time", "5d"], "--profile RUN"),
    ],
)
def test_a_mistake_is_one_message(
    arguments: list[str | Path], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["shoestring", "law", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said


TABLE = "n,d,l\n" + "\n".join(f"{n:g},{d:g},{law(n, d):.5f}" for n in (1e6, 3e6, 1e7) for d in (1e8, 1e9, 1e10))


def said(*arguments: str | Path) -> str:
    """The error of a command in this process, for which it exits with 2; it is refused before anything is written."""
    before = {path: path.read_bytes() for path in Path.cwd().rglob("*") if path.is_file()}
    result = CliRunner().invoke(root, [*map(str, arguments)])
    assert isinstance(result.exception, UserError), (result.output, result.exception)
    assert {path: path.read_bytes() for path in Path.cwd().rglob("*") if path.is_file()} == before
    return str(result.exception)


def test_what_is_written_is_neither_read_nor_written_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(TABLE)
    Path("t.html").write_text(TABLE)
    Path("link.json").symlink_to("t.csv")
    Path("folder").mkdir()
    Path("a.html").mkdir()
    run = write_run(tmp_path, 16, 1, 100, law)
    fit = ("law", "fit", "t.csv", "--params", "n", "--tokens", "d", "--loss", "l", "--bootstraps", "0", "--out")
    assert "--out x.html: its page would be the same file; choose another name" in said(*fit, "x.html")
    assert "--out t.csv: this command reads it; choose another file" in said(*fit, "t.csv")
    assert "--out link.json: this command reads it" in said(*fit, "link.json")
    assert "--out folder: it is a folder; give the name of a file in it" in said(*fit, "folder")
    assert "--out .: it is a folder" in said(*fit, ".")
    assert "its page a.html: it is a folder" in said(*fit, "a.json")
    assert f"--out {run / 'plan.json'}: it is a record of the run {run}" in said(*fit, run / "plan.json")
    assert "--out t.html: this command reads it" in said(
        "law", "compare", "t.html", "t.csv", "--loss", "l", "--flops", "d", "--out", "t.html"
    )
    assert "report.html: it is a record of the run" in said("law", "compare", run, run, "--out", run / "report.html")
    recipe = tmp_path / "r.toml"
    recipe.write_text("[budget]\nsteps = 9\n")
    assert "r.toml: this command reads it" in said("plan", recipe, "--sbatch", recipe)
    assert "plan.json: it is a record of the run" in said("plan", recipe, "--sbatch", run / "plan.json")


@pytest.mark.parametrize("flops", ["1", "0.5", "100"])
def test_a_budget_for_less_than_one_parameter_is_refused(
    flops: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = said("law", "optimum", "--flops", flops)
    assert f"--flops {flops}: the best model would have 0." in text
    assert "parameters" in text
    with pytest.raises(UserError, match="the best model would have"):
        optimum(read_law(None), float(flops))


def test_a_size_that_is_to_be_chosen_has_no_flops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("open.toml").write_text('[budget]\ntime = "1h"\n[data]\nsource = "stories"\n')
    assert "its size is chosen for a machine and a time" in said("law", "flops", "open.toml")
    assert CliRunner().invoke(root, ["law", "flops", "open.toml", "--set", "model.width=64"]).exit_code == 0
