"""`import shoestring`: the functions of the front door, and what a run folder tells."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import shoestring as ss
from shoestring.core.errors import Fault, RecipeError, RunError, UserError
from shoestring.core.recipe import Recipe

VALUES = {
    "run": {"name": "api"},
    "budget": {"steps": 12},
    "data": {"source": "stories", "tokenizer": "words:60", "length": 16, "documents": 120, "heldout": 0.1},
    "model": {"width": 16, "layers": 1, "heads": 2},
    "train": {"batch": 4, "per_device": 4, "lr": 3e-3},
    "evaluate": {"rows": 8, "every": 0.5},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ss.Run:
    folder = tmp_path_factory.mktemp("api")
    places = {"run.folder": str(folder / "runs"), "data.folder": str(folder / "stores")}
    return ss.train(ss.load(VALUES, places), show=False)


def test_importing_it_loads_neither_torch_nor_numpy() -> None:
    code = """
import sys, shoestring as ss
assert ss.load and ss.Run and "train" in dir(ss)
print(sorted({"torch", "numpy", "rich", "click"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        ss.trian  # type: ignore[attr-defined]  # noqa: B018


def test_the_functions_stay_when_their_modules_are_loaded(run: ss.Run) -> None:
    assert all(callable(getattr(ss, name)) for name in ss.__all__), "no package of the same name takes their place"


def test_a_recipe_comes_from_values_a_file_or_another(tmp_path: Path) -> None:
    loaded = ss.load(VALUES, {"train.lr": 1e-3})
    assert isinstance(loaded, Recipe) and loaded.train.lr == 1e-3
    again = ss.load(loaded, {"budget.time": "2h", "model.width": 32})
    assert again.budget.time == 7200 and again.model.width == 32 and again.train.lr == 1e-3
    file = tmp_path / "r.toml"
    file.write_text('[budget]\nsteps = 3\n[train]\nbatch = 2\n[data]\ntokenizer = "words:10"\n')
    assert ss.load(file, {"train.batch": 5}).train.batch == 5
    with pytest.raises(RecipeError) as raised:
        ss.load(VALUES, {"train.lrr": 1, "nothing.at": 2, "width": 3})
    assert len(raised.value.problems) == 3


def test_a_run_tells_what_its_folder_holds(run: ss.Run) -> None:
    assert run.is_done and run.recipe.run.name == "api"
    assert run.plan.steps == run.outcome.steps == 12
    assert [line["step"] for line in run.metrics if "heldout_loss" in line] == [6, 12]
    assert run.evaluation.loss == run.outcome.loss and set(run.evaluation.baselines) == {"uniform", "unigram", "bigram"}
    assert run.profile.workload == run.recipe.workload
    assert ss.open_run(run.path).outcome == run.outcome and repr(run) == f"Run('{run.path}')"


def test_a_finished_run_is_returned_and_a_changed_recipe_refused(run: ss.Run) -> None:
    began = (run.path / "DONE").stat().st_mtime_ns
    assert ss.train(run.recipe, show=False).path == run.path
    assert (run.path / "DONE").stat().st_mtime_ns == began, "nothing was trained again"
    with pytest.raises(RunError, match=r"train.lr was 0.003, is now 0.1"):
        ss.train(run.recipe, {"train.lr": 0.1}, show=False)


def test_evaluate_plan_and_prepare(run: ss.Run) -> None:
    assert ss.evaluate(run).loss == run.evaluation.loss
    assert ss.evaluate(run.path, 6).step == 6
    plan = ss.plan(run.recipe, profile=run.profile)
    assert plan.steps == 12 and any(line.quantity == "memory" for line in plan.lines)
    assert (ss.prepare(run.recipe, show=False) / "manifest.json").is_file()


def test_generate_and_the_model(run: ss.Run) -> None:
    texts = run.generate("once upon", max_tokens=5, n=3, seed=1)
    assert len(texts) == 3 and all(text.startswith("once ") for text in texts)
    assert ss.generate(run, "once upon", max_tokens=5, n=3, seed=1) == texts, "a seed is a text"
    model = run.model()
    assert not model.training and sum(p.numel() for p in model.parameters()) == run.profile.cost.total_parameters


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run folder"):
        ss.open_run(tmp_path)
    (tmp_path / "recipe.toml").write_text('[budget]\nsteps = 3\n[train]\nbatch = 2\n[data]\ntokenizer = "words:10"\n')
    with pytest.raises(RunError, match="has no DONE yet"):
        ss.open_run(tmp_path).outcome  # noqa: B018
    with pytest.raises(UserError, match="there is no profile"):
        ss.plan(ss.load(VALUES, {"run.folder": str(tmp_path)}))


def test_a_session_stops_at_its_time_and_is_resumed(tmp_path: Path) -> None:
    places = {"run.folder": str(tmp_path / "runs"), "data.folder": str(tmp_path / "stores"), "budget.steps": 60}
    recipe = ss.load(VALUES, places)
    with pytest.raises(Fault, match=r"stopped by the time limit after step .* continues from there"):
        ss.train(recipe, time=0.01, show=False)
    assert not ss.open_run(tmp_path / "runs/api").is_done
    finished = ss.train(recipe, show=False)
    assert finished.outcome.steps == 60 and finished.outcome.segments == 2


def test_the_age_of_the_process_is_not_charged(run: ss.Run) -> None:
    first = next(line for line in _timings(run) if line.get("event") == "start")
    from shoestring.core.clock import process_age

    assert first["elapsed"] < process_age() - 0.5 or time.monotonic() < 60, "counted from the call"


def _timings(run: ss.Run) -> list[dict[str, object]]:
    from shoestring.track import read_lines

    return read_lines(run.folder.timings)
