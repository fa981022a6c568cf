"""A run folder: one recipe once it has begun, one writer at a time."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoestring.core import recipe_file, run_folder
from shoestring.core.errors import PlanError, RecipeError, RunError, StorageError, UserError
from shoestring.core.files import write_whole
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder


def recipe(**sections: dict[str, Any]) -> Recipe:
    values: dict[str, dict[str, Any]] = {"budget": {"steps": 10}, "train": {"batch": 4, "lr": 3e-4}}
    for section, fields in sections.items():
        values[section] = values.get(section, {}) | fields
    return recipe_file.build(values, "test")


def begin(folder: RunFolder) -> None:
    folder.metrics.write_text('{"step": 1}\n')


def test_a_recipe_names_its_folder() -> None:
    assert RunFolder.of(recipe(run={"name": "n", "folder": "a/b"})).path == Path("a/b/n")


def test_all_paths_lie_in_the_folder_and_differ(tmp_path: Path) -> None:
    paths = [path for name, path in vars(RunFolder(tmp_path)).items() if name not in ("path", "_held")]
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
    begin(folder)
    before = folder.recipe.read_bytes()
    with pytest.raises(RunError) as caught:
        folder.claim(recipe(train={"lr": 0.001}, budget={"time": "2h"}, run={"seed": 7, "name": "other"}))
    message = str(caught.value)
    assert str(folder.path) in message
    assert "train.lr was 0.0003, is now 0.001" in message
    assert "budget.time was None, is now 2h" in message
    assert "run.seed was 0, is now 7" in message
    assert message.count(" was ") == 3
    assert "run.name=" in message, "it says what to do"
    assert folder.recipe.read_bytes() == before


def test_a_run_that_has_not_begun_takes_another_recipe_and_keeps_only_its_profile(tmp_path: Path) -> None:
    folder, edited = RunFolder(tmp_path / "run"), recipe(budget={"steps": 20})
    folder.claim(recipe())
    for old in (folder.profile, folder.plan, folder.machine, folder.tokenizer, folder.metrics):
        old.write_text("")
    folder.checkpoints.mkdir()
    assert not folder.has_begun
    folder.claim(edited)
    assert folder.read_recipe() == edited
    assert sorted(folder.path.iterdir()) == sorted([folder.profile, folder.recipe])


@pytest.mark.parametrize("sign", ["metrics", "checkpoint", "done"])
def test_a_run_has_begun_with_its_first_recorded_step(sign: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim(recipe())
    if sign == "metrics":
        begin(folder)
    elif sign == "checkpoint":
        (folder.checkpoints / "5").mkdir(parents=True)
    else:
        folder.done.write_text("{}")
    with pytest.raises(RunError, match="another recipe"):
        folder.claim(recipe(budget={"steps": 20}))


def test_a_refused_change_leaves_the_recipe_before_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim(recipe())
    with pytest.raises(PlanError), folder.claiming(recipe(budget={"steps": 20})):
        raise PlanError("it does not fit")
    assert folder.read_recipe() == recipe()


# --- code of the user's own


def own_code(folder: Path, text: str = "class Net: ...\n\n\ndef texts():\n    yield 'a'\n") -> Recipe:
    (folder / "mine.py").write_text(text)
    return recipe(model={"family": f"{folder}/mine.py:Net"}, data={"source": f"{folder}/mine.py:texts"})


def test_a_run_keeps_the_code_that_its_recipe_names(tmp_path: Path) -> None:
    folder, mine = RunFolder(tmp_path / "run"), own_code(tmp_path)
    before = mine.fingerprint, mine.workload
    folder.claim(mine)
    (tmp_path / "mine.py").unlink()
    kept = folder.read_recipe()
    assert kept.model.family == str(folder.code / "mine.py:Net")
    assert kept.data.source == str(folder.code / "mine.py:texts")
    assert (kept.fingerprint, kept.workload) == before


def test_other_code_is_another_recipe(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim(own_code(tmp_path))
    folder.claim(own_code(tmp_path))
    begin(folder)
    with pytest.raises(RunError, match=r"mine\.py differs from the copy that .*run started with"):
        folder.claim(own_code(tmp_path, "class Net: ...\n\n\ntexts = None\n"))


def test_the_code_of_a_stranger_s_run_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim(own_code(tmp_path))
    marker = tmp_path / "it ran"
    (folder.code / "mine.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\nclass Net: ...\n")
    with pytest.raises(UserError, match=r"code that came with a run and never ran here.*SHOESTRING_TRUST_CODE=1"):
        folder.read_recipe()
    assert not marker.exists()
    monkeypatch.setenv("SHOESTRING_TRUST_CODE", "1")
    folder.read_recipe()
    assert marker.exists()


def test_code_may_change_until_the_run_begins(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim(own_code(tmp_path))
    folder.claim(edited := own_code(tmp_path, "class Net: ...\n\n\ntexts = None\n"))
    assert folder.read_recipe().fingerprint == edited.fingerprint


# --- refusals


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


def test_a_recipe_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(PlanError), folder.lock(), folder.claiming(recipe()):
        raise PlanError("it cannot be meant")
    assert list(tmp_path.iterdir()) == []
    with folder.lock(), folder.claiming(recipe()):
        pass
    assert list(folder.path.iterdir()) == [folder.recipe]


def test_a_refused_change_leaves_the_code_of_the_recipe_before_it(tmp_path: Path) -> None:
    folder, mine = RunFolder(tmp_path / "run"), own_code(tmp_path)
    folder.claim(mine)
    copy = folder.code / "mine.py"
    before = copy.read_bytes()
    with pytest.raises(PlanError), folder.claiming(recipe()):
        raise PlanError("it does not fit")
    assert copy.read_bytes() == before
    assert folder.read_recipe().fingerprint == mine.fingerprint


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


def test_the_lock_is_held_though_the_folder_is_removed_and_that_is_noticed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.lock():
        folder.check()
        shutil.rmtree(folder.path)
        with pytest.raises(RunError, match="is in use by process"), RunFolder(folder.path).lock():
            pytest.fail("the lock was held")
        with pytest.raises(StorageError, match=r"run was removed or replaced by another folder while it was in use"):
            folder.check()
        folder.path.mkdir()
        with pytest.raises(StorageError, match="was removed or replaced"):
            folder.check()
    folder.check()
    assert list(tmp_path.iterdir()) == [folder.path]


def test_two_names_of_one_run_have_one_lock(tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to(tmp_path / "there")
    (tmp_path / "there").mkdir()
    with RunFolder(tmp_path / "here").lock(), pytest.raises(RunError), RunFolder(tmp_path / "there").lock():
        pytest.fail("the lock was held")


def test_what_killed_processes_left_goes_when_the_run_is_locked(tmp_path: Path) -> None:
    """Also what safetensors left beside the checkpoints of an older version."""
    folder = RunFolder(tmp_path / "run")
    for name in (".tmpA1b2C3", ".step-000000007.safetensors.4711.tmp", ".shoestring-0123456789ab.tmp"):
        write_whole(folder.checkpoints / name, "half a checkpoint")
    write_whole(folder.path / ".shoestring-0123456789ab.tmp", "half a record")
    with folder.lock():
        assert [path.name for path in folder.path.rglob("*")] == ["checkpoints"]


def test_a_recipe_whose_claim_was_killed_is_claimed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it was killed, the folder is left to one of the two recipes, with the copies that this one needs."""
    code = tmp_path / "mine.py"
    code.write_text("def documents():\n    return ['a b c']\n")
    first, second = recipe(data={"source": f"{code}:documents", "tokenizer": "bytes"}), recipe()
    for at in range(20):
        folder = RunFolder(tmp_path / str(at))
        folder.claim(first)
        write_whole(folder.plan, "{}")
        with monkeypatch.context() as patch:
            killed = kill_after(at, patch)
            with contextlib.suppress(KeyboardInterrupt):
                folder.claim(second)
        RunFolder(folder.path).claim(second)
        assert {found.name for found in folder.path.iterdir()} == {"recipe.toml"}
        if not killed():
            return
    pytest.fail("a claim has fewer calls")


def kill_after(calls: int, patch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Let the call after so many that change a file end the process; returns whether it was reached."""
    made = 0

    def count(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **options: Any) -> Any:
            nonlocal made
            made += 1
            if made == calls + 1:
                raise KeyboardInterrupt
            return call(*given, **options)

        return counted

    for name in ("remove", "write_whole"):
        patch.setattr(run_folder, name, count(getattr(run_folder, name)))
    return lambda: made > calls
