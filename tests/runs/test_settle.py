"""Runs with fields that are "auto": chosen once, kept in the run folder, and the same for all that reads the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoestring.cli.root import root
from shoestring.core.choices import Choices
from shoestring.core.clock import Clock
from shoestring.core.errors import Fault, PlanError, RecordError, RunError
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import build, dump
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder
from shoestring.core.train_section import Train
from shoestring.planning import rates
from shoestring.runs import counted, settle
from shoestring.runs.estimate import plan_on_gpu
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run
from shoestring.runs.settle import settled, speed_of_gpu


def recipe_in(folder: Path, **sections: dict[str, Any]) -> Recipe:
    text = folder / "text.txt"
    text.write_text("\n".join(f"story {i} of a {'cat' if i % 3 else 'dog'} and a hat" for i in range(300)))
    values: dict[str, dict[str, Any]] = {
        "run": {"folder": str(folder / "runs")},
        "budget": {"tokens": 1600},
        "data": {"source": f"text:{text}", "length": 16, "folder": str(folder / "stores"), "heldout": 0.1},
        "model": {"width": 16, "layers": 1, "heads": 2},
        "train": {"lr": "auto", "weight_decay": "auto", "warmup": "auto"},
        "evaluate": {"rows": 8, "every": 0.5},
    }
    for section, fields in sections.items():
        values[section] = values.get(section, {}) | fields
    return build(values, "test")


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "product_flops", lambda *_: 1e10)


def never(*_: object) -> None:
    raise AssertionError("chosen again")


def test_a_run_has_one_set_of_choices_however_often_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_in(tmp_path)
    whole = run(replace(recipe, run=replace(recipe.run, name="whole")), Reporter(), Clock())
    with pytest.raises(Fault, match="saved"):
        run(recipe, Reporter(), Clock(), limit=0.0)
    monkeypatch.setitem(rates.OWN, "adamw", rates.OWN["adamw"]._replace(factor=100.0))
    monkeypatch.setattr(settle, "choose", never)
    resumed = run(recipe, Reporter(), Clock())
    assert whole is not None and resumed is not None
    assert resumed.folder.metrics.read_bytes() == whole.folder.metrics.read_bytes()
    made = resumed.folder.read_recipe()
    assert made == replace(whole.folder.read_recipe(), run=recipe.run) and not made.autos
    assert resumed.folder.written_recipe() == recipe, "the folder keeps what the user wrote"
    assert resumed.plan.recipe == made.fingerprint
    quantities = {line.quantity: line for line in resumed.plan.lines}
    assert "our law of small networks" in quantities["train.lr"].reason
    assert quantities["train.batch"].value == str(made.batch)


def test_a_learning_rate_that_is_not_given_is_chosen(tmp_path: Path) -> None:
    given = recipe_in(tmp_path, train={"lr": "auto", "batch": 2})
    default = replace(given, train=Train(batch=2))
    assert default == given
    chosen = settled(default, RunFolder.of(default)).recipe.train.lr
    assert isinstance(chosen, float) and 1e-3 < chosen < 2e-2, "as a network so small needs it"
    other = replace(default, train=replace(default.train, optimizer="sgd"))
    with pytest.raises(PlanError, match=r'train\.optimizer = "sgd" needs a number'):
        settled(other, RunFolder.of(other))


def test_a_run_that_continues_another_has_its_numbers(tmp_path: Path) -> None:
    cools = {"schedule": "cooldown", "batch": "auto"}
    first = run(recipe_in(tmp_path, run={"name": "first"}, train=cools), Reporter(), Clock())
    assert first is not None
    place = {"init": str(first.folder.path)}
    more = {"budget": {"tokens": 160_000}, "model": place}
    fresh = recipe_in(tmp_path, run={"name": "fresh"}, train=cools, **more)
    continued = recipe_in(tmp_path, run={"name": "more"}, train=cools | {"continued": True}, **more)
    before, anew, after = (
        first.folder.read_recipe().train,
        *(settled(recipe, RunFolder.of(recipe)).recipe.train for recipe in (fresh, continued)),
    )
    numbers = ("lr", "batch", "weight_decay", "warmup")
    assert [getattr(after, name) for name in numbers] == [getattr(before, name) for name in numbers]
    assert anew.lr != after.lr, "weights that are trained already get a tenth"


def test_learning_rates_that_were_compared_beside_it_correct_the_law(tmp_path: Path) -> None:
    """Two rates, one far too low: the other is taken. Runs of another optimizer, or on other rows, say nothing."""

    def rate_of(**sections: dict[str, Any]) -> tuple[float, str]:
        recipe = recipe_in(tmp_path, run={"name": "next"}, **sections)
        choices = settled(recipe, RunFolder.of(recipe)).choices
        assert choices is not None
        found = next(choice for choice in choices.chosen if choice.field == "train.lr")
        return found.value, found.reason

    law, reason = rate_of()
    assert "finished runs" not in reason
    numbers = {"weight_decay": 0.1, "warmup": 0.1, "batch": 2}
    for name, lr in (("low", law / 1000), ("high", 1.5 * law)):
        assert run(recipe_in(tmp_path, run={"name": name}, train=numbers | {"lr": lr}), Reporter(), Clock()) is not None
    found, reason = rate_of(train={"batch": 2})
    assert found > 1.2 * law and "by 2 finished runs of this kind" in reason and "our law" in reason
    assert rate_of(train={"optimizer": "muon"})[1].count("finished runs") == 0
    assert rate_of(data={"length": 8})[1].count("finished runs") == 0
    assert "finished runs" in rate_of(train={"batch": 2, "cooldown": "auto"})[1], "what is chosen yet is no other kind"
    high = RunFolder(tmp_path / "runs" / "high")
    high.done.write_text(high.done.read_text().replace('"loss": ', '"loss": 1'))
    assert "finished runs" not in rate_of(train={"batch": 2})[1], "a record that was edited is not read"


def test_a_run_with_the_chosen_numbers_is_the_same_run(tmp_path: Path) -> None:
    chosen = run(recipe_in(tmp_path), Reporter(), Clock())
    assert chosen is not None
    numbers = chosen.folder.read_recipe()
    given = run(replace(numbers, run=replace(numbers.run, name="given")), Reporter(), Clock())
    assert given is not None and not given.folder.choices.exists()
    assert given.folder.metrics.read_bytes() == chosen.folder.metrics.read_bytes()
    assert given.folder.read_recipe().fingerprint == numbers.fingerprint


def test_damaged_choices_stop_a_run_that_has_begun_and_are_made_again_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_in(tmp_path)
    folder = RunFolder.of(recipe)
    folder.path.mkdir(parents=True)
    folder.choices.write_text("{")
    task = settled(recipe, folder)
    with folder.lock(), folder.claiming(recipe):
        settle.keep_choices(task, folder)
        assert folder.read_choices(recipe) == task.choices
    folder.metrics.write_text('{"step": 1}\n')
    folder.choices.write_text("{")
    with pytest.raises(RecordError, match=r"choices.json"):
        settled(recipe, folder)
    folder.choices.unlink()
    with pytest.raises(RunError, match=r"choices.json: missing, or of another recipe"):
        settled(recipe, folder)
    with pytest.raises(RunError, match=r"choices.json: missing, or of another recipe"):
        folder.read_recipe()


def test_another_recipe_has_other_choices(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    folder = RunFolder.of(recipe)
    with folder.lock(), folder.claiming(recipe):
        settle.keep_choices(settled(recipe, folder), folder)
    longer = recipe_in(tmp_path, budget={"tokens": 10**8})
    assert folder.read_choices(longer) is None
    assert settled(longer, folder).recipe.batch > settled(recipe, folder).recipe.batch


def test_a_plan_made_elsewhere_brings_its_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_in(tmp_path)
    first = settled(recipe, RunFolder.of(recipe))
    assert first.choices is not None
    (tmp_path / "elsewhere").mkdir()
    first.choices.write(tmp_path / "elsewhere" / "choices.json")
    monkeypatch.setattr(settle, "choose", never)
    again = settled(recipe, RunFolder.of(recipe), plan_file=tmp_path / "elsewhere" / "plan.json")
    assert again.choices == first.choices


def test_the_command_plan_prints_the_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    recipe = recipe_in(tmp_path)
    (tmp_path / "a.toml").write_text(dump(recipe))
    done = run(recipe, Reporter(), Clock())
    assert done is not None
    result = CliRunner().invoke(
        root, ["plan", str(tmp_path / "a.toml"), "--set", "run.name=b", "--profile", str(done.folder.profile), "--json"]
    )
    assert result.exit_code == 0, result.output
    made = Plan.read(tmp_path / "runs" / "b" / "plan.json")
    assert "train.lr" in {line.quantity for line in made.lines}
    choices = Choices.read(tmp_path / "runs" / "b" / "choices.json")
    assert {choice.field for choice in choices.chosen} == {
        "train.batch", "train.lr", "train.warmup", "train.weight_decay", "train.beta2",
    }  # fmt: skip


def test_a_plan_for_a_gpu_by_name_has_choices_too(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, budget={"tokens": None, "time": "1h"}, model={"width": 256, "layers": 6, "heads": 4})
    plan = plan_on_gpu(recipe, 257, "NVIDIA H200")
    assert "train.lr" in {line.quantity for line in plan.lines}
    device, speed = speed_of_gpu("NVIDIA H200")(recipe)
    assert device == "cuda" and 1e14 < speed < 1e15
