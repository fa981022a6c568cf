"""The plans of a grid: each counts what its own fit does, and nothing that is done before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from profiles import write_profile

from shoestring.core import clock
from shoestring.core.records import Plan, Profile
from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.probe.child import RemoteTrials
from shoestring.runs import measure
from shoestring.runs.measure import Measuring
from shoestring.runs.reporter import Reporter
from shoestring.runs.task import Task
from shoestring.studies.sweep import grid, grid_against_plan, plan_grid

RECIPE = """
[run]
name = "grid"

[budget]
epochs = 2

[data]
source = "stories"
documents = 60
tokenizer = "words:300"
length = 20

[hmm]
states = 4
"""
MEASURING = 60.0


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe whose measurement takes a minute, on a clock that only measuring moves."""
    monkeypatch.chdir(tmp_path)
    file, passed = tmp_path / "grid.toml", [0.0]
    file.write_text(RECIPE)

    def measured(_: RemoteTrials, task: Task, how: Measuring, reporter: Reporter) -> Profile:
        passed[0] += MEASURING
        return write_profile(file, f"hmm.states={task.recipe.hmm.states if task.recipe.hmm else 0}")

    monkeypatch.setattr(measure, "measure_task", measured)
    monkeypatch.setattr(measure, "recipe_density", lambda _: None)
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: passed[0]))
    return file


def test_no_fit_of_a_grid_counts_the_measurement_or_a_second_start_of_the_process(recipe: Path) -> None:
    recipes = grid(recipe, (), ("hmm.states=4,6",))
    total, lines = plan_grid(recipes, Reporter())
    first, second = (Plan.read(RunFolder.of(each).plan) for each in recipes)
    for plan in (first, second):
        assert plan.parts["spent so far"] == 0
        assert plan.seconds is not None
        assert plan.seconds < MEASURING / 2
    assert (first.parts["set-up"], second.parts["set-up"]) == (2.0, 0.0)
    assert [line[0] for line in lines] == ["grid-states4", "grid-states6"]
    assert plan_grid(recipes, Reporter()) == (total, lines), "the plans are kept"


def test_a_grid_compares_every_fit_and_their_sum_with_the_plan() -> None:
    def fit(planned: float | None, actual: float) -> tuple[Plan, Outcome]:
        plan = Plan(binding="epochs", recipe="x", epochs=3.0, seconds=planned, lines=())
        outcome = Outcome(
            steps=6,
            tokens=9,
            seconds=actual,
            segments=1,
            tokens_per_second=1.0,
            disk_bytes=1,
            peak_bytes=None,
            loss=2.5,
            shortened=None,
        )
        return plan, outcome

    lines = grid_against_plan([("a", *fit(10.0, 8.0)), ("b", *fit(10.0, 14.0))])
    assert lines[0] == ("a", "3", "10s", "8s", "-20.0%", "2.500")
    assert lines[1][3:5] == ("14s", "+40.0%")
    assert lines[2] == ("all", "", "20s", "22s", "+10.0%", "")
    assert grid_against_plan([("a", *fit(None, 8.0))])[-1][2:5] == ("unknown", "8s", "unknown")
