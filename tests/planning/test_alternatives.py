"""Other plans: side by side, by free memory, on Slurm, and beside a scaling law."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_make import PROFILE, make, recipe, store_bytes

from shoestring.core.errors import PlanError, Refusal
from shoestring.core.records import Cost, MemoryModel, Plan, Point
from shoestring.core.units import Interval
from shoestring.planning.alternatives import beside_the_rule, compare, configurations, free_needed, scaled_profile
from shoestring.planning.lines import Optimum, law_lines
from shoestring.planning.make import make_plan
from shoestring.planning.sbatch import Job, sbatch_script, slurm_time
from shoestring.planning.split import choose_split, free_for, margin_bytes

LAW = MemoryModel(
    fixed_bytes=2 * 10**9, row_bytes=1e9, limit_bytes=20 * 10**9, margin_bytes=10**9, largest=16, verified=16,
    trials=3, out_of_memory=1, trial_seconds=1.0,
)  # fmt: skip
POINTS = tuple(
    Point(batch=batch, seconds=0.1 + 0.01 * batch, slowest_seconds=0.5, peak_bytes=(2 + batch) * 10**9)
    for batch in (1, 4, 16)
)
MEASURED = replace(PROFILE, points=POINTS, memory=LAW)


# --- batches between those that were measured


def test_a_batch_between_measured_ones_is_taken_where_no_other_divides_and_fits() -> None:
    split = choose_split(MEASURED, 24, None, None)
    assert split.per_device == 12
    assert split.peak_bytes == 14 * 10**9
    assert split.step_seconds == pytest.approx(2 * 0.22 + PROFILE.update_seconds)
    assert "between measured" in split.reason
    assert choose_split(MEASURED, 16, None, None).per_device == 16
    assert choose_split(MEASURED, 16, 8, None).per_device == 8
    assert choose_split(MEASURED, 16, None, 11 * 10**9).per_device == 8, "16 rows take 18 GB, and 8 take 10"


def test_a_measured_batch_is_taken_before_a_smaller_one_that_is_nearly_as_fast_by_its_line() -> None:
    """16.3 s for 16 rows are 1.019 a row; 8 rows on the line from 1.3 s for one are 1.0375, which is 1.8 % more."""
    points = tuple(replace(POINTS[0], batch=rows, seconds=0.3 + rows, slowest_seconds=20.0) for rows in (1, 16))
    assert choose_split(replace(MEASURED, points=points), 16, None, None).per_device == 16


def test_memory_that_may_be_used_is_the_law_s_limit_less_its_margin() -> None:
    tight = replace(MEASURED, memory=replace(LAW, limit_bytes=18 * 10**9))
    assert choose_split(MEASURED, 16, None, None).per_device == 16
    assert choose_split(tight, 16, None, None).per_device == 8


def test_a_batch_that_is_asked_for_is_extrapolated_and_says_from_what() -> None:
    """The seconds of these points are 0.1 + 0.01 rows, and their bytes 2 GB + 1 GB a row."""
    with pytest.raises(Refusal, match="a micro-batch of 32 needs 34 GB, and 19 GB may be used"):
        choose_split(MEASURED, 32, 32, None)
    free = replace(MEASURED, memory=None, available_bytes=None)
    for profile in (free, replace(free, points=POINTS[:2])):
        split = choose_split(profile, 32, 8, None)
        assert (split.per_device, split.accumulate, split.peak_bytes) == (8, 4, 10 * 10**9)
        assert split.step_seconds == pytest.approx(4 * 0.18 + PROFILE.update_seconds)
    assert "extrapolated from measured batches of 1, 4 rows" in split.reason
    assert choose_split(free, 32, 32, 10**11).peak_bytes == 34 * 10**9


def test_one_measured_batch_serves_others_in_proportion() -> None:
    only = replace(MEASURED, points=POINTS[2:], memory=None, available_bytes=None)
    split = choose_split(only, 16, 4, None)
    assert split.point.seconds == pytest.approx(0.26 / 4)
    assert split.peak_bytes == 18 * 10**9, "what fits 16 rows fits 4"
    assert choose_split(only, 9, None, None).per_device in (1, 3, 9), "where no measured batch divides the rows"
    assert choose_split(only, 32, 32, None).peak_bytes is None


def test_no_larger_batch_is_chosen_than_the_largest_that_ran() -> None:
    assert choose_split(replace(MEASURED, memory=replace(LAW, largest=10)), 24, None, None).per_device == 8


# --- side by side


def test_two_devices_beside_one() -> None:
    one = make({"steps": 100})
    two = make_plan(recipe({"steps": 100}), PROFILE, store_bytes, devices=2)
    rows = {row[0]: row[1:] for row in compare(one, two)}
    assert rows["devices"] == ("1", "2", "× 2")
    assert rows["accumulation"] == ("2", "1", "× 0.5")
    assert rows["positions"] == rows["predictions"] == ("80,000", "80,000", "")
    assert rows["time per step"] == ("450ms", "250ms", "× 0.556"), "a pass less; the update stays"
    (line,) = [line for line in two.lines if line.quantity == "devices"]
    assert "measured on 1, planned for 2" in line.reason


def test_a_device_that_was_measured_needs_no_warning() -> None:
    plan = make_plan(recipe({"steps": 10}), replace(PROFILE, devices=2), store_bytes, devices=2)
    assert not [line for line in plan.lines if line.quantity == "devices"]


def test_what_one_plan_does_not_know_is_unknown() -> None:
    rows = {row[0]: row[1:] for row in compare(Plan(binding="time", seconds=5.0), Plan(binding="steps", steps=7))}
    assert rows == {
        "steps": ("unknown", "7", "unknown"),
        "time": ("5s", "unknown", "unknown"),
        "binding": ("time", "steps", "another one"),
    }


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.integers(1, 1000))
def test_an_unmeasured_model_takes_as_long_as_its_flops_say(work: float, size: float, length: int) -> None:
    cost = Cost(
        parameters={"all": max(1, round(10_000 * size))},
        forward_flops_per_token=1000.0 * work * PROFILE.length / length,
    )
    scaled, note = scaled_profile(PROFILE, cost, length, "other")
    for before, after in zip(PROFILE.points, scaled.points):
        assert after.seconds == pytest.approx(before.seconds * work)
        assert after.peak_bytes is None
    assert scaled.update_seconds == pytest.approx(PROFILE.update_seconds * cost.total_parameters / 10_000)
    assert (scaled.workload, scaled.length, scaled.cost) == ("other", length, cost)
    assert note.startswith("estimate")


# --- by free memory


def test_every_split_keeps_the_effective_batch_and_says_what_it_needs() -> None:
    rows = configurations(MEASURED, 16)
    assert [row[0] for row in rows] == ["1 × 16 × 1", "2 × 8 × 1", "4 × 4 × 1", "8 × 2 × 1", "16 × 1 × 1"]
    assert [row[3] for row in rows] == ["3 GB", "4 GB", "6 GB", "10 GB", "18 GB"]
    margins = "256 MiB, or a twentieth of what must be free, however much this machine has"
    assert [row[4] for row in rows] == ["3.27 GB", "4.27 GB", "6.32 GB", "10.5 GB", "18.9 GB"], margins
    assert [row[5] for row in rows] == ["measured", "between measured", "measured", "between measured", "measured"]


def test_the_rule_of_thumb_stands_beside_what_was_measured() -> None:
    """8 × 2 above 16 GB, 4 × 4 above 8, 2 × 8 above 4, and 1 × 16 below, as it is passed on."""
    rows = beside_the_rule(MEASURED, 16)
    assert [row[:2] for row in rows] == [
        ("> 16 GB", "8 × 2 × 1"),
        ("8–16 GB", "4 × 4 × 1"),
        ("4–8 GB", "2 × 8 × 1"),
        ("< 4 GB", "1 × 16 × 1"),
    ]
    assert [row[2] for row in rows] == ["8 × 2 × 1", "4 × 4 × 1", "1 × 16 × 1", "1 × 16 × 1"]
    assert rows[0][3] == rows[1][3] == rows[3][3] == "right"
    assert rows[2][3] == "the rule is wrong here: a micro-batch of 2 needs 4.27 GB free"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("peak", [1, 10**8, 10**10, 10**12 + 7])
def test_the_free_memory_of_a_peak_is_the_least_with_room_for_it_and_its_margin(peak: int, device: str) -> None:
    free = free_for(peak, device)
    assert free - margin_bytes(free, device) >= peak
    assert free - 200 - margin_bytes(free - 200, device) < peak


def test_without_a_law_of_memory_the_margin_is_a_share() -> None:
    assert free_needed(PROFILE, PROFILE.points[0]) == pytest.approx(100_000_000 / 0.92, abs=1)
    assert free_needed(PROFILE, replace(PROFILE.points[0], peak_bytes=None)) is None
    assert [row[0] for row in configurations(PROFILE, 8)] == ["1 × 8 × 1", "4 × 2 × 1"]
    rows = beside_the_rule(PROFILE, 8)
    assert rows[0][3] == "a micro-batch of 8 was not measured"
    assert rows[3][3] == "it fits, but a row takes 100% longer than with the fastest"


# --- Slurm


def job(folder: Path, **changes: object) -> Job:
    values = {
        "name": "a run", "folder": str(folder), "working_folder": str(folder), "python": "/usr/bin/python3",
        "command": ["shoestring", "train", "my recipe.toml", "--set", "data.source=text:it's"], "on_gpu": False,
        "threads": 2, "time_budget": None, "reserve": 5.0,
    }  # fmt: skip
    return Job(**values | changes)  # type: ignore[arg-type]


PLAN = Plan(binding="steps", seconds=100.0, intervals={"seconds": (90.0, 130.0)}, devices=1, peak_bytes=10**9)


def options(script: str) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", script, re.MULTILINE))


def test_a_script_asks_for_the_longest_time_and_room_to_end(tmp_path: Path) -> None:
    """130 s at the longest, 5 in reserve, and 90 so that Slurm's signal comes after the end: four minutes."""
    found = options(sbatch_script(PLAN, job(tmp_path)))
    assert found["time"] == "0-00:04:00"
    assert options(sbatch_script(PLAN, job(tmp_path, time_budget=7200.0)))["time"] == "0-02:02:00"
    assert found["mem"] == f"{-(-(10**9 * 5 // 4 + 2**30) // 2**20)}M"
    assert found["cpus-per-task"] == "2"
    assert found["job-name"] == "'a run'"
    assert "gpus-per-node" not in found


@given(st.floats(0.1, 1e8))
def test_slurm_s_time_is_the_least_number_of_whole_minutes(seconds: float) -> None:
    days, hours, minutes = re.fullmatch(r"(\d+)-(\d\d):(\d\d):00", slurm_time(seconds)).groups()  # type: ignore[union-attr]
    total = int(days) * 86400 + int(hours) * 3600 + int(minutes) * 60
    assert total - 60 < seconds <= total
    assert int(hours) < 24
    assert int(minutes) < 60


@pytest.mark.parametrize("devices", [1, 4])
def test_the_shell_reads_the_command_as_it_was_given(tmp_path: Path, devices: int) -> None:
    """By the shell, in place of itself so that signals come to the run, which here prints its number and arguments."""
    printer = tmp_path / "print words"
    printer.write_text('#!/bin/bash\nprintf "%s\\n" "$$" "$PWD" "$@"\n')
    printer.chmod(0o755)
    script = tmp_path / "job.sh"
    script.write_text(sbatch_script(replace(PLAN, devices=devices), job(tmp_path, python=str(printer))))
    process = subprocess.Popen(["bash", script], stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate(timeout=30)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"] if devices > 1 else []
    command = ["shoestring", "train", "my recipe.toml", "--set", "data.source=text:it's"]
    assert output.splitlines() == [str(process.pid), str(tmp_path), *launcher, "-m", *command]


@pytest.mark.parametrize("where", ["name", "folder"])
@pytest.mark.parametrize("text", ["a\ntouch ran", "a\r\ntouch ran", "a\x1b[31m", "a\u2028b"])
def test_a_name_that_would_leave_the_comment_is_refused(tmp_path: Path, where: str, text: str) -> None:
    """An option of Slurm is a comment of the shell, which ends with its line."""
    with pytest.raises(PlanError, match=r"--sbatch: --(job-name|output) has \\"):
        sbatch_script(PLAN, replace(job(tmp_path), **{where: f"{tmp_path}/{text}"}))


@pytest.mark.parametrize(
    "text",
    ["$(touch ran)", "`touch ran`", "; touch ran", "' ; touch ran '", '" ; touch ran "', "&& touch ran", "100%j"],
)
def test_nothing_in_a_script_runs_but_the_command(tmp_path: Path, text: str) -> None:
    folder = tmp_path / text
    folder.mkdir()
    command = ["shoestring", "train", f"a\n{text}", "--set", f"run.name={text}"]
    given = job(folder, name=text, python="/bin/echo", command=command)
    script = sbatch_script(PLAN, given)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == " ".join(["-m", *command]) + "\n"
    assert list(tmp_path.rglob("ran")) == []
    (named,) = shlex.split(options(script)["output"])
    assert named.replace("%%", "%") == f"{folder}/slurm-%j.out"


def test_devices_on_a_gpu_are_asked_for_and_memory_of_the_host_is_not_guessed(tmp_path: Path) -> None:
    found = options(sbatch_script(replace(PLAN, devices=4), job(tmp_path, on_gpu=True)))
    assert found["gpus-per-node"] == "4"
    assert "mem" not in found


@pytest.mark.slurm
@pytest.mark.parametrize("on_gpu", [False, True])
def test_slurm_accepts_the_script(tmp_path: Path, on_gpu: bool) -> None:
    if shutil.which("sbatch") is None or "SLURM_CONF" not in os.environ:
        pytest.skip("no Slurm cluster to ask: SLURM_CONF is not set")
    gpus = subprocess.run(["sinfo", "--noheader", "--format=%G"], capture_output=True, text=True, check=False).stdout
    if on_gpu and "gpu:" not in gpus:
        pytest.skip("the cluster has no GPUs")
    script = tmp_path / "job.sh"
    script.write_text(sbatch_script(replace(PLAN, devices=2), job(tmp_path, on_gpu=on_gpu)))
    done = subprocess.run(["sbatch", "--test-only", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stderr


# --- beside a law


@pytest.mark.parametrize(
    ("parameters", "said"), [(1e8, "near the optimum"), (5e8, "too large by 5"), (1e7, "too small by 10")]
)
def test_a_model_is_near_the_optimum_or_too_large_or_too_small(parameters: float, said: str) -> None:
    optimum = Optimum(Interval(8e7, 1e8, 1.2e8), 2e9, "a law", ("1.2 EFLOP is 3 times above the data",))
    best, ours = law_lines(optimum, Plan(binding="flops", flops=1.2e18), parameters)
    assert best.value == "100M (80M – 120M)"
    assert "1.2 EFLOP, with 2B tokens, by a law; 1.2 EFLOP is 3 times above" in best.reason
    assert said in ours.reason
