"""A plan without a trial: what is counted, when it is not, and that the first steps make it final."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from shoestring.core.clock import Clock
from shoestring.core.errors import PlanError, Refusal
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import build
from shoestring.core.records import Density, Line, Machine, Plan, Profile
from shoestring.core.run_folder import RunFolder
from shoestring.planning.make import REPORT_SECONDS
from shoestring.probe.trials import Usage
from shoestring.runs import counted, measure
from shoestring.runs.counted import CPU_POSITIONS, ROOM_SHARE, Here, counted_peaks, counted_profile
from shoestring.runs.first_steps import CREEP_BYTES, FirstSteps, Took, final_plan
from shoestring.runs.measure import Measuring, ensure_profile, measuring_of
from shoestring.runs.plan import plan_task
from shoestring.runs.prepare import vocabulary_of
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.runs.task import task_of
from shoestring.training.checkpoint import State
from shoestring.training.deadline import Deadline
from shoestring.training.schedule import Schedule

CPU = torch.device("cpu")
DENSITY = Density(documents=100, text_bytes=10_000, tokens=3_000, seconds=0.1, total_documents=None)


def recipe_in(folder: Path, **sections: dict[str, Any]) -> Recipe:
    values: dict[str, dict[str, Any]] = {
        "run": {"folder": str(folder)},
        "budget": {"steps": 8},
        "data": {"source": "stories", "tokenizer": "words:100", "length": 32, "folder": str(folder / "data")},
        "model": {"width": 16, "layers": 1, "heads": 2},
        "train": {"batch": 4, "lr": 3e-4},
        "evaluate": {"rows": 8, "every": 0.5},
    }
    for section, fields in sections.items():
        values[section] = values.get(section, {}) | fields
    return build(values, "test")


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "product_flops", lambda *_: 1e9)


def test_the_largest_micro_batch_that_fits_is_taken_and_the_batch_is_kept(tmp_path: Path) -> None:
    task = task_of(recipe_in(tmp_path, train={"batch": 12}))
    profile = counted_profile(task, CPU)
    assert profile is not None and profile.estimated
    plan = plan_task(task, replace(profile, density=DENSITY))
    assert (plan.per_device, plan.accumulate, plan.estimated) == (12, 1, True)


def test_a_micro_batch_beyond_the_caches_of_a_cpu_is_not_taken(tmp_path: Path) -> None:
    rows = CPU_POSITIONS // 512
    recipe = recipe_in(tmp_path, train={"batch": 8 * rows}, data={"length": 512})
    assert max(counted_peaks(recipe, 100, CPU, 8 * rows)) == rows
    assert list(counted_peaks(recipe_in(tmp_path, train={"batch": 8, "per_device": 2}), 100, CPU, 8)) == [2]


def test_what_may_be_too_large_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(recipe_in(tmp_path))
    peaks = counted_peaks(task.recipe, vocabulary_of(task.recipe), CPU, 4)
    monkeypatch.setattr(counted, "available_bytes", lambda _: int(max(peaks.values()) / ROOM_SHARE) + 1)
    found = counted_profile(task, CPU)
    assert found is not None and max(point.batch for point in found.points) == 4
    monkeypatch.setattr(counted, "available_bytes", lambda _: int(peaks[1] / ROOM_SHARE) - 1)
    assert counted_profile(task, CPU) is None


def test_a_budget_of_memory_bounds_what_is_counted(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    peaks = counted_peaks(recipe, vocabulary_of(recipe), CPU, 4)
    memory = {"memory": f"{int(peaks[2] / ROOM_SHARE) + 1}B"}
    found = counted_profile(task_of(recipe_in(tmp_path, budget={"steps": 8, **memory})), CPU)
    assert found is not None and max(point.batch for point in found.points) == 2


def test_several_devices_share_the_batch(tmp_path: Path) -> None:
    found = counted_profile(task_of(recipe_in(tmp_path)), CPU, devices=2)
    assert found is not None and {point.batch for point in found.points} == {1, 2}


@pytest.mark.parametrize(
    ("strategy", "workers", "gpus", "sharing", "copies"),
    [
        ("sync", 1, 1, None, 1),
        ("sync", 4, 1, 4, 4),
        ("local", 4, 3, 2, 2),
        ("async", 2, 1, 2, 3),
        ("async", 2, 2, None, 2),
    ],
)
def test_workers_on_one_gpu_divide_its_memory(
    strategy: str, workers: int, gpus: int, sharing: int, copies: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes of an asynchronous run are its workers and the one that holds the weights."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    gpu, fields = torch.device("cuda", 0), {"strategy": strategy, "workers": workers}
    task = task_of(recipe_in(tmp_path, parallel=fields))
    need = max(counted_peaks(task.recipe, vocabulary_of(task.recipe), gpu, 4 // workers).values())
    enough = copies * (int(need / ROOM_SHARE) + 1)
    machine = Machine(device="cuda", device_name="x", threads=1, memory_bytes=enough, system="", python="", versions={})
    here = Here(gpu, machine, enough, lambda _: 1e12)
    found = counted_profile(task, gpu, workers, here)
    assert found is not None and (found.sharing, found.available_bytes) == (sharing, enough // copies)
    assert max(point.batch for point in found.points) == 4 // workers
    short = here._replace(free=copies * 1000)
    if copies == 1:
        assert counted_profile(task, gpu, workers, short) is None
    else:
        with pytest.raises(
            PlanError, match=f"{copies} processes share a GPU, and each may use .* of 1 kB; .* Take fewer parallel.w"
        ):
            counted_profile(task, gpu, workers, short)


def test_an_hmm_and_a_sharded_model_are_measured(tmp_path: Path) -> None:
    data = {"source": "stories", "tokenizer": "words:50", "length": 8, "documents": 20, "folder": str(tmp_path)}
    hmm = build({"hmm": {"states": 3}, "budget": {"epochs": 1}, "data": data}, "test")
    assert counted_profile(task_of(hmm), CPU) is None
    assert counted_profile(task_of(recipe_in(tmp_path, parallel={"shard": True})), CPU, devices=2) is None


def test_only_a_run_counts_and_what_it_counted_is_not_taken_for_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "measure_task", lambda *_: pytest.fail("no trial is needed"))
    recipe = recipe_in(tmp_path)
    task, folder = task_of(recipe), RunFolder.of(recipe)
    folder.path.mkdir(parents=True)
    assert ensure_profile(task, folder, Reporter(), measuring_of(recipe)).estimated
    assert measure.own_profile(task, folder, measuring_of(recipe)) is not None
    assert measure.own_profile(task, folder, Measuring(seconds=1.0)) is None


def test_a_guess_refuses_no_budget_that_a_faster_machine_may_keep(tmp_path: Path) -> None:
    task = task_of(recipe_in(tmp_path, budget={"steps": None, "time": "12s"}))
    profile = counted_profile(task, CPU)
    assert profile is not None
    slow = replace(profile, density=DENSITY, setup_seconds=12.0)
    plan = plan_task(task, slow)
    (line,) = [line for line in plan.lines if line.quantity == "pace"]
    assert "4 times as fast as estimated" in line.value or "2 times" in line.value
    with pytest.raises(Refusal):
        plan_task(task, replace(slow, setup_seconds=60.0))


def test_the_final_plan_has_what_was_taken_and_adds_up(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, budget={"steps": None, "time": "60s"})
    task = task_of(recipe)
    profile = counted_profile(task, CPU)
    assert profile is not None
    plan = plan_task(task, replace(profile, density=DENSITY))
    parts = {"start": 1.0, "measure": 2.0, "plan": 0.5, "prepare": 3.0, "set-up": 4.0, "first step": 1.0, "train": 7.0}
    final = final_plan(plan, recipe, 50, Took(0.5, None, 12345, parts, 10))
    assert not final.estimated and final.is_final_of(plan) and not plan.is_final_of(final)
    assert (final.steps, final.samples, final.tokens) == (50, 200, 50 * 4 * 32)
    assert final.parts["spent so far"] == 3.5 and final.parts["prepare"] == 3.0
    assert final.parts["set-up"] == 4.0 + 1.0 + (7.0 - 10 * 0.5), "slow first steps are part of the set-up"
    assert final.parts["train"] == 25.0 and final.peak_bytes == 12345
    assert final.seconds == pytest.approx(sum(final.parts.values()))
    assert final.predictions is not None and plan.predictions is not None and plan.steps is not None
    assert final.predictions == round(plan.predictions * 50 / plan.steps)
    again = final_plan(final, recipe, 50, Took(0.5, 2.0, 23456, parts | {"train": 20.0}, 30))
    assert again.parts["finish"] == 2.0 + REPORT_SECONDS and again.parts["evaluations"] == 2 * 2.0
    assert again.parts["set-up"] == final.parts["set-up"] and again.peak_bytes == 23456
    for page, expected in ((0.3, 0.3), (9.0, REPORT_SECONDS)):
        drawn = final_plan(final, recipe, 50, Took(0.5, 2.0, 23456, parts | {"train": 20.0}, 30, page))
        assert drawn.parts["finish"] == 2.0 + expected, "a page that was drawn has its own seconds"
    slow = final_plan(final, recipe, 50, Took(0.5, 2.0, 23456, parts | {"train": 20.0}, 30, None, 7.0))
    assert slow.parts["set-up"] == final.parts["set-up"] + 7.0, "what the first evaluation compiled"
    assert slow.seconds == pytest.approx(again.seconds + 7.0)
    seen = final_plan(final, recipe, 50, Took(0.5, 2.0, 23456, parts, 30, checkpoints=1.5, baselines=0.25))
    assert (seen.parts["checkpoints"], seen.parts["baselines"]) == (1.5, 0.25), "as this machine writes and counts"
    assert seen.seconds == pytest.approx(sum(seen.parts.values()))
    lines = {line.quantity: line for line in again.lines}
    assert lines["steps"].value == "50" and "first steps" in lines["speed"].reason


def test_a_final_plan_has_the_memory_of_a_step_beside_a_checkpoint_that_is_written(tmp_path: Path) -> None:
    """Steps of 100 MB before the first checkpoint, whose copy of 6 MB did not fall together with a peak so far."""
    recipe = recipe_in(tmp_path, budget={"steps": None, "time": "60s"})
    profile = counted_profile(task_of(recipe), CPU)
    assert profile is not None
    plan = plan_task(task_of(recipe), replace(profile, density=DENSITY))
    usage = Usage(asked=103 * 10**6, reserved=103 * 10**6, outside=0, rest=0, blocks=2)
    meter: Any = SimpleNamespace(device=CPU, look=lambda: None, seen=100 * 10**6, usage=lambda: usage)
    clock, written, copied = Clock(), list[Plan](), 0
    deadline, trainee = Deadline(clock, 1e9), SimpleNamespace(recipe=recipe, settling=False)
    keep = SimpleNamespace(requests=SimpleNamespace(alone=True))
    parts: Any = plan, trainee, deadline, keep, meter, clock
    first = FirstSteps(*parts, lambda plan, _: written.append(plan), None, lambda: copied)
    state, report = State(recipe="", data="", schedule=Schedule(total=50)), cast(Any, SimpleNamespace(finished=False))
    for step in range(1, 16):
        deadline.took_step(0.5)
        state = first(replace(state, step=step), report)
        copied, meter.seen = (6 * 10**6, 103 * 10**6) if step > 2 else (0, 100 * 10**6)
    assert [made.peak_bytes for made in written] == [106 * 10**6 + CREEP_BYTES], "and what it grows by later"


def test_a_final_plan_of_fewer_steps_than_the_other_budgets_allow_is_limited_by_the_time(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, budget={"steps": 80, "time": "60s"})
    task = task_of(recipe)
    profile = counted_profile(task, CPU)
    assert profile is not None
    plan = plan_task(task, replace(profile, density=DENSITY))
    assert plan.binding == "steps" and plan.most_steps is None
    parts = {"train": 7.0}
    for steps, binding, most, reason in ((80, "steps", None, "budget.steps = 80"), (50, "time", 80, "what fits 1m")):
        final = final_plan(plan, recipe, steps, Took(0.5, None, 12345, parts, 10))
        assert (final.binding, final.most_steps) == (binding, most) and final.is_final_of(plan)
        assert {line.quantity: line.reason for line in final.lines}["steps"] == reason


def test_a_final_plan_says_so_where_its_text_is_read_often_by_now(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, budget={"steps": None, "time": "60s"})
    task = task_of(recipe)
    profile = counted_profile(task, CPU)
    assert profile is not None
    plan = replace(plan_task(task, replace(profile, density=DENSITY)), steps=100, epochs=3.0, share=None)
    turn = Line(
        quantity="overfitting", value="after about 10 epochs", reason="12 epochs over 3 MB with 1.2M parameters"
    )
    took = Took(0.5, None, 12345, {"train": 7.0}, 10)

    def notes(steps: int, *lines: Line) -> list[tuple[str, str]]:
        kept = tuple(line for line in plan.lines if line.quantity not in ("repetition", "overfitting"))
        made = final_plan(replace(plan, lines=kept + lines), recipe, steps, took)
        return [(line.quantity, line.reason) for line in made.lines if line.quantity in ("repetition", "overfitting")]

    assert [name for name, _ in notes(500)] == ["repetition"] and notes(100) == []
    assert notes(500, turn) == [("overfitting", "15 epochs over 3 MB with 1.2M parameters")]
    assert [name for name, _ in notes(200, turn)] == ["repetition"], (
        "6 epochs are fewer than those after which it turns"
    )


@pytest.mark.parametrize(("alone", "steps"), [(True, 1), (False, 3)])
def test_a_plan_is_final_after_the_schedule_that_it_was_asked_for(tmp_path: Path, alone: bool, steps: int) -> None:
    """Several processes have that some steps later."""
    recipe = recipe_in(tmp_path, budget={"steps": None, "time": "60s"})
    profile = counted_profile(task_of(recipe), CPU)
    assert profile is not None
    plan = plan_task(task_of(recipe), replace(profile, density=DENSITY))
    meter: Any = SimpleNamespace(device=CPU, look=lambda: None, seen=0, usage=lambda: None)
    clock, written, trainee = Clock(), list[int](), SimpleNamespace(recipe=recipe, settling=False)
    deadline, keep = Deadline(clock, 1e9), SimpleNamespace(requests=SimpleNamespace(alone=alone))
    parts: Any = plan, trainee, deadline, keep, meter, clock
    first = FirstSteps(*parts, lambda plan, _: written.append(plan.steps or 0))
    state, report = State(recipe="", data="", schedule=Schedule(total=50)), cast(Any, SimpleNamespace(finished=False))
    taken = 0
    while not written:
        deadline.took_step(0.5)
        taken += 1
        known = deadline.settled
        state = first(replace(state, step=taken, schedule=Schedule(total=50 + taken)), report)
    assert known and written == [60 + steps]


class Told(Reporter):
    """Keeps the plans that a person reads."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []

    def planned(self, plan: Plan) -> None:
        self.plans.append(plan)

    def settled(self, plan: Plan) -> None:
        self.plans.append(plan)


def test_the_first_steps_of_a_run_make_its_plan_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoestring.training.deadline._SETTLED_SECONDS", 0.0)
    monkeypatch.setattr("shoestring.runs.first_steps._LONG_SECONDS", 0.0)
    recipe, told = recipe_in(tmp_path, budget={"steps": 40}), Told()
    finished = run(recipe, told, Clock(0.0))
    assert finished is not None
    before, after = told.plans
    assert before.estimated and not after.estimated
    assert (before.steps, after.steps, finished.outcome.steps) == (40, 40, 40), "only the time changes steps"
    written = Plan.read(finished.folder.plan)
    assert finished.plan == written and written.steps == after.steps and not written.estimated
    assert written.step_seconds == after.step_seconds != before.step_seconds
    assert written.parts["evaluations"] != after.parts["evaluations"], "the first evaluation told its seconds"
    finished.folder.check_records(*finished.folder.records)  # what was rewritten is sealed
    profile = Profile.read(finished.folder.profile)
    assert not profile.estimated and [point.batch for point in profile.points] == [4]
    assert profile.points[0].seconds + profile.update_seconds == pytest.approx(written.step_seconds)
    replanned = task_of(recipe).make_plan(profile)
    assert replanned.step_seconds == pytest.approx(written.step_seconds) and replanned.peak_bytes == written.peak_bytes
    assert run(recipe, told, Clock(0.0)) is not None, "a finished run is read again"
