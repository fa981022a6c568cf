"""Short runs before a sweep: what they show of a machine whose times are known, and that they are real runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import start
from hypothesis import given
from hypothesis import strategies as st
from profiles import write_profile

from shoestring.core.records import Plan, Profile
from shoestring.core.run_folder import RunFolder
from shoestring.runs.prepare import is_prepared, rows_key
from shoestring.runs.reporter import Reporter
from shoestring.studies.sweep import pilots as module
from shoestring.studies.sweep import survey as surveying
from shoestring.studies.sweep.grid import Grid, read_grid
from shoestring.studies.sweep.pilots import Candidate, fly, hand_over, short
from shoestring.studies.sweep.plans import Forecast, forecasts, work_key
from shoestring.studies.sweep.slots import Slots
from shoestring.studies.sweep.survey import keep, survey
from shoestring.studies.sweep.taken import Seen, Taken

TWO = Slots(at_once=2, threads=1)
HMM = (
    '[run]\nname = "grid"\n[budget]\nepochs = 40\n[data]\nsource = "stories"\ndocuments = 60\n'
    'tokenizer = "words:300"\nlength = 20\n[hmm]\nstates = 4\n'
)


class Known:
    """A machine on which a step takes `fixed` seconds, and `slope` times what is planned for it."""

    def __init__(self, fixed: float = 0.02, slope: float = 0.7):
        self.fixed, self.slope = fixed, slope

    def taken(self, planned: float) -> Taken:
        step = self.fixed + self.slope * planned
        return Taken(
            start=3.0, setup=0.5, step=step, evaluation=3 * step, texts=0.01, checkpoint=0.02, finish=1.2, end=0.1
        )

    def seconds(self, plan: Plan) -> float:
        assert plan.step_seconds and plan.steps and plan.evaluations
        found = self.taken(plan.step_seconds)
        after = found.evaluation + found.texts + found.checkpoint
        other = plan.parts["prepare"] + plan.parts["baselines"]
        return 3.0 + 0.5 + plan.steps * found.step + plan.evaluations * after + 1.2 + 0.1 + other


def made_plan(step: float, steps: int = 400, evaluations: int = 4) -> Plan:
    parts = {
        "spent so far": 2.0, "set-up": 2.0, "prepare": 0.3, "baselines": 0.02, "train": steps * step,
        "evaluations": 9.0, "finish": 2.6, "last checkpoint": 0.0, "checkpoints": 0.01,
    }  # fmt: skip
    return Plan(
        binding="steps", steps=steps, evaluations=evaluations, step_seconds=step, parts=parts,
        seconds=sum(parts.values()), intervals={"seconds": (1.0, 1000.0)},
    )  # fmt: skip


@given(
    st.floats(0.0, 0.1), st.floats(0.2, 3), st.lists(st.floats(0.001, 0.5), min_size=1, max_size=6), st.integers(1, 9)
)
def test_where_steps_grow_with_their_plans_two_runs_show_all(
    fixed: float, slope: float, steps: list[float], evaluations: int
) -> None:
    machine = Known(fixed, slope)
    ends = {min(steps), max(steps)}
    seen = Seen([(each, machine.taken(each)) for each in ends])
    for each in steps:
        plan = made_plan(each, evaluations=evaluations)
        made, process = seen.corrected(plan)
        assert Forecast(plan=made, how="measured", crowd=process).seconds.expected == pytest.approx(
            machine.seconds(plan)
        )
        low, high = made.intervals["seconds"]
        assert made.seconds is not None and low < made.seconds < high
        assert sum(made.parts.values()) == pytest.approx(made.seconds)


def test_beyond_what_was_seen_the_ratio_stays() -> None:
    seen = Seen([(0.1, Known(0.0, 2.0).taken(0.1)), (0.1, Known(0.0, 4.0).taken(0.1))])
    assert seen.step(0.1) == pytest.approx(0.3), "the mean of two runs of one plan"
    assert seen.step(0.4) == pytest.approx(1.2)
    assert seen.step(0.05) == pytest.approx(0.15)


@pytest.fixture
def candidates(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Candidate]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache")
    widths = "model.width=16,32,48,64,80"
    return [_candidate(each) for each in forecasts(read_grid(tiny, (), [widths]).recipes, Reporter())]


def _candidate(each: Forecast) -> Candidate:
    assert each.plan is not None and each.recipe is not None and each.profile is not None
    return Candidate(recipe=each.recipe, plan=each.plan, profile=each.profile)


class Runs:
    """In place of the processes: what is tried together, and what it takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, others: float = 0.0, fails: Sequence[int] = ()):
        self.groups: list[list[int]] = []
        self.fails, self.machine = fails, Known()
        monkeypatch.setattr(module, "_take", self)
        monkeypatch.setattr(module, "used_by_others", lambda *_: others)

    def __call__(self, group: Sequence[Candidate], slots: Slots, limit: float) -> list[Taken | None]:
        widths = [each.recipe.model.width for each in group]
        self.groups.append(widths)
        assert len(group) == slots.at_once and limit >= 10
        known = [self.machine.taken(each.step) for each in group]
        return [None if width in self.fails else each for width, each in zip(widths, known, strict=True)]


def test_the_shortest_and_longest_steps_are_tried_and_kept(
    candidates: list[Candidate], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(monkeypatch)
    assert fly(candidates, TWO, 59.0) is None and not runs.groups, "not worth it"
    timed = [replace(each, plan=replace(each.plan, binding="time")) for each in candidates]
    assert fly(timed, TWO, 500.0) is None and not runs.groups, "a run with a time takes it"
    found = fly(candidates, TWO, 150.0)
    assert found is not None and runs.groups == [[16, 80]]
    assert found.shown().startswith("measured: by 2 short runs in ")
    again = fly(candidates, TWO, 150.0)
    assert again is not None and len(runs.groups) == 1 and again.shown() == "measured: by 2 short runs taken before"
    longer = fly(candidates, TWO, 400.0)
    assert longer is not None and runs.groups[1:] == [[32, 64]], "there is time for more of them"
    plan = candidates[2].plan
    expected = runs.machine.taken(candidates[2].step).step
    assert longer.seen.corrected(plan)[0].step_seconds == pytest.approx(expected)
    alone = fly(candidates[:1], Slots(at_once=3, threads=1), 150.0)
    assert alone is not None and runs.groups[-1] == [16, 16, 16], "beside as many as there will be"


def test_on_a_gpu_the_first_run_of_a_kind_compiles(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short runs are taken again, and what they compile later ones find; other widths compile once each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(surveying, "_use_threads", lambda _: None)
    monkeypatch.setattr(surveying, "this_machine", lambda *_: Slots(at_once=1, threads=1, gpus=("0",)))
    monkeypatch.setattr(surveying, "_expected", lambda *_: 150.0)
    runs, machine = list[int](), Known()

    def take(group: Sequence[Candidate], *_: object) -> list[Taken | None]:
        (each,) = group
        width = each.recipe.model.width
        runs.append(width)
        return [replace(machine.taken(each.step), setup=12.5 if runs.count(width) == 1 else 2.5)]

    monkeypatch.setattr(module, "_take", take)
    found = survey(read_grid(tiny, (), ["model.width=16,32,48"], seeds=2), Reporter())
    assert runs == [16, 16, 48, 48]
    assert list(found.late.values()) == [10.0] and "width32-seed0" in next(iter(found.late))
    for run in found.index.runs:
        plan = found.forecasts[run.name].plan
        assert plan is not None and plan.parts["set-up"] == pytest.approx(2.5)
        without = found.forecasts[run.name].seconds_left(1.0, run.name in found.ready).expected
        assert found.seconds(run).expected - without == pytest.approx(found.late.get(run.name, 0.0))


def test_what_others_disturb_is_told_and_not_kept(candidates: list[Candidate], monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch, others=float(os.cpu_count() or 1))
    found = fly(candidates, TWO, 150.0)
    assert found is not None and "busy" in found.shown()
    fly(candidates, TWO, 150.0)
    assert len(runs.groups) == 2


def test_one_that_fails_leaves_the_other_and_none_leaves_the_plans(
    candidates: list[Candidate], monkeypatch: pytest.MonkeyPatch
) -> None:
    Runs(monkeypatch, fails=[16])
    found = fly(candidates, TWO, 150.0)
    assert found is not None and len(found.keys) == 1
    Runs(monkeypatch, fails=[32, 48, 64])
    assert fly(candidates[1:4], TWO, 150.0) is None


def test_a_short_run_differs_in_its_length_alone(candidates: list[Candidate]) -> None:
    each = candidates[0]
    few = short(each, 60.0)
    assert few is not None and few.budget.steps is not None and 8 <= few.budget.steps <= 40
    assert few.evaluate.every == 1.0 and work_key(few) == work_key(each.recipe)
    slow = replace(each, plan=replace(each.plan, step_seconds=10.0))
    assert short(slow, 60.0) is None, "eight steps would take longer"
    assert work_key(replace(each.recipe, run=replace(each.recipe.run, seed=5))) == work_key(each.recipe)
    assert len({work_key(one.recipe) for one in candidates}) == 5


def test_a_real_short_run_is_read_part_by_part(
    candidates: list[Candidate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = {path.name for path in tmp_path.iterdir()}

    @contextlib.contextmanager
    def process(recipe: Path, slots: Slots, place: int) -> Iterator[Any]:
        assert slots == TWO and place == 0
        started = start("train", recipe, "--json", cwd=tmp_path)
        _, said = started.communicate(timeout=60)
        assert started.returncode == 0, said
        yield SimpleNamespace(poll=lambda: 0)

    monkeypatch.setattr(module, "_process", process)
    monkeypatch.setattr(module, "_STEPS_SECONDS", 0.1)
    (found,) = module._take(candidates[:1], TWO, 60.0)
    assert found is not None
    assert 0 < found.step < found.setup < 60 and found.start > 0 and found.finish > 0 and found.evaluation > 0
    assert {path.name for path in tmp_path.iterdir()} == outside, "it left nothing"


def hmm_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grid:
    """HMMs whose profiles need not be measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOESTRING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(surveying, "crowd", lambda *_: None)
    monkeypatch.setattr(surveying, "fly", lambda *_: None)
    file = tmp_path / "hmm.toml"
    file.write_text(HMM)
    other = tmp_path / "other" / "hmm.toml"
    other.parent.mkdir()
    other.write_text(HMM)
    monkeypatch.setattr(
        "shoestring.studies.sweep.plans.measure_unkept",
        lambda task, *_: write_profile(other, f"hmm.states={task.recipe.hmm.states}"),
    )
    return read_grid(file, (), ["hmm.states=4,6"], seeds=3)


def test_rows_of_another_seed_are_made_by_the_first_run_that_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = survey(hmm_grid(tmp_path, monkeypatch), Reporter(), at_once=1)
    runs = {run.name: found.grid.runs[number].recipe for number, run in enumerate(found.index.runs)}
    assert [is_prepared(recipe) for recipe in runs.values()] == [recipe.run.seed == 0 for recipe in runs.values()]
    seen: set[str] = set()
    for run in found.index.runs:
        recipe, made = runs[run.name], found.forecasts[run.name]
        assert made.plan is not None and made.plan.parts["prepare"] > 0
        first = rows_key(recipe) not in seen and recipe.run.seed > 0
        spared = made.seconds.expected - found.seconds(run).expected
        assert spared == pytest.approx(0.0 if first else made.plan.parts["prepare"]), run.name
        seen.add(rows_key(recipe))
    assert len(seen) == 3


def test_a_run_gets_the_profile_by_which_it_was_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = survey(hmm_grid(tmp_path, monkeypatch), Reporter())
    with found.folder.lock():
        keep(found)
    for planned in found.grid.runs:
        profile, made = Profile.read(RunFolder.of(planned.recipe).profile), found.forecasts[planned.name]
        assert made.profile is not None and profile.workload == made.profile.workload


def test_a_run_with_a_time_or_of_a_network_measures_or_counts_by_itself(
    candidates: list[Candidate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_over(candidates[0].profile, candidates[0].recipe, RunFolder(tmp_path / "network"))
    assert not (tmp_path / "network").exists()
    (recipe, *_), profile = hmm_grid(tmp_path, monkeypatch).recipes, candidates[0].profile
    timed = replace(recipe, budget=replace(recipe.budget, time=60.0))
    on_gpu = replace(profile, estimated=True, machine=replace(profile.machine, device="cuda"))
    hand_over(profile, timed, RunFolder(tmp_path / "timed"))
    hand_over(on_gpu, recipe, RunFolder(tmp_path / "gpu"))
    assert not (tmp_path / "timed").exists() and not (tmp_path / "gpu").exists()
    busy = RunFolder(tmp_path / "busy")
    hand_over(replace(profile, busy="the machine is busy"), recipe, busy)
    kept = Profile.read(busy.profile)
    assert kept.busy is None and kept.stopped.endswith("; the machine is busy")
    hand_over(replace(profile, stopped="again"), recipe, busy)
    assert Profile.read(busy.profile) == kept, "one of its own stays"
    hand_over(replace(profile, workload="other"), recipe, busy)
    assert Profile.read(busy.profile).workload == "other", "it was of another recipe"
