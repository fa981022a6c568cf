"""A sweep through the real command line: planned, run in processes of its own, continued, shown and reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Command, last_json, start

from shoestring.core.sweep_folder import SweepFolder, SweepIndex
from shoestring.track import read_lines

OVER = ("--over", "train.lr=1e-3,3e-3", "--set", "budget.steps=4", "--set", "evaluate.every=0.5")


@pytest.mark.slow
def test_a_sweep_is_planned_run_continued_and_reported(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    planned = shoestring("sweep", tiny, *OVER, "--dry-run", "--json")
    assert planned.returncode == 0, planned.stderr
    told = last_json(planned.stdout)
    assert [run["state"] for run in told["runs"]] == ["waiting", "waiting"]  # type: ignore[attr-defined]
    assert "2 runs to do" in planned.stderr
    assert not (tmp_path / "sweeps").exists() and not (tmp_path / "runs").exists(), "nothing is written"

    done = shoestring("sweep", tiny, *OVER, "--json")
    assert done.returncode == 0, done.stderr
    runs = last_json(done.stdout)["runs"]
    assert [run["state"] for run in runs] == ["done", "done"]  # type: ignore[attr-defined]
    folder = SweepFolder(tmp_path / "sweeps/tiny")
    index = SweepIndex.read(folder.index)
    assert [run.values for run in index.runs] == [{"train.lr": 1e-3}, {"train.lr": 3e-3}]
    assert all((folder.run_path(run) / "DONE").is_file() and folder.recipe(run.name).is_file() for run in index.runs)

    again = shoestring("sweep", tiny, *OVER, "--json")
    assert "2 runs, 2 done; nothing to do" in again.stderr
    assert last_json(again.stdout)["runs"] == runs
    assert sum(line["event"] == "started" for line in read_lines(folder.events)) == 2

    changed = shoestring("sweep", tiny, *OVER, "--set", "train.beta1=0.8")
    assert changed.returncode == 2
    assert "train.beta1 was 0.9, is now 0.8" in changed.stderr and "--keep-going" in changed.stderr
    status = shoestring("sweep", "status", folder.path, "--json")
    assert [run["loss"] for run in last_json(status.stdout)["runs"]] == [run["loss"] for run in runs]  # type: ignore[attr-defined]
    assert "nothing is running" in shoestring("sweep", "cancel", folder.path).stdout
    report = last_json(shoestring("sweep", "report", folder.path, "--json").stdout)
    best = min(runs, key=lambda run: run["loss"])  # type: ignore[call-overload]
    assert report["settings"][0]["values"] == best["values"]  # type: ignore[index]
    assert folder.report.is_file() and folder.table.read_text().startswith("run,state,train.lr,loss")
    compared = shoestring("compare", folder.path, "--json")
    assert compared.returncode == 0, compared.stderr
    (pair,) = last_json(compared.stdout)["comparisons"]  # type: ignore[misc]
    losses = [run["loss"] for run in runs]  # type: ignore[attr-defined]
    assert pair["effect"] == pytest.approx(losses[1] - losses[0]) and pair["rows"] and not pair["over_seeds"]
    assert "give at least two runs of each" in compared.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sweep", "tiny.toml", "--over", "lr"), "--over lr: write it as"),
        (("sweep", "tiny.toml", "--zip", "train.lr=1,2", "--zip", "train.batch=1"), "equally many values"),
        (("sweep", "status", "runs"), "is not the folder of a sweep"),
        (("sweep", "report", "runs"), "is not the folder of a sweep"),
        (("sweep", "absent.toml", "--dry-run"), "absent.toml"),
        (("hmm", "fit", "tiny.toml", "--over", "train.lr=1e-3"), "this recipe has no [hmm] section"),
        (("train", "swept.toml"), "shoestring sweep RECIPE"),
        (("sweep", "circle.toml", "--dry-run"), "it would follow itself"),
        (("sweep", "circle.toml", "--dry-run", "--set", "sweep.then=absent.toml"), "absent.toml"),
    ],
)
def test_mistakes_are_named(
    arguments: tuple[str, ...], message: str, tiny: Path, tmp_path: Path, shoestring: Command
) -> None:
    (tmp_path / "swept.toml").write_text(tiny.read_text() + "\n[sweep]\nseeds = 2\n")
    (tmp_path / "circle.toml").write_text(tiny.read_text() + '\n[sweep]\nthen = "circle.toml"\n')
    result = shoestring(*arguments)
    assert result.returncode == 2, (result.stdout, result.stderr)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "sweeps").exists()


@pytest.mark.slow
def test_a_sweep_is_followed_by_another_on_what_it_has_made(tmp_path: Path, shoestring: Command) -> None:
    (tmp_path / "hmms.toml").write_text(
        '[run]\nname = "hmms"\n[budget]\nepochs = 1\n[data]\nsource = "stories"\ndocuments = 60\n'
        'tokenizer = "words:300"\nlength = 12\n[hmm]\nstates = 2\n[sweep]\nthen = "llamas.toml"\n'
        "[sweep.over]\nhmm.states = [2]\n"
    )
    (tmp_path / "llamas.toml").write_text(
        '[run]\nname = "llamas"\n[budget]\nsteps = 2\n[data]\nlength = 12\n[model]\nfamily = "llama"\nwidth = 16\n'
        "layers = 1\nheads = 2\n[train]\nbatch = 4\nlr = 1e-3\n[evaluate]\nrows = 8\n"
        '[sweep.over]\ndata.stream = ["hmm:runs/hmms-states2"]\n'
    )
    done = shoestring("sweep", "hmms.toml", "--json")
    assert done.returncode == 0, done.stderr
    assert "then llamas.toml: 1 run, whose time is said when these are done" in done.stderr
    told = last_json(done.stdout)
    assert [run["state"] for run in told["then"]["runs"]] == ["done"]  # type: ignore[index]
    assert (tmp_path / "sweeps/llamas/index.json").is_file()


def test_torchrun_is_refused(tiny: Path, tmp_path: Path) -> None:
    group = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    process = start("sweep", tiny, *OVER, cwd=tmp_path, **group)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "start it without torchrun" in said


@pytest.mark.slow
def test_halving_ends_with_the_weights_of_whole_runs(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    steps = ("--set", "budget.steps=40", "--set", "evaluate.every=0.1")
    halved = shoestring("sweep", tiny, "--over", "train.lr=1e-4,3e-3,1e-2", *steps, "--halving", "asha", "--json")
    assert halved.returncode == 0, halved.stderr
    runs = last_json(halved.stdout)["runs"]
    done = [run for run in runs if run["state"] == "done"]  # type: ignore[attr-defined]
    assert len(done) == 1, halved.stderr
    assert [run["state"] for run in runs].count("stopped") == 2  # type: ignore[attr-defined]
    assert "goes on to 40%: number 1 of 3 at 20%" in halved.stderr
    best = done[0]["run"]
    whole = ("train", tmp_path / "sweeps/tiny/recipes" / f"{best}.toml", "--set", "run.folder=whole")
    assert shoestring(*whole).returncode == 0
    one, other = (read_lines(tmp_path / folder / best / "metrics.jsonl") for folder in ("runs", "whole"))
    assert one == other, "as if it had never been paused"
    again = shoestring("sweep", tiny, "--over", "train.lr=1e-4,3e-3,1e-2", *steps, "--halving", "asha", "--json")
    assert last_json(again.stdout) == last_json(halved.stdout), "nothing is left to do"
