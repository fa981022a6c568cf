"""The HMM workshop through the real command line."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from conftest import Command, last_json, start
from processes import as_torchrun, together
from profiles import write_profile

from shoestring.core import recipe_file
from shoestring.core.clock import Clock
from shoestring.core.run_folder import RunFolder
from shoestring.hmm.parameters import load
from shoestring.parallel.process_group import ProcessGroup
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.track import read_lines

RECIPE = """
[run]
name = "tiny-hmm"

[budget]
epochs = 12

[data]
source = "stories"
documents = 150
tokenizer = "words:300"
length = 20
heldout = 0.1

[hmm]
states = 8
update_every = 64

[evaluate]
rows = 50
every = 0.25
"""


@pytest.fixture
def tiny_hmm(tmp_path: Path) -> Path:
    path = tmp_path / "hmm.toml"
    path.write_text(RECIPE)
    return path


def test_fit_score_show(tiny_hmm: Path, tmp_path: Path, shoestring: Command) -> None:
    write_profile(tiny_hmm)
    fitted = shoestring("hmm", "fit", tiny_hmm, "--json")
    assert fitted.returncode == 0, fitted.stderr
    told = last_json(fitted.stdout)
    losses = told["evaluation"]["baselines"]  # type: ignore[index]
    assert told["evaluation"]["loss"] < losses["unigram_corpus"] < losses["uniform"]  # type: ignore[index]
    again = shoestring("train", tiny_hmm, "--json")
    assert "is finished" in again.stderr, "the same run by either command"
    assert last_json(again.stdout) == told
    folder = tmp_path / "runs/tiny-hmm"
    scored = shoestring("hmm", "score", folder, "--json")
    assert scored.returncode == 0, scored.stderr
    scores = last_json(scored.stdout)
    assert scores["impossible"] == 0
    assert scores["baselines"]["bigram_corpus"]["kl_of_model"] > 0  # type: ignore[index]
    metrics = read_lines(RunFolder(folder).metrics)
    compared = next(line for line in reversed(metrics) if "heldout_loss" in line)
    for name, losses in told["evaluation"]["baselines"].items():  # type: ignore[index]
        assert compared[f"loss_of_{name}"] == losses
        assert min(compared[f"kl_of_{name}"], compared[f"kl_to_{name}"]) > 0
    assert sum("kl_of_uniform" in line for line in metrics) == 4, "at every evaluation"
    shown = shoestring("hmm", "show", folder, "--sentence", "She was very happy.")
    assert shown.returncode == 0, shown.stderr
    assert "sentences drawn from the model" in shown.stdout
    assert "happy" in shown.stdout
    page = (folder / "report.html").read_text()
    assert "States, the most visited first" in page
    assert "Plan against actual" in page
    unknown = shoestring("hmm", "show", folder, "--sentence", "the dgo")
    assert unknown.returncode == 2
    assert '"dgo"' in unknown.stderr
    assert "nearest" in unknown.stderr
    model = RunFolder(folder).model
    assert shoestring("hmm", "show", model).stdout.splitlines()[0] == shown.stdout.splitlines()[0]
    (tmp_path / "other.txt").write_text("She was very happy. He was xyzzy.")
    for place in (folder, model):
        other = shoestring("hmm", "score", place, "--data", f"text:{tmp_path / 'other.txt'}")
        assert other.returncode == 0, other.stderr
        assert "1 of 2 sentences use only the 300 words" in other.stdout
        assert ("bigram corpus" in other.stdout) == (place == folder)
    evaluated = shoestring("evaluate", folder, "--on", f"text:{tmp_path / 'other.txt'}", "--json")
    assert last_json(evaluated.stdout)["tokens"] == 5 and "1 of 2 sentences" in evaluated.stderr
    assert "--data SOURCE" in shoestring("hmm", "score", model).stderr
    (store,) = (tmp_path / "stores").iterdir()
    rows = last_json(shoestring("data", "show", store, "--rows", "2", "--json").stdout)
    assert [len(row["documents"][0].split()) for row in rows["rows"]] == [20, 20]  # type: ignore[union-attr]
    assert "sentences use only the" in shoestring("data", "check", store).stdout
    assert "sentences use only the" in fitted.stderr


@pytest.mark.slow
def test_a_fit_that_was_killed_ends_with_the_same_bits(tiny_hmm: Path, tmp_path: Path, shoestring: Command) -> None:
    options = ("--set", "budget.epochs=20", "--set", "data.documents=70")
    for folder in ("runs", "again"):
        write_profile(tiny_hmm, f"run.folder={folder}")
    assert shoestring("hmm", "fit", tiny_hmm, *options).returncode == 0
    one = RunFolder(tmp_path / "runs/tiny-hmm")
    other = RunFolder(tmp_path / "again/tiny-hmm")
    again = ("hmm", "fit", tiny_hmm, *options, "--set", "run.folder=again")
    process = start(*again, cwd=tmp_path)
    while process.poll() is None and not (other.metrics.is_file() and other.metrics.read_bytes().count(b"\n") > 9):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not other.done.exists()
    assert shoestring(*again).returncode == 0
    assert one.model.read_bytes() == other.model.read_bytes()
    assert one.metrics.read_bytes() == other.metrics.read_bytes()
    assert one.scores.read_bytes() == other.scores.read_bytes()


@pytest.mark.slow
def test_a_grid_of_fits_is_a_sweep(tiny_hmm: Path, tmp_path: Path, shoestring: Command) -> None:
    options = ("--over", "hmm.states=4,6", "--set", "budget.epochs=2", "--json")
    for states in (4, 6):
        write_profile(tiny_hmm, f"run.name=tiny-hmm-states{states}", f"hmm.states={states}")
    result = shoestring("hmm", "fit", tiny_hmm, *options)
    assert result.returncode == 0, result.stderr
    assert "2 runs to do" in result.stderr
    assert "Plan against actual" in result.stderr
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"tiny-hmm-states4", "tiny-hmm-states6"}
    assert (tmp_path / "sweeps/tiny-hmm/index.json").is_file()
    again = shoestring("hmm", "fit", tiny_hmm, *options)
    assert "nothing to do" in again.stderr
    assert last_json(again.stdout) == last_json(result.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hmm", "fit", "--set", "data.tokenizer=bytes"), 'an HMM takes "words:N"'),
        (("hmm", "fit", "--set", "budget.steps=5"), "the budget of an HMM is time or epochs"),
        (("hmm", "fit", "--set", "hmm.states=1"), "must be at least 2"),
        (("hmm", "fit", "--set", "data.length=1000000"), "no row of 1,000,000 tokens"),
        (("hmm", "fit", "--over", "states"), "--over states: write it as"),
    ],
)
def test_mistakes_are_named(arguments: tuple[str, ...], message: str, tiny_hmm: Path, shoestring: Command) -> None:
    verb = 2 if arguments[0] == "hmm" else 1
    result = shoestring(*arguments[:verb], tiny_hmm, *arguments[verb:])
    assert result.returncode == 2, (result.stdout, result.stderr)
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_run_without_a_model_is_named(tiny: Path, tmp_path: Path, shoestring: Command) -> None:
    write_profile(tiny)
    assert shoestring("plan", tiny).returncode == 0
    result = shoestring("hmm", "show", tmp_path / "runs/tiny")
    assert result.returncode == 2
    assert "holds no fitted HMM" in result.stderr
    result = shoestring("hmm", "fit", tiny)
    assert result.returncode == 2
    assert "shoestring train RECIPE" in result.stderr


def test_prepare_measure_and_plan_know_an_hmm(tiny_hmm: Path, shoestring: Command) -> None:
    little = 'epochs = 12\nmemory = "40MB"'  # the largest batch that it holds is soon found
    tiny_hmm.write_text(RECIPE.replace("epochs = 12", little))
    prepared = shoestring("prepare", tiny_hmm, "--json")
    assert prepared.returncode == 0, prepared.stderr
    assert len(last_json(prepared.stdout)["alphabet"]) == 300  # type: ignore[arg-type]
    profile = shoestring("measure", tiny_hmm, "--json")
    assert profile.returncode == 0, profile.stderr
    assert last_json(profile.stdout)["cost"]["parameters"] == {"start": 8, "transition": 64, "emission": 2400}  # type: ignore[index]
    plan = shoestring("plan", tiny_hmm, "--json")
    assert plan.returncode == 0, plan.stderr
    assert last_json(plan.stdout)["epochs"] == 12


def fit_together(group: ProcessGroup, recipe: Path, overrides: tuple[str, ...]) -> bool:
    """In processes that have met, with what torchrun says in their environment."""
    with pytest.MonkeyPatch.context() as patch:
        as_torchrun(patch, group)
        return run(recipe_file.load(recipe, overrides), Reporter(), Clock()) is not None


def test_two_processes_fit_what_one_does(tiny_hmm: Path, tmp_path: Path, shoestring: Command) -> None:
    for folder in ("runs", "two"):
        write_profile(tiny_hmm, f"run.folder={folder}")
    assert shoestring("hmm", "fit", tiny_hmm, "--set", "budget.epochs=5").returncode == 0
    folders = (f"run.folder={tmp_path / 'two'}", f"data.folder={tmp_path / 'stores'}")
    told = together(fit_together, 2, tiny_hmm, ("budget.epochs=5", *folders))
    assert told == [True, False], "the first one tells"
    one, two = (load(tmp_path / folder / "tiny-hmm/model.safetensors").parameters for folder in ("runs", "two"))
    assert all((a - b).abs().max() < 1e-6 for a, b in zip(one[:3], two[:3], strict=True))
    assert (tmp_path / "two/tiny-hmm/DONE").is_file()
