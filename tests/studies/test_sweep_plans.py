"""What a sweep takes: shared plans, schedules against brute force, places against what a machine has."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from profiles import write_profile

from shoestring.core.errors import Refusal
from shoestring.core.records import Plan, Profile
from shoestring.core.units import Interval
from shoestring.runs.measure import Measuring
from shoestring.runs.reporter import Reporter
from shoestring.runs.task import Task
from shoestring.studies.sweep import plans
from shoestring.studies.sweep.grid import read_grid
from shoestring.studies.sweep.plans import MOST_MEASURED, cost_key, forecasts, schedule, total
from shoestring.studies.sweep.slots import slots_by_cores, visible_gpus, within_memory

GB = 1 << 30


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs that a plan is made for."""
    made: list[str] = []
    make = plans.corrected_plan

    def count(task: Task, *more: object) -> Plan:
        made.append(task.recipe.run.name)
        return make(task, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(plans, "corrected_plan", count)
    return made


def test_runs_that_cost_the_same_share_a_plan(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    grid = read_grid(tiny, (), ["train.lr=1e-3,3e-3", "model.width=16,32"], seeds=3)
    found = forecasts(grid.recipes, Reporter())
    assert len(planned) == 2, "one for each width"
    assert len(found) == 12
    by_width = {run.values["model.width"]: each for run, each in zip(grid.runs, found, strict=True)}
    assert by_width[32].seconds.expected > by_width[16].seconds.expected > 0
    assert all(each is by_width[run.values["model.width"]] for run, each in zip(grid.runs, found, strict=True))
    assert all(each.how == "counted" for each in found)
    assert not (tmp_path / "runs").exists(), "nothing is written"


@pytest.mark.parametrize("change", ["data.length=16", "budget.steps=41", "train.keep=3", "evaluate.rows=9"])
def test_whatever_may_change_a_cost_has_its_own_plan(tiny: Path, change: str) -> None:
    (one,), (other,) = read_grid(tiny).recipes, read_grid(tiny, [change]).recipes
    assert cost_key(one) != cost_key(other)


def test_a_plan_that_is_refused_is_told_of_and_the_others_are_made(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make = plans.corrected_plan

    def refuse(task: Task, *more: object) -> Plan:
        if task.recipe.model.width == 32:
            raise Refusal("nothing fits", "time")
        return make(task, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(plans, "corrected_plan", refuse)
    one, other = forecasts(read_grid(tiny, (), ["model.width=16,32"]).recipes, Reporter())
    assert one.refusal is None and one.plan is not None
    assert other.refusal == "nothing fits" and other.seconds == Interval(0.0, 0.0, 0.0)


def test_of_hmms_a_few_are_measured_and_the_others_scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOESTRING_CACHE", str(tmp_path / "cache"))  # others may have measured the same HMMs
    file = tmp_path / "hmm.toml"
    file.write_text(
        '[run]\nname = "grid"\n[budget]\nepochs = 2\n[data]\nsource = "stories"\ndocuments = 60\n'
        'tokenizer = "words:300"\nlength = 20\n[hmm]\nstates = 4\n'
    )
    measured: list[int] = []

    def measure(task: Task, how: Measuring, reporter: Reporter) -> Profile:
        assert task.recipe.hmm is not None
        measured.append(task.recipe.hmm.states)
        other = tmp_path / "other" / "hmm.toml"  # whose profile is not one of the runs of the sweep
        other.parent.mkdir(exist_ok=True)
        other.write_text(file.read_text())
        return write_profile(other, f"hmm.states={task.recipe.hmm.states}")

    monkeypatch.setattr(plans, "measure_unkept", measure)
    grid = read_grid(file, (), ["hmm.states=4,6,8,10,12"], seeds=2)
    found = forecasts(grid.recipes, Reporter())
    assert sorted(measured) == [4, 8, 12]
    assert len(measured) == MOST_MEASURED
    assert [each.how for each in found[:5]] == ["measured", "scaled", "measured", "scaled", "measured"]


def brute_force(seconds: list[float], at_once: int) -> list[float]:
    """By looking at every hundredth of a second."""
    waiting, active, ends, now = list(enumerate(seconds)), {}, [0.0] * len(seconds), 0
    while waiting or active:
        for number in [number for number, end in active.items() if end <= now]:
            ends[number] = active.pop(number) / 100
        while waiting and len(active) < at_once:
            number, each = waiting.pop(0)
            active[number] = now + round(100 * each)
        now += 1
    return ends


def test_a_schedule_is_what_happens() -> None:
    draw = random.Random(0)
    for at_once in (1, 2, 3, 7):
        seconds = [draw.randint(1, 300) / 100 for _ in range(12)]
        assert schedule(seconds, at_once) == pytest.approx(brute_force(seconds, at_once))
    assert total([Interval(1.0, 2.0, 4.0)] * 3, 2) == Interval(2.0, 4.0, 8.0)
    assert schedule([], 2) == []


def test_places_are_by_gpus_cores_and_what_the_user_wants() -> None:
    two = slots_by_cores(runs=12, most=None, gpus=(), cores=2, threads=None)
    assert (two.at_once, two.threads) == (2, 1)
    few = slots_by_cores(runs=2, most=None, gpus=(), cores=64, threads=None)
    assert (few.at_once, few.threads) == (2, 32)
    given = slots_by_cores(runs=12, most=None, gpus=(), cores=16, threads=4)
    assert (given.at_once, given.threads) == (4, 4)
    limited = slots_by_cores(runs=12, most=3, gpus=(), cores=16, threads=None)
    assert (limited.at_once, limited.threads, limited.reason) == (3, 5, "--at-once 3")
    gpus = slots_by_cores(runs=12, most=None, gpus=("2", "5"), cores=16, threads=None)
    assert (gpus.at_once, gpus.threads) == (2, 8)
    assert [gpus.environment(place)["CUDA_VISIBLE_DEVICES"] for place in (0, 1)] == ["2", "5"]
    assert "CUDA_VISIBLE_DEVICES" not in two.environment(0)


def test_places_fit_the_memory_by_the_largest_runs() -> None:
    four = slots_by_cores(runs=9, most=None, gpus=(), cores=4, threads=None)
    for free, peaks in itertools.product((1 * GB, 10 * GB, 30 * GB), ([GB] * 9, [8 * GB] + [GB] * 8, [None, None])):
        found = within_memory(four, peaks, free)
        need = sorted((1.25 * peak + GB for peak in peaks if peak is not None), reverse=True)
        fitting = [n for n in range(1, 5) if sum(need[:n]) <= 0.9 * free]
        assert found.at_once == (max(fitting, default=1) if need else 4)
    on_gpu = slots_by_cores(runs=9, most=None, gpus=("0", "1"), cores=4, threads=None)
    assert within_memory(on_gpu, [100 * GB], GB) == on_gpu


def test_the_gpus_of_this_process_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(2) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-ab")
    assert visible_gpus(2) == ["3", "GPU-ab"]
