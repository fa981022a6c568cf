"""The drift of runs by group: rates against hand-made lines, and the files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from shoestring.core import recipe_file
from shoestring.core.errors import UserError
from shoestring.core.run_folder import RunFolder
from shoestring.studies.drift import SCORES, steps_to_half, write_drift

Curve = Callable[[int], float]

STEPS = (1, 20, 60, 100)


def linear(rate: float) -> Curve:
    """An overlap that falls by `rate` per step, to 0."""
    return lambda step: max(0.0, 1 - rate * step)


def saturating(half: float) -> Curve:
    """An overlap that falls in a straight line to half at step `half`, and on to 0, where it stays."""
    return linear(0.5 / half)


def make(folder: Path, name: str, source: str, seed: int, overlap: float | Curve, steps: Sequence[int] = STEPS) -> Path:
    """A run with this overlap by step; a number: it falls by so much per step."""
    curve = overlap if callable(overlap) else linear(overlap)
    run = RunFolder(folder / name)
    values = {"run": {"name": name, "seed": seed}, "budget": {"steps": 100}, "data": {"source": f"text:{source}"}}
    run.path.mkdir(parents=True)
    run.recipe.write_text(recipe_file.dump(recipe_file.build(values | {"train": {"batch": 4, "lr": 1e-3}}, "x")))
    lines = [{"step": 1, "loss": 4.0}]
    for step in steps:
        scores = dict.fromkeys(SCORES, curve(step))
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
    assert "no group fell to half in all its runs; decrease in 100 steps: ja0 0.305; en0 0.105" in found["verdict"]
    assert "decrease in 100 steps" in (tmp_path / "out/drift.html").read_text()


def test_the_step_at_which_half_is_left() -> None:
    assert steps_to_half([(1, 0.9), (11, 0.6), (21, 0.4)]) == pytest.approx(16)
    assert steps_to_half([(10, 0.5)]) == 10 and steps_to_half([(1, 0.9), (5, 0.51)]) is None


def test_one_seed_is_told(tmp_path: Path) -> None:
    runs = [make(tmp_path, name, name, 0, rate) for name, rate in (("en", 0.001), ("ja", 0.002))]
    assert "other seeds" in write_drift(runs, tmp_path / "out")["verdict"]
    close = [make(tmp_path, f"{name}{seed}", name, seed, 0.001 * (1 + seed)) for name in ("a", "b") for seed in (0, 1)]
    assert "is not clearly faster" in write_drift(close, tmp_path / "out")["verdict"]


def told(folder: Path, groups: dict[str, Sequence[float | Curve]], steps: Sequence[int] = tuple(range(1, 101))) -> str:
    """The verdict on groups of curves, one for each seed."""
    runs = [
        make(folder, f"{name}{seed}", name, seed, curve, steps)
        for name, curves in groups.items()
        for seed, curve in enumerate(curves)
    ]
    verdict: str = write_drift(runs, folder / "out")["verdict"]
    return verdict


def test_what_has_fallen_to_zero_is_judged_by_its_steps_to_half(tmp_path: Path) -> None:
    fast = [saturating(half) for half in (4.7, 4.9, 4.5)]
    slow = [saturating(half) for half in (40.0, 44.0, 42.0)]
    said = told(tmp_path, {"slow": slow, "fast": fast})
    rates = [
        each["rate_per_100_steps"]["mean"] for each in json.loads((tmp_path / "out/summary.json").read_text())["groups"]
    ]
    assert rates[0] > 4 * rates[1]  # the line through all values says the opposite
    assert said == (
        "Overlap: fast0 fell to half after 4.7 steps; slow0 fell to half after 42.0 steps. "
        "fast0 drifts faster than slow0."
    )


def test_a_group_that_never_halves_is_slower_than_one_that_does(tmp_path: Path) -> None:
    fast = [saturating(half) for half in (10.0, 12.0, 11.0)]
    said = told(tmp_path / "none", {"slow": [0.001, 0.0012, 0.0011], "fast": fast})
    assert "slow0 had not fallen to half after 100 steps. fast0 drifts faster than slow0." in said
    said = told(tmp_path / "some", {"slow": [0.001, 0.006, 0.0011], "fast": fast})
    assert "slow0 had not fallen to half after 100 steps in 2 of 3 runs. fast0 drifts faster" in said


def test_a_run_too_short_to_halve_is_not_called_slower(tmp_path: Path) -> None:
    long = [make(tmp_path, f"long{seed}", "long", seed, saturating(90.0 + seed), range(1, 101)) for seed in (0, 1)]
    short = [make(tmp_path, f"short{seed}", "short", seed, saturating(60.0 + seed), range(1, 41)) for seed in (0, 1)]
    said = write_drift([*long, *short], tmp_path / "out")["verdict"]
    assert "short0 had not fallen to half after 40 steps. long0 is not clearly faster than short0." in said


@pytest.mark.parametrize("halves", [(4.0, 6.0, 5.0), (150.0, 170.0, 160.0)], ids=["halved", "never halved"])
def test_equal_groups_are_not_told_apart(halves: tuple[float, ...], tmp_path: Path) -> None:
    curves = [saturating(half) for half in halves]
    assert "is not clearly faster" in told(tmp_path, {"one": curves, "other": curves[::-1]})
    same = [curves[0]] * 3
    assert "is not clearly faster" in told(tmp_path / "same", {"one": same, "other": same})


def test_seeds_that_differ_more_than_the_groups_do_not_tell_them_apart(tmp_path: Path) -> None:
    fast, slow = ([saturating(half * times) for half in (4.0, 16.0, 8.0)] for times in (1.0, 1.5))
    said = told(tmp_path, {"slow": slow, "fast": fast})
    assert "fast0 fell to half after 8.0 steps; slow0 fell to half after 12.0 steps" in said  # 4 * 16 * 8 = 8³
    assert "fast0 is not clearly faster than slow0" in said


def test_a_run_without_overlap_is_refused(tmp_path: Path) -> None:
    run = make(tmp_path, "en", "en.txt", 0, 0.001)
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 4.0}\n')
    with pytest.raises(UserError, match=r"no overlap to compare.*\[evaluate\] overlap"):
        write_drift([run], tmp_path / "out")
