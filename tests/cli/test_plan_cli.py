"""`shoestring plan` through the real command line: the questions of the notebooks, and what it writes."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, Command, last_json
from profiles import MACHINE, write_profile

from shoestring.core.files import write_whole
from shoestring.core.records import Machine, Plan
from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder


def told(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert result.returncode == 0, result.stderr
    return last_json(result.stdout)


def refused(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert result.returncode == 2, (result.stdout, result.stderr)
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ")
    for part in parts:
        assert part in result.stderr


# --- by hand


def test_the_data_for_five_days(shoestring: Command) -> None:
    options = ("--time", "5d", "--tokens-per-second", "2500", "--tokens-per-gb", "200M", "--entries-per-gb", "400k")
    plan = told(shoestring("plan", *options, "--json"))
    assert (plan["tokens"], plan["entries"], plan["binding"]) == (1_080_000_000, 2_160_000, "time")
    assert plan["gigabytes"] == pytest.approx(5.4)
    names = "tokens entries gigabytes steps samples effective_batch per_device accumulate devices seconds disk_bytes"
    assert {*names.split(), "peak_bytes", "binding"} <= plan.keys()
    spread = told(shoestring("plan", *options[:5], "200M..400M", *options[6:], "--json"))
    assert spread["intervals"]["gigabytes"] == [2.7, 5.4]


def test_a_thousand_steps_with_a_margin(shoestring: Command) -> None:
    options = ("--per-device", "4", "--accumulate", "4", "--devices", "1", "--steps", "1000", "--margin", "1.25")
    result = shoestring("plan", *options)
    assert result.returncode == 0
    assert "16 rows" in result.stdout
    assert "20,000" in result.stdout


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--time 5GB --tokens-per-second 3", ("--time 5GB", "of a size, not of a time")),
        ("--time 0s --tokens-per-second 3", ("--time = 0", "above zero")),
        ("--time -5d --tokens-per-second 3", ("--time -5d", "not a time")),
        ("--per-device 4 --accumulate 4 --batch 17 --steps 5", ("17 rows ÷ 4 rows", "whole number")),
        ("--steps 1..5 --per-device 2", ("--steps 1..5", "not an interval")),
        ("--tokens-per-second 400..200 --time 5d", ("--tokens-per-second 400..200", "low..high")),
        ("--batch 16 --per-device 4 --accumulate 2 --devices 1", ("16 rows as given", "8 rows")),
        ("--tokens-per-secnd 5", ("--tokens-per-secnd", "'--tokens-per-second'")),
        ("--time", ("'--time'", "requires an argument")),
        ("--sbatch x.sh --time 5d", ("--sbatch", "RECIPE")),
        ("--time 5d --tokens-per-second 5 --what-if colour=red", ("--what-if colour=red", "devices=2")),
        ("--history absent", ("no finished run in absent",)),
        ("", ("nothing follows",)),
    ],
)
def test_a_mistake_is_one_message_that_names_both_sides(
    options: str, parts: tuple[str, ...], shoestring: Command
) -> None:
    result = shoestring("plan", *options.split())
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert all(part in result.stderr for part in parts), result.stderr


def test_what_if_by_hand(shoestring: Command) -> None:
    figures = ("--time", "5d", "--tokens-per-second", "2500")
    found = told(shoestring("plan", *figures, "--what-if", "devices=2", "--json"))
    assert (found["now"]["tokens"], found["then"]["tokens"]) == (1_080_000_000, 2_160_000_000)


# --- of a recipe


def test_a_plan_with_a_script_for_slurm(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    write_profile(tiny)
    plan = told(shoestring("plan", tiny, "--set", "run.seed=3", "--sbatch", "job.sh", "--json"))
    assert Plan.read(tmp_path / "runs/tiny/plan.json").to_dict() == plan
    script = (tmp_path / "job.sh").read_text()
    assert subprocess.run(["bash", "-n", tmp_path / "job.sh"], check=False).returncode == 0
    assert f"exec {sys.executable} -m shoestring train {tiny} --set run.seed=3\n" in script
    assert f"#SBATCH --output={tmp_path}/runs/tiny/slurm-%j.out" in script


def test_what_if_writes_nothing_and_says_what_is_an_estimate(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    write_profile(tiny)
    two = told(shoestring("plan", tiny, "--what-if", "devices=2", "--json"))
    assert two["then"]["devices"] == 2
    assert "measured on 1, planned for 2" in two["notes"][0]
    wide = told(shoestring("plan", tiny, "--what-if", "model.width=32", "--what-if", "budget.steps=80", "--json"))
    assert wide["then"]["steps"] == 80
    assert wide["then"]["peak_bytes"] is None
    assert wide["notes"][0].startswith("estimate")
    longer = told(shoestring("plan", tiny, "--what-if", "budget.steps=80", "--json"))
    assert longer["notes"] == [], "the same workload was measured"
    assert not (tmp_path / "runs/tiny/plan.json").exists()


def test_configurations_are_measured_and_beside_them_is_the_rule(tiny: Path, shoestring: Command) -> None:
    write_profile(tiny)
    found = told(shoestring("plan", tiny, "--configurations", "--json"))
    assert [row["split"] for row in found["configurations"]] == ["1 × 4 × 1", "2 × 2 × 1", "4 × 1 × 1"]
    assert [row["free memory"] for row in found["rule_of_thumb"]] == ["> 16 GB", "8–16 GB", "4–8 GB", "< 4 GB"]
    assert found["per_device"] == 4


def test_a_refusal_names_a_setting_that_is_accepted(tiny: Path, shoestring: Command) -> None:
    write_profile(tiny)
    result = shoestring("plan", tiny, "--set", "budget.time=3s")
    refused(result, "nothing fits the time: budget.time = 3s", "The nearest plan that fits: --set budget.time=")
    setting = result.stderr.partition("that fits: --set ")[2].split()[0]
    assert shoestring("plan", tiny, "--set", setting).returncode == 0


def test_a_sweep_is_summed_and_what_is_not_measured_is_said(tiny: Path, shoestring: Command) -> None:
    over = ("--over", "model.width=16,32", "--over", "train.lr=1e-3,3e-3")
    refused(shoestring("plan", tiny, *over), "none of the 4 runs is measured", "shoestring measure")
    write_profile(tiny, "run.name=tiny-width16-lr0.001", "model.width=16", "train.lr=1e-3")
    found = told(shoestring("plan", tiny, *over, "--json", "--time", "1s"))
    assert [run["estimate"] for run in found["runs"]] == [False, False, True, True]
    assert found["seconds"] == pytest.approx(sum(run["plan"]["seconds"] for run in found["runs"]))
    assert found["fits"] is False
    assert told(shoestring("plan", tiny, *over, "--json", "--time", "1d"))["fits"] is True


def test_a_sweep_is_planned_for_the_devices_asked_for(tiny: Path, shoestring: Command) -> None:
    write_profile(tiny, "run.name=tiny-lr0.001", "train.lr=1e-3")
    lines = [told(shoestring("plan", tiny, "--over", "train.lr=1e-3", *more, "--json"))["runs"][0]["plan"]
             for more in ((), ("--devices", "2"))]  # fmt: skip
    assert [line["devices"] for line in lines] == [1, 2]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--devices 0", ("--devices 0", "at least 1")),
        ("--sbatch x.sh --what-if devices=2", ("--sbatch and --what-if",)),
        ("--sbatch x.sh --configurations", ("--sbatch and --configurations",)),
        ('--gpu "NVIDIA H200" --devices 0', ("--devices 0", "at least 1")),
    ],
)
def test_a_mistake_beside_a_recipe_is_one_message(
    options: str, parts: tuple[str, ...], tiny: Path, tmp_path: Path, shoestring: Command
) -> None:
    write_profile(tiny)
    refused(shoestring("plan", tiny, *shlex.split(options)), *parts)
    assert not (tmp_path / "x.sh").exists()


def test_a_law_says_whether_the_model_has_the_best_size(tiny: Path, shoestring: Command) -> None:
    write_profile(tiny)
    plan = told(shoestring("plan", tiny, "--law", "chinchilla", "--json"))
    lines = {line["quantity"]: line for line in plan["lines"]}
    assert "tokens, by the law of" in lines["best model"]["reason"]
    assert "by" in lines["this model"]["reason"]
    refused(shoestring("plan", tiny, "--law", "absent.json"), "absent.json")


def test_a_gpu_that_is_not_here_is_estimated_without_a_profile(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    plan = told(shoestring("plan", tiny, "--gpu", "NVIDIA A100-SXM4-80GB", "--json"))
    assert plan["steps"] == 40
    assert not (tmp_path / "runs/tiny/plan.json").exists()
    refused(shoestring("plan", tiny, "--gpu", "NVIDIA A100-SXM4-80GB", "--sbatch", "x.sh"), "--gpu and --sbatch")
    refused(shoestring("plan", tiny, "--gpu", "NVIDIA A1000-SXM4-80GB"), "unknown", "NVIDIA A100-SXM4-80GB")


# --- history


OTHER = Machine.from_dict(MACHINE.to_dict() | {"threads": 64}, "test")
HMM = """
[budget]
epochs = 1

[data]
tokenizer = "words:50"
length = 10
documents = 9

[hmm]
states = 5
"""


def finish(
    tmp_path: Path,
    name: str,
    slower: float,
    machine: Machine = MACHINE,
    measured_on: Machine | None = None,
    parent: str = "runs",
    recipe: str = TINY,
) -> None:
    """A run that took `slower` times as long as its plan said, measured where it ran or elsewhere."""
    folder = RunFolder(tmp_path / parent / name)
    write_whole(folder.recipe, recipe)
    Plan(
        binding="steps", tokens=1000, tokens_per_second=100.0, seconds=10.0, intervals={"seconds": (9.0, 12.0)},
        measured_on=(measured_on or machine).fingerprint,
    ).write(folder.plan)  # fmt: skip
    machine.write(folder.machine)
    Outcome(
        steps=100, tokens=1000, seconds=10.0 * slower, segments=1, tokens_per_second=100.0 / slower, disk_bytes=1,
        peak_bytes=None, loss=1.0, shortened=None,
    ).write(folder.done)  # fmt: skip


def test_what_past_runs_teach_is_used_and_shown(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    write_profile(tiny)
    plain = told(shoestring("plan", tiny, "--json"))
    assert plain["correction"] is None
    for name in ("a", "b", "c"):
        finish(tmp_path, name, 1.5)
    finish(tmp_path, "other", 9.0, OTHER)
    finish(tmp_path, "moved", 9.0, MACHINE, measured_on=OTHER)
    finish(tmp_path, "hmm", 4.0, recipe=HMM)
    (tmp_path / "runs/torn").mkdir()
    (tmp_path / "runs/torn/DONE").write_text("{")
    (tmp_path / "runs/torn/plan.json").write_text("{")
    (tmp_path / "runs/foreign").mkdir()
    (tmp_path / "runs/foreign/DONE").write_bytes(b"\xff\xfe")
    plan = told(shoestring("plan", tiny, "--json"))
    assert plan["correction"] == pytest.approx(1.5**0.75)
    assert plan["step_seconds"] == pytest.approx(plain["step_seconds"] * 1.5**0.75)
    (line,) = [line for line in plan["lines"] if line["quantity"] == "correction"]
    assert "torn" in line["reason"] and "foreign" in line["reason"]
    found = told(shoestring("plan", "--history", "runs", "--json"))
    assert {run["run"] for run in found["runs"]} == {"a", "b", "c", "other", "moved", "hmm"}
    assert len(found["left_out"]) == 2
    assert found["corrections"][MACHINE.fingerprint] == pytest.approx({"llama": 1.5**0.75, "hmm": 2.0})
    assert found["corrections"][OTHER.fingerprint] == pytest.approx({"llama": 3.0})
    table = shoestring("plan", "--history", "runs/a", "--history", "runs/b")
    assert table.returncode == 0
    assert "+50.0%" in table.stdout
    assert "mean absolute error" in table.stdout
    when = "if its run.folder holds these runs or it is made with --history"
    assert f"the next llama plan's correction, {when}: × 1.310" in table.stdout


def test_a_recipe_is_planned_with_what_runs_in_other_folders_teach(
    tiny: Path, tmp_path: Path, shoestring: Command
) -> None:
    """In place of the run beside it, which is nine times slower."""
    write_profile(tiny)
    finish(tmp_path, "beside", 9.0)
    finish(tmp_path, "a", 1.5, parent="old")
    finish(tmp_path, "hmm", 4.0, parent="old", recipe=HMM)
    plan = told(shoestring("plan", tiny, "--history", "old", "--json"))
    assert plan["correction"] == pytest.approx(1.5**0.5)
    assert Plan.read(tmp_path / "runs/tiny/plan.json").to_dict() == plan
    (line,) = [line for line in plan["lines"] if line["quantity"] == "correction"]
    assert "1 finished run here" in line["reason"]
    assert "1 of 2 runs (not llama, or not on the machine that was measured)" in line["reason"]
    both = told(shoestring("plan", tiny, "--what-if", "budget.steps=80", "--history", "old/a", "--json"))
    assert [both[when]["correction"] for when in ("now", "then")] == pytest.approx([1.5**0.5] * 2)
    write_profile(tiny, "run.name=tiny-seed1", "run.seed=1")
    grid = told(shoestring("plan", tiny, "--over", "run.seed=1,2", "--history", "old", "--json"))
    assert [run["plan"]["correction"] for run in grid["runs"]] == pytest.approx([1.5**0.5] * 2)
    plan = told(shoestring("plan", tiny, "--history", "old/hmm", "--json"))
    (line,) = [line for line in plan["lines"] if line["quantity"] == "correction"]
    assert line["value"] == "none"
    refused(shoestring("plan", tiny, "--history", "absent"), "no finished run in absent")
    gpu = shoestring("plan", tiny, "--gpu", "NVIDIA A100-SXM4-80GB", "--history", "old")
    refused(gpu, "--gpu and --history")


def test_the_profile_says_where_an_older_plan_was_measured(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    profile = write_profile(tiny)
    finish(tmp_path, "before", 1.5)
    folder = RunFolder(tmp_path / "runs/before")
    replace(Plan.read(folder.plan), measured_on=None).write(folder.plan)
    assert told(shoestring("plan", tiny, "--json"))["correction"] is None
    for machine, correction in ((OTHER, None), (MACHINE, pytest.approx(1.5**0.5))):
        replace(profile, machine=machine).write(folder.profile)
        plan = told(shoestring("plan", tiny, "--json"))
        assert (plan["correction"], plan["measured_on"]) == (correction, MACHINE.fingerprint)


def test_a_run_that_trains_is_planned_with_what_was_learned(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    write_profile(tiny)
    finish(tmp_path, "before", 1.5)
    trained = told(shoestring("train", tiny, "--json"))
    assert trained["plan"]["correction"] == pytest.approx(1.5**0.5)
    assert told(shoestring("plan", "--history", "runs/tiny", "--json"))["runs"][0]["errors"]["tokens"] == 0


def test_a_plan_imports_neither_torch_nor_numpy(tiny: Path, tmp_path: Path) -> None:
    """In one process: what one command imports is there for all that come after it, and the first is told."""
    write_profile(tiny)
    ways = [
        [],
        ["--law", "chinchilla"],
        ["--what-if", "model.width=64"],
        ["--configurations"],
        ["--gpu", "NVIDIA H200"],
        ["--gpu", "NVIDIA H200", "--set", "data.tokenizer=bytes"],
        ["--gpu", "NVIDIA H200", "--set", "model.family=masked_lm"],
    ]
    code = (
        "import sys, shoestring.cli.main as m\n"
        f"for options in {ways!r}:\n"
        f"    sys.argv = ['shoestring', 'plan', {str(tiny)!r}, *options]\n"
        "    try: m.main()\n"
        "    except SystemExit as e: assert e.code == 0, (options, e.code)\n"
        "    heavy = {'torch', 'numpy', 'numba', 'pydantic', 'safetensors'} & sys.modules.keys()\n"
        "    assert not heavy, (options, heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


# --- edits before the run begins, and changes of a plan that does not fit


def test_another_budget_after_measuring_is_planned_in_the_same_folder(
    tiny: Path, tmp_path: Path, shoestring: Command
) -> None:
    write_profile(tiny)
    told(shoestring("plan", tiny, "--json"))
    edited = told(shoestring("plan", tiny, "--set", "budget.steps=80", "--json"))
    assert edited["steps"] == 80
    folder = RunFolder(tmp_path / "runs/tiny")
    assert Plan.read(folder.plan).to_dict() == edited
    assert folder.read_recipe().budget.steps == 80
    write_whole(folder.metrics, '{"step": 1}')
    refused(shoestring("plan", tiny), "holds a run of another recipe", "budget.steps was 80, is now 40")


def test_a_profile_of_another_corpus_serves_with_the_density_of_this_one(tiny: Path, shoestring: Command) -> None:
    """400 documents of 10 bytes are another corpus than the one that was measured, at 160 tokens per document."""
    profile = write_profile(tiny)
    assert profile.density is not None
    kept = replace(profile, density=replace(profile.density, corpus="another"))
    kept.write(tiny.parent / "runs/tiny/profile.json")
    tiny.with_name("short.txt").write_text("one two tw\n" * 400)
    options = ("--set", "data.source=text:short.txt", "--set", "data.documents=", "--json")
    plan = told(shoestring("plan", tiny, *options))
    assert (plan["entries"], plan["gigabytes"]) == (400, pytest.approx(400 * 10 / 1e9))


def test_a_change_is_shown_where_nothing_fits_without_it(tiny: Path, shoestring: Command) -> None:
    write_profile(tiny)
    tight = ("plan", tiny, "--set", "budget.memory=1MB")
    refused(shoestring(*tight), "nothing fits the memory")
    both = told(shoestring(*tight, "--what-if", "budget.memory=500MB", "--json"))
    assert both["now"] is None
    assert both["then"]["steps"] == 40
    assert "without the change: nothing fits the memory" in both["notes"][0]
    shown = shoestring(*tight, "--what-if", "budget.memory=500MB")
    assert "does not fit" in shown.stdout


def test_a_micro_batch_that_was_not_measured_is_computed(tiny: Path, shoestring: Command) -> None:
    """Passes of 1, 2 and 4 rows were measured, at 10 ms + 2 ms a row."""
    write_profile(tiny)
    options = ("--set", "train.batch=24", "--what-if", "train.per_device=8", "--json")
    profile = tiny.parent / "runs/tiny/profile.json"
    write_profile(tiny, "train.batch=24")
    both = told(shoestring("plan", tiny, "--profile", profile, *options))
    assert both["then"]["per_device"] == 8
    assert both["then"]["step_seconds"] == pytest.approx(3 * 0.026 + 0.01)


def test_a_margin_of_a_recipe_is_on_the_text_to_download(tiny: Path, shoestring: Command) -> None:
    write_profile(tiny)
    plain, more = (told(shoestring("plan", tiny, *given, "--json")) for given in ((), ("--margin", "1.5")))
    assert more["wanted_entries"] == -(-plain["wanted_entries"] * 3 // 2)
    gpu = ("plan", tiny, "--gpu", "NVIDIA H200", "--json")
    plain, more = (told(shoestring(*gpu, *given)) for given in ((), ("--margin", "1.5")))
    assert more["wanted_entries"] == -(-plain["wanted_entries"] * 3 // 2)
    refused(shoestring("plan", tiny, "--margin", "1.5", "--configurations"), "--margin and --configurations")
