"""A run folder: one recipe for ever, one writer at a time."""

import os
from pathlib import Path
from typing import Any

import pytest

from shoestring.core import recipe_file
from shoestring.core.errors import PlanError, RecipeError, RunError
from shoestring.core.facts import Plan
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder


def recipe(**sections: dict[str, Any]) -> Recipe:
    values: dict[str, dict[str, Any]] = {"budget": {"steps": 10}, "train": {"batch": 4}}
    for section, fields in sections.items():
        values[section] = values.get(section, {}) | fields
    return recipe_file.build(values, "test")


def test_a_recipe_names_its_folder() -> None:
    assert RunFolder.of(recipe(run={"name": "n", "folder": "a/b"})).path == Path("a/b/n")


def test_all_paths_lie_in_the_folder_and_differ(tmp_path: Path) -> None:
    paths = [path for name, path in vars(RunFolder(tmp_path)).items() if name != "path"]
    assert len(set(paths)) == len(paths) > 10
    assert all(path.parent == tmp_path for path in paths)


def test_claiming_a_new_folder_writes_the_recipe_whole(tmp_path: Path) -> None:
    folder, mine = RunFolder(tmp_path / "a" / "run"), recipe(budget={"time": "2h"}, run={"name": "🚀"})
    folder.claim(mine)
    assert folder.read_recipe() == mine
    assert RunFolder.open(folder.path).read_recipe() == mine
    assert list(folder.path.iterdir()) == [folder.recipe]


def test_claiming_again_with_the_same_recipe_changes_nothing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.claim(recipe())
    before = folder.recipe.read_bytes(), folder.recipe.stat().st_mtime_ns
    folder.claim(recipe())
    assert (folder.recipe.read_bytes(), folder.recipe.stat().st_mtime_ns) == before


def test_the_same_recipe_from_another_place_may_claim(tmp_path: Path) -> None:
    """A run folder can be moved; where things are kept is no part of the experiment."""
    folder = RunFolder(tmp_path)
    folder.claim(recipe())
    folder.claim(recipe(run={"name": "other", "folder": "elsewhere"}, data={"folder": "elsewhere"}))
    assert folder.read_recipe() == recipe()


def test_claiming_with_another_recipe_names_every_field_with_both_values(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim(recipe())
    before = folder.recipe.read_bytes()
    with pytest.raises(RunError) as caught:
        folder.claim(recipe(train={"lr": 0.001}, budget={"time": "2h"}, run={"seed": 7, "name": "other"}))
    message = str(caught.value)
    assert str(folder.path) in message
    assert "train.lr was 0.0003, is now 0.001" in message
    assert "budget.time was None, is now 2h" in message
    assert "run.seed was 0, is now 7" in message
    assert message.count(" was ") == 3
    assert "run.name=" in message, "it says how to go on"
    assert folder.recipe.read_bytes() == before


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_a_recipe_that_is_refused_does_not_keep_the_folder(planned: bool, there: bool, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    if there:
        folder.claim(recipe())
    with pytest.raises(PlanError), folder.claiming(recipe()):  # noqa: PT012
        if planned:
            Plan(binding="steps").write(folder.plan)
        raise PlanError("it cannot be meant")
    assert folder.recipe.is_file() is (planned or there)


def test_claiming_over_a_broken_recipe_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.recipe.write_text("[train")
    with pytest.raises(RecipeError, match=r"recipe\.toml"):
        folder.claim(recipe())
    assert folder.recipe.read_text() == "[train"


@pytest.mark.parametrize("make", [None, "folder", "file"])
def test_what_is_no_run_is_not_opened(tmp_path: Path, make: str | None) -> None:
    path = tmp_path / "run"
    if make == "folder":
        path.mkdir()
    elif make == "file":
        path.write_text("x")
    with pytest.raises(RunError, match=r"run is not a run folder: it has no recipe\.toml"):
        RunFolder.open(path)


def test_the_lock_names_the_run_and_its_holder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.lock(), pytest.raises(RunError) as caught, RunFolder(folder.path).lock():
        pytest.fail("the lock was held")
    assert f"the run {folder.path} is in use by process {os.getpid()} " in str(caught.value)
    with folder.lock():
        pass
