"""The benchmark of regret on a GPU: its groups are full, and its numbers are those of its runs."""

from types import ModuleType

import pytest
from benches import load_bench

from shoestring.track.curve import TrainingLine


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_bench("regret_gpu", monkeypatch)


@pytest.mark.parametrize(("runs", "autos", "at_once"), [(24, 2, 6), (3, 1, 2), (1, 3, 2), (4, 1, 5)])
def test_every_run_has_as_many_neighbours(bench: ModuleType, runs: int, autos: int, at_once: int) -> None:
    groups = bench.groups_of(runs, autos, at_once, bench.drawn_settings(bench.SIZES, bench.BATCHES))
    assert {len(group) for group in groups} == {at_once}
    names = [name for group in groups for name in group]
    assert len(set(names)) == len(names)
    assert [sum(name.startswith("auto") for name in group) for group in groups[:autos]] == [1] * autos
    assert runs <= sum(name.startswith("random") for name in names) < runs + autos * at_once
    settings = [setting for group in groups for setting in group.values() if setting]
    assert all(bench.RATES[0] <= each["train.lr"] <= bench.RATES[1] for each in settings)
    assert all(f"{each['model.width']}x{each['model.layers']}" in bench.SIZES for each in settings)


def test_a_thinned_curve_keeps_the_mean_over_steps(bench: ModuleType) -> None:
    steps = [1, 2, 3, 10, 20, 30, 31]
    lines = [TrainingLine(step, float(step), 0.1 * step, None) for step in steps]
    found = bench.thinned(lines, most=3)
    assert len(found) == 3 and found[-1].step == 31 and found[-1].lr == pytest.approx(3.1)
    before = [0, *steps[:-1]]
    total = sum(step * (step - b) for step, b in zip(steps, before))
    kept = sum(line.loss * (line.step - b) for line, b in zip(found, [0, *(line.step for line in found)]))
    assert kept == pytest.approx(total)
    assert bench.thinned(lines, most=100) == lines and bench.thinned([]) == []


def test_regret_is_against_the_best_random_setting(bench: ModuleType) -> None:
    runs = {"auto0": {"loss": 1.1}, "random00": {"loss": 2.0}, "auto1": {"loss": 0.9}, "random01": {"loss": 1.0}}
    found = bench.regret_of(runs | {"random02": {"failed": "diverged"}})
    assert found["best"] == "random01" and found["random"] == 2
    assert found["regrets"] == pytest.approx([0.1, -0.1]) and found["regret"] == pytest.approx(0.0)
    assert bench.regret_of({"auto0": {"loss": 1.0}}) == {}
    at = bench.forecasts_at([[10, 3.0, 2.0, 4.0], [20, 2.5, 2.0, 3.0], [45, 2.0, 1.9, 2.1]], 100)
    assert {share: line["step"] for share, line in at.items()} == {"0.1": 10, "0.2": 20, "0.4": 20, "0.7": 45}
