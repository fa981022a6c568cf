"""The benchmark of forecasts: its recipes are valid, and its numbers are those of its runs."""

import json
from pathlib import Path
from types import ModuleType

import pytest
from benches import load_bench

from shoestring.core import recipe_file


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_bench("forecast", monkeypatch)


def test_twenty_different_recipes_are_valid(bench: ModuleType, tmp_path: Path) -> None:
    recipes = [*bench.grid(1000, None), *bench.grid(1000, str(tmp_path / "text.txt"))]
    found = {recipe_file.build(recipe, "test").fingerprint for recipe in recipes}
    assert len(found) == 2 * 20 - 2, "those of a stream are the same"


def test_a_run_is_asked_after_each_share_and_summed_up(bench: ModuleType, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    lines = []
    for step in range(1, 201):
        lines.append({"step": step, "loss": 5 + 4 * step**-0.5, "lr": 1e-3})
        if step % 20 == 0:
            lines.append({"step": step, "heldout_loss": 5.1 + 4 * step**-0.5})
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = bench.forecasts(run)
    assert list(found["forecasts"]) == ["0.2", "0.4", "0.7"], "a tenth of so short a curve says nothing"
    assert found["loss"] == lines[-1]["heldout_loss"]
    last = found["forecasts"]["0.7"]
    assert last["error"] == pytest.approx(found["loss"] / last["loss"] - 1)
    missed = {**found, "forecasts": {"0.7": last | {"held": not last["held"], "error": 0.5}}}
    shares = bench.summary([found, missed])
    assert shares["0.7"]["held"] == 0.5 and shares["0.7"]["runs"] == 2
    assert shares["0.7"]["median_error"] == pytest.approx((0.5 + abs(last["error"])) / 2)


def test_kept_curves_are_asked_with_the_nearest_others(bench: ModuleType, tmp_path: Path) -> None:
    """Runs of one law at ten rates: a run that overfitted and one that failed are left out."""
    runs: dict[str, object] = {"failed": None}
    for number in range(10):
        rate = 1e-3 * 1.5**number
        runs[f"run{number}"] = {
            "parameters": 1e5,
            "rows": 8,
            "training": [[step, 5 + 4 * step**-0.5, rate] for step in range(4, 801, 4)],
            "heldout": [[step, 5.1 + 4 * step**-0.5, 0.01] for step in range(80, 801, 80)],
            "turn": [400, 300] if number == 9 else None,
        }
    file = tmp_path / "curves.json"
    file.write_text(json.dumps({"stories": runs}))
    found = list(bench.of_curves(file))
    assert [run["run"] for run in found] == [f"run{number}" for number in range(9)]
    for run in found:
        early = run["beside"]["0.2"]
        assert early["runs"] == bench.MOST and abs(early["error"]) < 0.005 and early["held"]
