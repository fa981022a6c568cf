"""The drift of runs by group: rates against hand-made lines, and the files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from shoestring.core import recipe_file
from shoestring.core.errors import UserError
from shoestring.core.run_folder import RunFolder
from shoestring.studies.drift import SCORES, steps_to_half, write_drift


def make(folder: Path, name: str, source: str, seed: int, rate: float) -> Path:
    """A run whose overlap falls by `rate` per step."""
    run = RunFolder(folder / name)
    values = {"run": {"name": name, "seed": seed}, "budget": {"steps": 100}, "data": {"source": f"text:{source}"}}
    run.path.mkdir(parents=True)
    run.recipe.write_text(recipe_file.dump(recipe_file.build(values | {"train": {"batch": 4, "lr": 1e-3}}, "x")))
    lines = [{"step": 1, "loss": 4.0}]
    for step in (1, 20, 60, 100):
        scores = dict.fromkeys(SCORES, 1 - rate * step)
        lines.append({"step": step, **scores} | ({"heldout_loss": 3.0} if step > 1 else {}))
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run.path


def test_rates_and_files(tmp_path: Path) -> None:
    runs = [make(tmp_path, f"en{seed}", "en.txt", seed, 0.001 + 0.0001 * seed) for seed in (0, 1)]
    runs += [make(tmp_path, f"ja{seed}", "ja.txt", seed, 0.003 + 0.0001 * seed) for seed in (0, 1)]
    found = write_drift(runs, tmp_path / "out")
    english, japanese = found["groups"]
    assert (english["group"], english["runs"], japanese["runs"]) == ("en0", ["en0", "en1"], ["ja0", "ja1"])
    assert english["rate_per_100_steps"]["mean"] == pytest.approx(0.105)
    assert english["rate_per_100_steps"]["sd"] == pytest.approx(0.01 / 2**0.5)
    assert japanese["last_overlap"]["mean"] == pytest.approx(1 - 0.305)
    assert english["steps_to_half"] == japanese["steps_to_half"] == [None, None]
    assert "ja0 drifts faster than en0" in found["verdict"]
    rows = list(csv.DictReader((tmp_path / "out/overlap.csv").read_text().splitlines()))
    assert len(rows) == 16 and rows[0]["step"] == "1" and rows[0]["loss"] == "4.0" and rows[0]["heldout_loss"] == ""
    assert json.loads((tmp_path / "out/summary.json").read_text()) == found
    assert "decrease in 100 steps" in (tmp_path / "out/drift.html").read_text()


def test_the_step_at_which_half_is_left() -> None:
    assert steps_to_half([(1, 0.9), (11, 0.6), (21, 0.4)]) == pytest.approx(16)
    assert steps_to_half([(10, 0.5)]) == 10 and steps_to_half([(1, 0.9), (5, 0.51)]) is None


def test_one_seed_is_told(tmp_path: Path) -> None:
    runs = [make(tmp_path, name, name, 0, rate) for name, rate in (("en", 0.001), ("ja", 0.002))]
    assert "other seeds" in write_drift(runs, tmp_path / "out")["verdict"]
    close = [make(tmp_path, f"{name}{seed}", name, seed, 0.001 * (1 + seed)) for name in ("a", "b") for seed in (0, 1)]
    assert "is not clearly faster" in write_drift(close, tmp_path / "out")["verdict"]


def test_a_run_without_overlap_is_refused(tmp_path: Path) -> None:
    run = make(tmp_path, "en", "en.txt", 0, 0.001)
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 4.0}\n')
    with pytest.raises(UserError, match=r"no overlap to compare.*\[evaluate\] overlap"):
        write_drift([run], tmp_path / "out")
