"""Measuring a recipe: what is shown of it, what is kept and when it holds, and what several processes agree on."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
import torch
from conftest import Command, last_json
from processes import together
from profiles import write_profile

from shoestring.console.terminal import Terminal
from shoestring.core.errors import Refusal
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import build, load
from shoestring.core.records import Cost, Density, Machine, MemoryModel, Point, Profile
from shoestring.core.run_folder import RunFolder
from shoestring.core.schema import encode
from shoestring.parallel.process_group import ProcessGroup
from shoestring.probe.child import OutOfTime, RemoteTrials
from shoestring.probe.measure import Timings
from shoestring.probe.meter import Meter
from shoestring.probe.trials import Overheads, Trial, Usage
from shoestring.runs import measure
from shoestring.runs.as_in_a_run import as_in_a_run, bytes_beside, law_with, overlap_of
from shoestring.runs.measure import (
    Measuring,
    _busy,
    _measured,
    ensure_profile,
    measure_together,
    measuring_of,
    memory_limit,
    own_profile,
)
from shoestring.runs.network_workload import TrainingWorkload, own_rows
from shoestring.runs.plan import plan_task
from shoestring.runs.prepare import prepare_recipe
from shoestring.runs.profile_cache import cache_file, cache_folder, code_fingerprint, keep, read_cached
from shoestring.runs.reporter import Reporter
from shoestring.runs.task import Task, task_of
from shoestring.runs.telling import Telling

SAMPLE = Density(
    documents=85_200,
    text_bytes=60_000_000,
    tokens=15_000_000,
    seconds=1.0,
    total_documents=852_000,
    total_documents_error=9000.0,
    tokens_per_gb_error=600_000.0,
    entries_per_gb_error=15_000.0,
)
MACHINE = Machine(device="cpu", device_name="a CPU", threads=1, memory_bytes=None, system="", python="", versions={})
LAW = MemoryModel(
    fixed_bytes=1_860_000_000,
    row_bytes=1.47e9,
    limit_bytes=149_000_000_000,
    margin_bytes=745_000_000,
    largest=99,
    verified=99,
    trials=4,
    out_of_memory=0,
    trial_seconds=6.2,
)
QUICK = Measuring(seconds=1.0)


class Turned:
    """A clock that stands still until it is turned."""

    now = 0.0

    def elapsed(self) -> float:
        return self.now


def recipe_in(folder: Path, **sections: dict[str, Any]) -> Recipe:
    values: dict[str, dict[str, Any]] = {
        "run": {"folder": str(folder)},
        "budget": {"steps": 1},
        "train": {"batch": 1, "lr": 3e-4},
    }
    for section, fields in sections.items():
        values[section] = values.get(section, {}) | fields
    return build(values, "test")


def profile_of(recipe: Recipe, **changes: Any) -> Profile:
    profile = Profile(
        machine=MACHINE,
        workload=recipe.workload,
        length=recipe.data.length,
        points=(Point(batch=1, seconds=0.5, slowest_seconds=0.6, peak_bytes=None, fastest_seconds=0.4),),
        setup_seconds=1.0,
        update_seconds=0.1,
        validate_seconds_per_row=0.1,
        checkpoint_seconds=0.1,
        checkpoint_bytes=1,
        available_bytes=None,
        stopped="enough",
        cost=Cost(parameters={"all": 1}, forward_flops_per_token=1.0),
        date=datetime.date.today().isoformat(),
    )
    return replace(profile, **changes)


# --- what is shown


def shown(
    density: Density | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """All that a person reads while a recipe is measured."""
    recipe = recipe_in(tmp_path)
    profile = profile_of(recipe)
    monkeypatch.setattr(measure, "measure_task", lambda *_: profile)
    monkeypatch.setattr(measure, "recipe_density", lambda _: density)
    assert ensure_profile(task_of(recipe), RunFolder.of(recipe), Terminal(), QUICK) == replace(profile, density=density)
    return capsys.readouterr().out


def test_a_sample_is_shown_with_its_intervals_of_95_percent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """1.96 · 15,000 = 29,400 entries; 1.96 · 600,000 = 1.176 M tokens."""
    out = shown(SAMPLE, tmp_path, monkeypatch, capsys)
    assert "1.42M ± 29.4k entries/GB, 250M ± 1.18M tokens/GB (± is 95 %, from a sample of 60 MB of text)" in out


@pytest.mark.parametrize(
    ("error", "said"), [(0.0, "all of its 60 MB of text counted"), (None, "from its first 85,200 entries")]
)
def test_what_was_counted_in_full_or_not_at_random_has_no_interval(
    error: float | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    density = Density(
        documents=SAMPLE.documents,
        text_bytes=SAMPLE.text_bytes,
        tokens=SAMPLE.tokens,
        seconds=1.0,
        total_documents=None if error is None else SAMPLE.documents,
        total_documents_error=error,
        tokens_per_gb_error=error,
        entries_per_gb_error=error,
    )
    out = shown(density, tmp_path, monkeypatch, capsys)
    assert f"1.42M entries/GB, 250M tokens/GB ({said}" in out
    assert "±" not in out


def test_a_stream_has_no_density_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "/GB" not in shown(None, tmp_path, monkeypatch, capsys)


def test_the_table_and_the_law_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = profile_of(
        recipe_in(tmp_path),
        length=1000,
        points=tuple(
            Point(batch=b, seconds=s, slowest_seconds=1.1 * s, peak_bytes=b * 10**9, fastest_seconds=0.9 * s)
            for b, s in ((1, 0.1), (4, 0.2), (16, 0.4), (64, 1.59))
        ),
        memory=LAW,
        validation_memory=replace(LAW, row_bytes=2e8, largest=700, verified=700),
        compile_seconds=12.0,
        devices=2,
    )
    Terminal().measured(profile)
    out = capsys.readouterr().out
    assert "360ms – 440ms" in out
    assert "40k positions/s" in out
    assert "fastest: batch 64; within 2 % of it: batch 16; the curve bends at 16" in out
    assert "training: 1.86 GB + 1.47 GB per row; 149 GB may be used, less a margin of 745 MB" in out
    assert "the largest batch is 99 (99 was tried; 4 trials, 0 out of memory, 6.2s)" in out
    assert "evaluation: 1.86 GB + 200 MB per row" in out
    bounded = replace(LAW, largest=None, verified=256, trials=3)
    Terminal().measured(replace(profile, validation_memory=bounded))
    assert "the largest batch that was tried is 256 (3 trials, 0 out of memory, 6.2s)" in capsys.readouterr().out
    assert "compile 12s" in out
    assert "2 devices at the same time" in out


# --- what is kept


def test_the_cache_is_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOESTRING_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("SHOESTRING_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x/shoestring"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache/shoestring"


def task_in(folder: Path, **sections: dict[str, Any]) -> Task:
    return task_of(recipe_in(folder, **sections))


def test_another_machine_version_workload_or_way_of_measuring_has_another_place(tmp_path: Path) -> None:
    task = task_in(tmp_path)
    places = [
        cache_file(task, MACHINE, 1, False),
        cache_file(task, MACHINE, 2, False),
        cache_file(task, MACHINE, 1, True),
        cache_file(task, replace(MACHINE, versions={"torch": "2.13"}), 1, False),
        cache_file(task_in(tmp_path, model={"width": 64}), MACHINE, 1, False),
        cache_file(task_in(tmp_path, budget={"memory": "1GB"}), MACHINE, 1, False),
    ]
    assert len(set(places)) == len(places)
    assert cache_file(task_in(tmp_path, run={"name": "other"}), MACHINE, 1, False) == places[0]


def test_what_is_measured_on_real_rows_belongs_to_them(tmp_path: Path) -> None:
    """Random rows are the same whatever the corpus is."""
    task = task_in(tmp_path)
    data = ({"source": "text:x"}, {"documents": 5}, {"heldout": 0.1}, {"folder": "other"})
    others = [task_in(tmp_path, run={"seed": 7}), *(task_in(tmp_path, data=each) for each in data)]
    real = [cache_file(each, MACHINE, 1, True) for each in (task, *others)]
    assert len(set(real)) == len(real)
    assert {cache_file(each, MACHINE, 1, False) for each in others} == {cache_file(task, MACHINE, 1, False)}
    assert cache_file(task_in(tmp_path, run={"name": "other"}), MACHINE, 1, True) == real[0]


def test_what_is_kept_is_of_the_machine_and_not_of_the_corpus(tmp_path: Path) -> None:
    profile, file = profile_of(recipe_in(tmp_path), density=SAMPLE), tmp_path / "deep/p.json"
    keep(profile, file)
    assert file.is_file()
    assert read_cached(file, False, None) == replace(profile, density=None)
    (tmp_path / "blocked").write_text("")
    keep(profile, tmp_path / "blocked/p.json")  # a cache that cannot be written stops nothing
    assert not (tmp_path / "blocked/p.json").exists()


@pytest.mark.parametrize(
    ("changes", "thorough", "free", "holds"),
    [
        ({}, False, None, True),
        ({}, True, None, False),
        ({"thorough": True}, True, None, True),
        ({"date": None}, False, None, False),
        ({"date": "2020-01-01"}, False, None, False),
        ({"memory": LAW, "points": "known"}, False, 149_000_000_000, True),
        ({"memory": LAW, "points": "known"}, False, 140_000_000_000, False),
        ({"memory": replace(LAW, largest=None), "points": "known"}, False, 5_000_000_000, True),
        ({"memory": replace(LAW, largest=None), "points": "known"}, False, 3_000_000_000, False),
    ],
)
def test_a_kept_profile_holds_while_it_is_young_thorough_enough_and_fits(
    tmp_path: Path, changes: dict[str, Any], thorough: bool, free: int | None, holds: bool
) -> None:
    """99 rows take 147.4 GB of the law and 745 MB of margin; without a largest batch, the point's 3.3 GB count."""
    if changes.get("points") == "known":
        point = Point(batch=1, seconds=0.5, slowest_seconds=0.5, peak_bytes=3_330_000_000)
        changes = changes | {"points": (point,)}
    file = tmp_path / "p.json"
    keep(profile_of(recipe_in(tmp_path), **changes), file)
    assert (read_cached(file, thorough, free) is not None) == holds


def test_a_gpu_s_profile_holds_longer_than_a_cpu_s(tmp_path: Path) -> None:
    week = (datetime.date.today() - datetime.timedelta(days=7)).isoformat()
    file = tmp_path / "p.json"
    for device, holds in (("cpu", False), ("cuda", True)):
        keep(profile_of(recipe_in(tmp_path), date=week, machine=replace(MACHINE, device=device)), file)
        assert (read_cached(file, False, None) is not None) == holds


def test_damage_is_no_profile(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text("{")
    assert read_cached(file, False, None) is None
    assert read_cached(tmp_path / "absent.json", False, None) is None


def test_the_run_folder_s_own_profile_is_taken_if_it_is_what_was_asked_for(tmp_path: Path) -> None:
    task = task_in(tmp_path)
    folder = RunFolder.of(task.recipe)
    assert own_profile(task, folder, QUICK) is None
    profile_of(task.recipe).write(folder.profile)
    assert own_profile(task, folder, QUICK) is not None
    assert own_profile(task, folder, replace(QUICK, thorough=True)) is None
    assert own_profile(task, folder, replace(QUICK, real=True)) is None
    assert own_profile(task_in(tmp_path, model={"width": 64}), folder, QUICK) is None
    folder.profile.write_text(folder.profile.read_text().replace("profile/2", "profile/1"))
    assert own_profile(task, folder, QUICK) is None, "of an older version: measured again"


@pytest.mark.parametrize("machine", [replace(MACHINE, device_name="a GPU"), replace(MACHINE, versions={"torch": "1"})])
def test_a_profile_of_another_machine_or_version_is_measured_again_where_it_must_be_of_this_one(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = task_in(tmp_path)
    folder, here = RunFolder.of(task.recipe), replace(QUICK, here=True)
    profile_of(task.recipe, machine=machine).write(folder.profile)
    monkeypatch.setattr(measure.RemoteTrials, "machine", lambda _: {"machine": encode(MACHINE)})
    monkeypatch.setattr(measure, "measure_task", lambda *_: profile_of(task.recipe))
    monkeypatch.setattr(measure, "recipe_density", lambda _: None)
    assert ensure_profile(task, folder, Terminal(), QUICK).machine == machine, "a run watches its speed"
    assert capsys.readouterr().out == ""
    assert ensure_profile(task, folder, Terminal(), here).machine == MACHINE
    said = " ".join(capsys.readouterr().out.split())
    assert f"measured on another machine or other versions ({machine.device_name}); measuring again" in said
    assert Profile.read(folder.profile).machine == MACHINE
    monkeypatch.setattr(measure, "measure_task", lambda *_: pytest.fail("it is of this machine"))
    ensure_profile(task, folder, Terminal(), here)
    assert capsys.readouterr().out == ""


def test_a_budget_of_memory_is_a_limit_without_a_margin_where_it_is_below_what_is_free(tmp_path: Path) -> None:
    facts = {"available_bytes": 20_000_000_000, "machine": {"device": "cpu"}}
    assert memory_limit(recipe_in(tmp_path), facts) == (20_000_000_000, 1_000_000_000)
    assert memory_limit(recipe_in(tmp_path, budget={"memory": "5GB"}), facts) == (5_000_000_000, 0)
    assert memory_limit(recipe_in(tmp_path, budget={"memory": "50GB"}), facts) == (20_000_000_000, 1_000_000_000)
    unknown = {"available_bytes": None, "machine": {"device": "cpu"}}
    assert memory_limit(recipe_in(tmp_path), unknown) == (None, 0)


def test_what_a_run_does_beside_its_passes_is_in_its_memory() -> None:
    """Scoring and saving took 50 bytes more than a pass: five rows fewer fit."""
    usage = Usage(asked=400, reserved=400, outside=0, rest=100)
    trial = Trial(batch=30, times=(1.0,), seconds=1.0, compile_seconds=0.0, warmup_seconds=0.0, usage=usage)
    around = Overheads(0.1, 0.9, 0.1, 0.1, 10, 0.1, 0.0, peak_bytes=450)
    assert bytes_beside(Timings((trial,), "", 0), 30, around) == 50
    assert bytes_beside(Timings((trial,), "", 0), 30, around._replace(peak_bytes=None)) == 0
    timings = Timings((trial,), "", 0)
    assert overlap_of(timings, 30, around, 1) == pytest.approx(0.9 / 1.1), "nobody waits between the parts"
    assert overlap_of(timings, 30, around, 2) == pytest.approx(0.9 / 2.1), "of two passes"
    assert overlap_of(timings, 30, around._replace(step_seconds=5.0), 1) == 1
    mine, other = (as_in_a_run(replace(trial.point(), batch=batch), 50, 0.5, {30: 430}) for batch in (30, 10))
    assert (mine.peak_bytes, other.peak_bytes, mine.seconds, mine.slowest_seconds) == (430, 450, 0.5, 0.5)
    assert as_in_a_run(trial.point(), 50, 1.0, {30: None}).peak_bytes == 450
    law = MemoryModel(
        fixed_bytes=100, row_bytes=10.0, limit_bytes=1010, margin_bytes=10, largest=90, verified=90, trials=3,
        out_of_memory=0, trial_seconds=1.0,
    )  # fmt: skip
    found = law_with(law, 50)
    assert (found.fixed_bytes, found.largest, found.predict(85)) == (150, 85, 1000)
    assert law_with(law, 0) == law


class Children:
    """Processes that note what they are asked, and are set up in 8 s."""

    def __init__(self, until: float = math.inf) -> None:
        self.asked: list[str] = []
        self.until = until

    def renew(self) -> None:
        self.asked.append("renew")

    def begin(self, batch: int, passes: int = 1) -> dict[str, Any]:
        self.asked.append(f"begin {batch} x {passes}")
        return {"setup_seconds": 8.0, "peak_bytes": 77, "step_seconds": 1.25}

    def trial(self, batch: int, seconds: float = 0.0, least: int = 1, scoring: bool = False) -> Trial:
        self.asked.append(f"score {batch}" if scoring else f"train {batch}")
        return Trial(batch=batch, times=(1.0,), seconds=1.0, compile_seconds=1.5, warmup_seconds=0.5, usage=None)


class OnCpu(Children):
    """A row takes 10 ms at any batch but 2, where it takes 5, and scoring 2 s more at first. A trial takes 400 bytes,
    and a whole run 500."""

    def begin(self, batch: int, passes: int = 1) -> dict[str, Any]:
        cost = Cost(parameters={"all": 1}, forward_flops_per_token=1.0)
        facts = {"machine": encode(MACHINE), "available_bytes": None, "cost": encode(cost)}
        late = {"compile_seconds": None, "warmup_seconds": 0.0, "first_seconds": 0.0}
        return {**super().begin(batch, passes), **facts, **late}

    def trial(self, batch: int, seconds: float = 0.0, least: int = 1, scoring: bool = False) -> Trial:
        usage = Usage(asked=400, reserved=400, outside=0, rest=100)
        times = (0.01 * batch if batch != 2 else 0.01,)
        return super().trial(batch, seconds, least, scoring)._replace(times=times, usage=usage)

    def around(self, batch: int, scored: int, passes: int = 1) -> Overheads:
        self.asked.append(f"around {batch} x {passes}")
        return Overheads(0.1, 0.9, 0.1, 0.1, 10, 0.1, 2.0, peak_bytes=500)


class Crowded(OnCpu):
    """While trials run, other processes use all processors."""

    def trial(self, batch: int, seconds: float = 0.0, least: int = 1, scoring: bool = False) -> Trial:
        return super().trial(batch, seconds, least, scoring)._replace(others=float(os.cpu_count() or 1))


@pytest.mark.parametrize("children", [OnCpu, Crowded])
def test_a_busy_machine_is_said_to_be_so_and_its_profile_is_not_kept(
    children: type[OnCpu], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    busy, task, file = children is Crowded, task_in(tmp_path, train={"batch": 4}), tmp_path / "cached.json"
    monkeypatch.setattr(measure, "_open_trials", lambda *_: contextlib.nullcontext(children()))
    monkeypatch.setattr(measure, "_kept", lambda *_: (None, file))
    monkeypatch.setattr(measure, "recipe_density", lambda _: None)
    folder = RunFolder.of(task.recipe)
    profile = ensure_profile(task, folder, Terminal(), QUICK)
    said = " ".join(capsys.readouterr().out.split())
    assert ("the machine is busy: other processes used" in said) == busy == (profile.busy is not None)
    assert file.is_file() == (not busy)
    assert (own_profile(task, folder, QUICK) is None) == busy, "the next command measures again"


class Disturbed(OnCpu):
    """Most passes take ten times as long as the fastest one."""

    def trial(self, batch: int, seconds: float = 0.0, least: int = 1, scoring: bool = False) -> Trial:
        return super().trial(batch, seconds, least, scoring)._replace(times=(0.1 * batch, 0.01 * batch, 0.2 * batch))


def test_the_plan_of_a_busy_machine_takes_the_fastest_passes(tmp_path: Path) -> None:
    """And all else as much faster: the run adapts to its real pace, where nothing would fit the median."""
    task = task_in(tmp_path, train={"batch": 4})
    profile = _measured(cast(RemoteTrials, Disturbed()), task, QUICK)
    assert profile.busy is not None
    assert [point.seconds for point in profile.points] == [point.fastest_seconds for point in profile.points]
    assert profile.points[0].seconds == pytest.approx(0.01)
    assert (profile.update_seconds, profile.validate_seconds_per_row) == pytest.approx((0.01, 0.01))


def test_a_busy_machine_is_no_reason_to_refuse_a_run(tmp_path: Path) -> None:
    """Nothing fits the pace of the measurement; the plan assumes a faster machine, and says so."""
    budget = {"time": "60s", "steps": 10**6}
    task = task_in(tmp_path, train={"batch": 4}, budget=budget, data={"documents": 100}, evaluate={"rows": 4})
    slow = replace(profile_of(task.recipe), density=SAMPLE)
    slow = replace(slow, points=tuple(replace(point, seconds=100.0) for point in slow.points))
    with pytest.raises(Refusal, match="nothing fits the time"):
        plan_task(task, slow)
    plan = plan_task(task, replace(slow, busy="the machine is busy"))
    assert plan.steps and plan.seconds is not None and plan.seconds <= 60
    (pace,) = (line for line in plan.lines if line.quantity == "pace")
    assert "times as fast as measured" in pace.value and "the machine is busy" in pace.reason
    with pytest.raises(Refusal, match="nothing fits the time"):
        plan_task(task, replace(slow, busy="the machine is busy"), spent=59.0)


def test_passes_that_differ_much_are_a_busy_machine_too() -> None:
    trial = Trial(batch=2, times=(0.1, 0.9), seconds=1.0, compile_seconds=0.0, warmup_seconds=0.0, usage=None)
    found = Timings((trial,), "", 0)
    said = "the machine is busy: passes at batch 2 took 100ms to 900ms; the plan takes the fastest passes"
    assert _busy(found, {"device": "cpu", "threads": 1}) == said
    assert _busy(found, {"device": "cuda", "threads": 1}) is None
    assert _busy(Timings((trial._replace(times=(0.1, 0.15)),), "", 0), {"device": "cpu", "threads": 1}) is None


def test_measuring_takes_a_fifth_of_the_time_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial takes three seconds: after half of 18 no further batch is timed, and no further process is started."""
    clock = Turned()
    monkeypatch.setattr(measure, "time", SimpleNamespace(monotonic=clock.elapsed))

    class Slow(OnCpu):
        def trial(self, batch: int, seconds: float = 0.0, least: int = 1, scoring: bool = False) -> Trial:
            clock.now += 3.0
            return super().trial(batch, seconds, least, scoring)._replace(times=(0.001,) * least)

    task = task_in(tmp_path, train={"batch": 1 << 12}, budget={"time": "90s"})
    how = measuring_of(task.recipe)
    assert how.most == pytest.approx(18.0)
    profile = _measured(cast(RemoteTrials, Slow(how.most)), task, how)
    assert len(profile.points) == 4
    assert "the time for measuring was over before batch" in profile.stopped


class Ended(OnCpu):
    """Answers until a question that would take too long: then, and from then on, time is over."""

    def __init__(self, question: str, clock: Turned):
        super().__init__(until=18.0)
        self._question, self._clock = question, clock

    def _ask(self, question: str) -> None:
        if question.startswith(self._question):
            self._clock.now = self.until
        if self._clock.now >= self.until:
            raise OutOfTime("the time for measuring is over")

    def begin(self, batch: int, passes: int = 1) -> dict[str, Any]:
        self._ask(f"begin {batch} x {passes}")
        return super().begin(batch, passes)

    def trial(self, batch: int, seconds: float = 0.0, least: int = 1, scoring: bool = False) -> Trial:
        self._ask(f"trial {batch}")
        return super().trial(batch, seconds, least, scoring)

    def around(self, batch: int, scored: int, passes: int = 1) -> Overheads:
        self._ask("around")
        return super().around(batch, scored, passes)


@pytest.mark.parametrize(
    ("question", "points", "said"),
    [
        ("begin 1", {1: 0.9 / 4}, "ended after 18s, a fifth of the time, before the first steps were taken"),
        ("trial 1", {1: 1.25}, None),
        ("trial 4", {1: 0.01, 2: 0.01}, None),
        ("begin 2", {1: 0.01, 2: 0.01, 4: 0.04}, "before evaluations and checkpoints were timed"),
        ("around", {1: 0.01, 2: 0.01, 4: 0.04}, "before evaluations and checkpoints were timed"),
    ],
)
def test_a_question_that_would_take_too_long_is_ended_and_what_is_known_is_used(
    question: str, points: dict[int, float], said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is always a plan, which fits the time; what was not measured is not kept."""
    clock = Turned()
    monkeypatch.setattr(measure, "time", SimpleNamespace(monotonic=clock.elapsed))
    values = {
        "train": {"batch": 4, "lr": 3e-4},
        "budget": {"time": "90s", "steps": 1000},
        "data": {"documents": 100},
        "evaluate": {"rows": 4},
    }
    task = task_in(tmp_path, **values)
    trials = Ended(question, clock)
    profile = measure._measure(cast(RemoteTrials, trials), task, measuring_of(task.recipe))
    assert {point.batch: point.seconds for point in profile.points} == pytest.approx(points)
    assert (profile.busy is not None) == profile.estimated == (said is not None)
    assert said is None or said in str(profile.busy)
    assert profile.checkpoint_bytes > 0 and profile.validate_seconds_per_row > 0
    plan = task.make_plan(replace(profile, density=SAMPLE))
    assert plan.steps and plan.seconds is not None and plan.seconds <= 90
    assert question != "begin 1" or 40 < plan.steps < 100


def test_a_measurement_without_a_limit_assumes_nothing(tmp_path: Path) -> None:
    with pytest.raises(OutOfTime):
        measure._measure(cast(RemoteTrials, Ended("begin 1", Turned())), task_in(tmp_path), QUICK)


def test_a_person_reads_what_is_measured_within_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = Turned(), []
    monkeypatch.setattr("shoestring.runs.telling.time", SimpleNamespace(monotonic=clock.elapsed))
    telling = Telling(said.append)
    for second in range(100):
        clock.now = float(second)
        if second in (0, 3, 20):
            telling({0: "the first steps", 3: "batch 1", 20: "batch 2"}[second])
        telling.look()
    assert said == [
        "measuring: batch 1 (5s so far)",
        "measuring: batch 2 (20s so far)",
        "measuring: batch 2 (50s so far)",
        "measuring: batch 2 (1m 20s so far)",
    ]


def test_memory_and_set_up_on_a_cpu_are_those_of_a_process_like_a_run(tmp_path: Path) -> None:
    """Where a heap has its holes depends on what was there before."""
    trials = OnCpu()
    profile = _measured(cast(RemoteTrials, trials), task_in(tmp_path, train={"batch": 4}), QUICK)
    assert trials.asked[-3:] == ["renew", "begin 2 x 2", "around 2 x 2"]
    assert {point.batch: point.peak_bytes for point in profile.points}[2] == 500
    assert profile.setup_seconds == 8.0 + 2.0


class Tight(OnCpu):
    """Scoring does not fit beside two rows or more; a larger batch is not needed to see it."""

    def around(self, batch: int, scored: int, passes: int = 1) -> Overheads:
        found = super().around(batch, scored, passes)
        if batch > 1:
            raise MemoryError(f"a micro-batch of {scored} to be scored does not fit")
        return found


def test_measuring_steps_back_where_the_work_beside_the_passes_does_not_fit(tmp_path: Path) -> None:
    trials = Tight()
    profile = _measured(cast(RemoteTrials, trials), task_in(tmp_path, train={"batch": 4}), QUICK)
    assert trials.asked[-6:] == ["renew", "begin 2 x 2", "around 2 x 2", "renew", "begin 1 x 2", "around 1 x 2"]
    assert [point.batch for point in profile.points] == [1]
    assert "steps and evaluation at batch 2 ran out of memory" in profile.stopped


class OnGpu(OnCpu):
    """As fast, and what was compiled for it is found again."""

    def begin(self, batch: int, passes: int = 1) -> dict[str, Any]:
        machine = replace(MACHINE, device="cuda")
        return super().begin(batch, passes) | {"machine": encode(machine), "compile_seconds": 1.0, "first_seconds": 1.0}

    def trial(self, batch: int, seconds: float = 0.0, least: int = 1, scoring: bool = False) -> Trial:
        usage = Usage(asked=600, reserved=600, outside=0, rest=100)
        return super().trial(batch, seconds, least, scoring)._replace(usage=usage, times=(0.01,))


def test_the_memory_of_the_chosen_batch_is_that_of_steps_like_a_runs(tmp_path: Path) -> None:
    """Not that of trials, which add one pass to another: a masked model's run took 3.7 % less."""
    trials = OnGpu()
    profile = _measured(cast(RemoteTrials, trials), task_in(tmp_path, train={"batch": 4}), QUICK)
    assert trials.asked == ["begin 1 x 1", "train 1", "train 4", "begin 4 x 1", "around 4 x 1"]
    assert {point.batch: point.peak_bytes for point in profile.points} == {1: 600, 4: 500}


class Roomy(OnCpu):
    """Tensors take 60 MB and 5 MB a row, or 1 MB a row that is scored; memory has room for all of them."""

    def begin(self, batch: int, passes: int = 1) -> dict[str, Any]:
        return super().begin(batch, passes) | {"available_bytes": 20_000_000_000}

    def trial(self, batch: int, seconds: float = 0.0, least: int = 1, scoring: bool = False) -> Trial:
        took = 60_000_000 + (1_000_000 if scoring else 5_000_000) * batch
        usage = Usage(asked=took, reserved=took, outside=0, rest=60_000_000)
        times = (0.001 * batch,) * least
        return super().trial(batch, seconds, least, scoring)._replace(times=times, seconds=sum(times), usage=usage)

    def around(self, batch: int, scored: int, passes: int = 1) -> Overheads:
        return super().around(batch, scored, passes)._replace(peak_bytes=60_000_000 + 5_000_000 * batch)


def test_a_thorough_measurement_finds_the_law_of_memory_within_a_budget(tmp_path: Path) -> None:
    task = task_in(tmp_path, train={"batch": 8}, budget={"memory": "250MB"})
    profile = _measured(cast(RemoteTrials, Roomy()), task, replace(QUICK, thorough=True))
    law, scoring = profile.memory, profile.validation_memory
    assert profile.thorough and law is not None and scoring is not None
    for found, row, largest in ((law, 5_000_000, 38), (scoring, 1_000_000, 190)):
        assert (found.limit_bytes, found.margin_bytes, found.out_of_memory) == (250_000_000, 0, 0)
        assert (found.fixed_bytes, found.row_bytes, found.largest) == (60_000_000, row, largest)
        assert found.predict(largest) <= 250_000_000 < found.predict(largest + 1)
    assert [point.batch for point in profile.points][:4] == [1, 2, 4, 8]
    for point in profile.points:
        assert point.peak_bytes == law.predict(point.batch)


@pytest.mark.parametrize(
    ("evaluate", "row_seconds", "verified"),
    [
        ({"rows": 96}, 0.001, 96),
        ({"rows": 96, "per_device": 24}, 0.001, 24),
        ({"rows": 5000}, 0.02, 50),  # a second's worth of rows
    ],
    ids=["rows of the recipe", "its micro-batch", "seconds"],
)
def test_scoring_is_not_tried_beyond_what_a_run_scores_in_about_a_second(
    evaluate: dict[str, int], row_seconds: float, verified: int, tmp_path: Path
) -> None:
    class Filling(Roomy):
        """Where more rows than these are scored, memory is full."""

        def trial(self, batch: int, seconds: float = 0.0, least: int = 1, scoring: bool = False) -> Trial:
            found = super().trial(batch, seconds, least, scoring)
            if scoring and batch > verified:
                raise MemoryError
            return found._replace(times=(row_seconds * batch,), seconds=row_seconds * batch) if scoring else found

    trials = Filling()
    task = task_in(tmp_path, train={"batch": 8}, evaluate=evaluate, budget={"memory": "2GB"})
    profile = _measured(cast(RemoteTrials, trials), task, replace(QUICK, thorough=True))
    law, scoring = profile.memory, profile.validation_memory
    assert law is not None and scoring is not None
    assert max(int(asked.split()[1]) for asked in trials.asked if asked.startswith("score")) == verified
    assert (scoring.largest, scoring.verified, scoring.out_of_memory) == (None, verified, 0)
    assert (scoring.fixed_bytes, scoring.row_bytes) == (60_000_000, 1_000_000)
    assert law.largest == 388, "training has no such bound: (2 GB - 60 MB) / 5 MB"
    plan = task.make_plan(replace(profile, density=SAMPLE))
    scored = task.scored_rows(plan.per_device, "cpu")
    assert scored <= verified and scored <= task.recipe.evaluate.rows


class Counting(Children):
    """A device that counts a row of an HMM in a millisecond, and 4,096 rows as fast as one."""

    def begin(self, batch: int, passes: int = 1) -> dict[str, Any]:
        facts = {"machine": encode(MACHINE), "available_bytes": None, "compile_seconds": None, "first_seconds": 0.1}
        cost = {"parameters": {}, "forward_flops_per_token": 1.0}
        return super().begin(batch, passes) | facts | {"cost": cost}

    def trial(self, batch: int, seconds: float = 0.0, least: int = 1, scoring: bool = False) -> Trial:
        took = 0.001 * max(batch, 4096)
        return super().trial(batch, seconds, least, scoring)._replace(times=(took,) * least)

    def around(self, batch: int, scored: int, passes: int = 1) -> Overheads:
        self.asked.append(f"{passes} x {batch} and {scored}")
        return Overheads(0.1, 0.9, 0.1, 0.1, 10, 0.1, 0.0, peak_bytes=None)


@pytest.mark.parametrize(
    ("hmm", "rows", "passes"),
    [
        ({}, 256, 1),
        ({"update_every": 300}, 300, 1),
        ({"update": "every", "update_every": 9}, 9, 1),
        ({"update": "all"}, 4096, 2),
    ],
)
def test_an_hmm_is_measured_with_the_rows_of_its_updates(
    hmm: dict[str, Any], rows: int, passes: int, tmp_path: Path
) -> None:
    """However many would be faster; all that a run scores are scored at once."""
    data = {"tokenizer": "words:9", "documents": 9}
    values = {"run": {"folder": str(tmp_path)}, "budget": {"epochs": 3}, "evaluate": {"rows": 500}, "data": data}
    recipe = build(values | {"hmm": hmm}, "test")
    trials = Counting()
    profile = _measured(cast(RemoteTrials, trials), task_of(recipe), Measuring(seconds=60.0))
    assert trials.asked[-1] == f"{passes} x {rows} and 500"
    assert rows in {point.batch for point in profile.points}
    assert rows == 4096 or rows == profile.points[-1].batch, "a run that waits has no use for more"


# --- for real, on this CPU


@pytest.mark.parametrize(
    ("data", "numpy_s"),
    [({"source": "stories", "tokenizer": "words:40", "documents": 60}, True), ({"stream": "markov:12"}, False)],
    ids=["store", "stream"],
)
def test_random_rows_lie_where_a_run_s_own_do(data: dict[str, Any], numpy_s: bool, tmp_path: Path) -> None:
    """A store's rows are NumPy's memory, a stream's are tensors: among these, rows of the wrong kind moved the others,
    and a first step took 16 % less memory than that of a run."""
    section = {"length": 16, "folder": str(tmp_path / "stores")} | data
    recipe = recipe_in(tmp_path, data=section, model={"width": 16, "layers": 1, "heads": 2})
    if numpy_s:
        prepare_recipe(recipe, None, Reporter())
    cpu = torch.device("cpu")
    batches = [TrainingWorkload(recipe, Meter(cpu), rows)._rows(4) for rows in (own_rows(recipe, cpu), None)]
    for batch in batches:
        assert batch.ids.shape == (4, 17) and batch.ids.dtype == torch.int64
        assert batch.ids.untyped_storage().resizable() != numpy_s, "memory of NumPy's is not torch's to resize"


def test_measure_finds_a_law_within_a_budget_on_real_rows_and_keeps_it(
    tiny: Path, tmp_path: Path, shoestring: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows must be there, and a profile must be of this machine. A second run folder takes what was measured, and
    --fresh would not."""
    monkeypatch.setenv("SHOESTRING_CACHE", str(tmp_path / "cache"))
    settings = ("data.length=128", "model.width=64", "train.batch=8", "budget.memory=250MB")
    options = ("--real", *(part for field in settings for part in ("--set", field)), "--json")
    refused = shoestring("measure", tiny, *options)
    assert refused.returncode == 2
    assert "shoestring prepare RECIPE" in refused.stderr
    assert shoestring("prepare", tiny, *options[1:]).returncode == 0
    elsewhere = replace(write_profile(tiny, *settings), thorough=True, real=True)
    elsewhere.write(tmp_path / "runs/tiny/profile.json")
    first = shoestring("measure", tiny, *options)
    assert first.returncode == 0, first.stderr
    assert "measured on another machine or other versions (x); measuring again" in first.stderr
    assert "rows of the recipe's own" in first.stderr
    profile = Profile.from_dict(last_json(first.stdout), "stdout")
    assert profile.machine != elsewhere.machine
    law, scoring = profile.memory, profile.validation_memory
    assert profile.thorough and profile.real
    assert law is not None and scoring is not None
    assert (law.limit_bytes, law.margin_bytes) == (250_000_000, 0)
    assert law.largest is None or law.predict(law.largest) <= 250_000_000
    for point in profile.points:
        assert point.fastest_seconds is not None and point.peak_bytes is not None
        assert point.fastest_seconds <= point.seconds <= point.slowest_seconds
    second = shoestring("measure", tiny, *options, "--set", "run.name=other")
    assert "measured on " in second.stderr and "again" not in second.stderr.replace("--fresh measures again", "")
    kept = profile.busy is None  # other processes may work while this test runs
    assert (str(tmp_path / "cache") in second.stderr) == kept == ("the machine is busy" not in first.stderr)
    again = Profile.from_dict(last_json(second.stdout), "stdout")
    assert (replace(again, density=profile.density) == profile) == kept


def test_an_estimate_touches_nothing(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    result = shoestring("measure", tiny, "--estimate", "--gpu", "nvidia h200", "--json")
    assert result.returncode == 0, result.stderr
    told = last_json(result.stdout)
    assert told["gpu_bytes"] == 143_771 << 20
    assert told["seconds"]["low"] <= told["seconds"]["expected"] <= told["seconds"]["high"]  # type: ignore[index]
    assert not (tmp_path / "runs").exists()
    unknown = shoestring("measure", tiny, "--estimate", "--gpu", "a gpu of tomorrow")
    assert "unknown" in unknown.stdout
    refused = shoestring("measure", tiny, "--gpu", "x")
    assert refused.returncode == 2
    assert "--estimate" in refused.stderr


# --- several processes


class Twice(NamedTuple):
    """What came of measuring twice, in one of several processes."""

    calls: list[int]
    seconds: float
    available_bytes: int | None
    devices: int
    same: bool


def measured_twice(group: ProcessGroup, recipe_file: Path, own_file: Path, cache: Path) -> Twice:
    """Each process finds another time and other memory, and notes that it was asked."""
    task, own, calls = task_of(load(recipe_file)), Profile.read(own_file), list[int]()

    def measured(*_: object) -> Profile:
        calls.append(group.rank)
        slower = own.points[0].seconds * (1 + group.rank)
        point = replace(own.points[0], seconds=slower, slowest_seconds=max(slower, own.points[0].slowest_seconds))
        return replace(own, points=(point,), available_bytes=100 - group.rank)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOESTRING_CACHE", str(cache))
        patch.setattr(measure, "_measure", measured)
        told = {"machine": encode(own.machine), "available_bytes": None}
        patch.setattr(measure.RemoteTrials, "machine", lambda _: told)
        first, second = (measure_together(task, QUICK, group) for _ in range(2))
    return Twice(calls, first.points[0].seconds, first.available_bytes, first.devices, second == first)


def test_two_processes_measure_at_the_same_time_and_agree(tiny: Path, tmp_path: Path) -> None:
    profile_of(recipe_in(tmp_path)).write(tmp_path / "own.json")
    told = together(measured_twice, 2, tiny, tmp_path / "own.json", tmp_path / "cache")
    assert told == [Twice([rank], 1.0, 99, 2, True) for rank in (0, 1)], "measured once; the second time it was kept"


def test_nothing_is_said_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`measured` was agreed on by others: this process measures nothing, and writes it."""
    task = task_in(tmp_path)
    monkeypatch.setattr(measure, "measure_task", lambda *_: pytest.fail("it is known already"))
    profile, folder = profile_of(task.recipe), RunFolder.of(task.recipe)
    found = ensure_profile(task, folder, Reporter(), QUICK, profile)
    assert found.points == profile.points
    assert Profile.read(folder.profile) == found


def test_code_that_changed_measures_again(tmp_path: Path) -> None:
    """A file's text and its place count; what Python makes of them does not."""
    (tmp_path / "train").mkdir()
    (tmp_path / "train/loop.py").write_text("a = 1")
    (tmp_path / "train/notes.txt").write_text("a")
    found = [code_fingerprint(tmp_path)]
    (tmp_path / "train/notes.txt").write_text("b")
    code_fingerprint.cache_clear()
    assert code_fingerprint(tmp_path) == found[0]
    for text, name in (("a = 2", "train/loop.py"), ("a = 1", "train/other.py")):
        (tmp_path / name).write_text(text)
        code_fingerprint.cache_clear()
        found.append(code_fingerprint(tmp_path))
    assert len(set(found)) == 3
    code_fingerprint.cache_clear()
