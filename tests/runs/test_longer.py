"""`shoestring best` with more time than before: the run goes on where it ended, under another name."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoestring.cli import running
from shoestring.cli.root import root
from shoestring.core.clock import Clock
from shoestring.core.errors import Refusal, UserError
from shoestring.core.recipe import Recipe
from shoestring.core.recipe_file import load
from shoestring.core.records import Plan
from shoestring.core.run_folder import RunFolder
from shoestring.core.sections import number
from shoestring.runs import counted
from shoestring.runs.longer import earlier_run
from shoestring.runs.reporter import Reporter
from shoestring.runs.runner import run

STORY = "Tom had a red ball. He ran to the park with it.\n"


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """What the command would train."""
    found: list[Recipe] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(counted, "product_flops", lambda *_: 1e8)
    monkeypatch.setattr(running, "run_in_terminal", lambda recipe, *_, **__: found.append(recipe))
    Path("a.txt").write_text(STORY * 5000)
    return found


def best(time: str) -> str:
    result = CliRunner().invoke(root, ["best", "a.txt", "--time", time])
    return str(result.exception) if result.exception else result.output


def train(file: str, seconds: float, steps: int = 10) -> None:
    """Ten steps of what a recipe says, with the seconds that a whole run would have taken."""
    path = Path(file)
    few = re.sub(r"rows = \d+", "rows = 4", path.read_text())
    path.write_text(few.replace("[budget]", f"[budget]\nsteps = {steps}"))
    recipe = load(path)
    run(recipe, Reporter(), Clock(0.0))
    folder = RunFolder.of(recipe)
    folder.plan.write_text(json.dumps(json.loads(folder.plan.read_text()) | {"binding": "time"}))
    done = folder.done
    done.write_text(json.dumps(json.loads(done.read_text()) | {"seconds": seconds, "timeline": {}}))


def test_more_time_takes_the_run_up_where_it_ended(ran: list[Recipe]) -> None:
    """A run of 10 minutes has 5/6 of its learning rate after 5, with a cool-down of 60 %. Half of that is taken."""
    best("5m")
    assert "best-a.toml: its run has not ended; shoestring train best-a.toml resumes it" in best("10m")
    train("best-a.toml", 300.0)
    assert "goes on where runs/best-a ended" in best("10m")
    longer, first = ran[-1], load("best-a.toml")
    assert (longer.run.name, longer.model.init, longer.train.continued) == ("best-a-10m", "runs/best-a#last", True)
    assert longer.budget.time == 5 * 60 and longer.train.cooldown == 1
    assert longer.train.lr == pytest.approx(5 / 12 * number(first.train.lr), rel=0.01)
    assert (longer.model.width, longer.train.batch) == (first.model.width, first.train.batch)
    assert "is there already" in best("10m") and ran[-1] == longer
    assert "until 4m in all, and --name begins a new one. best-a.toml: it has had 5m" in best("4m")


def test_much_more_time_is_mostly_before_the_cooldown(ran: list[Recipe]) -> None:
    """Of an hour 55 minutes are left, and 36 of them cool down."""
    best("5m")
    train("best-a.toml", 300.0)
    best("1h")
    longer, first = ran[-1], load("best-a.toml")
    assert longer.budget.time == 55 * 60 and longer.train.cooldown == pytest.approx(36 / 55, rel=1e-3)
    assert longer.train.lr == pytest.approx(number(first.train.lr) / 2, rel=0.01)


def test_a_run_that_was_continued_is_continued_again(ran: list[Recipe]) -> None:
    """Its learning rate is of the first run, and its time is that of both."""
    best("5m")
    train("best-a.toml", 300.0)
    best("10m")
    train("best-a-10m.toml", 300.0, steps=8)
    found, peak = earlier_run("best-a", "text:a.txt", 20 * 60), number(load("best-a.toml").train.lr)
    assert found.file == Path("best-a-10m.toml")
    assert (found.time, found.peak, found.cooling) == (600, peak, 0.6)
    for name, source in (("best-a", "text:other.txt"), ("bes", "text:a.txt")):
        with pytest.raises(UserError, match="there is no run that can go on until 20m"):
            earlier_run(name, source, 20 * 60)
    assert earlier_run("best", "text:a.txt", 20 * 60) == found
    best("20m")
    assert ran[-1].model.init == "runs/best-a-10m#last" and ran[-1].budget.time == 10 * 60
    assert ran[-1].train.cooldown == 1 and ran[-1].train.lr == pytest.approx(5 / 12 * peak, rel=0.01)


def test_a_run_that_ended_before_its_time_is_not_continued(ran: list[Recipe]) -> None:
    best("5m")
    train("best-a.toml", 100.0)
    assert "it ended after 1m40s of 5m" in best("10m")
    assert ran[-1].model.init is None and ran[-1].run.name == "best-a-10m" and ran[-1].budget.time == 600


def test_what_is_left_of_the_epochs_is_read(ran: list[Recipe]) -> None:
    """A limit of epochs is one for all runs together; where nothing is left of it, more time does not help."""
    best("5m")
    train("best-a.toml", 300.0)
    first = RunFolder.of(load("best-a.toml"))
    plan, most = Plan.read(first.plan), number(load("best-a.toml").budget.epochs)
    read = 10 * 64 * plan.effective_batch * 2 / len(STORY * 5000)  # about: two bytes for each piece
    best("10m")
    left = number(ran[-1].budget.epochs)
    assert most - 4 * read < left < most
    train("best-a-10m.toml", 300.0, steps=8)
    best("20m")
    assert number(ran[-1].budget.epochs) < left
    Path("best-a-20m.toml").unlink()
    file = Path("best-a-10m.toml")
    few = re.sub(r"epochs = [0-9.]+", f"epochs = {left - number(ran[-1].budget.epochs):.4f}", file.read_text())
    file.write_text(few)
    RunFolder.of(load(file)).recipe.unlink()
    assert "it has read its text as often as helps" in best("20m") and ran[-1].model.init is None


def test_a_run_whose_first_part_is_gone_is_not_continued(ran: list[Recipe]) -> None:
    """How much time it had in all is not known any more."""
    best("5m")
    train("best-a.toml", 300.0)
    best("10m")
    train("best-a-10m.toml", 300.0, steps=8)
    shutil.rmtree(RunFolder.of(load("best-a.toml")).path)
    told = best("20m")
    assert "best-a-10m.toml: it goes on from best-a.toml, and its run has not ended" in told


def test_why_a_run_cannot_go_on_is_said(ran: list[Recipe]) -> None:
    """Its checkpoints are gone, its schedule has another end, or there is hardly more time."""
    best("5m")
    train("best-a.toml", 300.0)
    assert "--time 300.4s: the run of best-a.toml has had 5m; give more" in best("300.4s")
    assert [file.name for file in Path().glob("*.toml")] == ["best-a.toml"]
    file, folder = Path("best-a.toml"), RunFolder.of(load("best-a.toml"))
    written, kept = file.read_text(), folder.checkpoints.with_name("elsewhere")
    folder.checkpoints.rename(kept)
    assert re.search(r"best-a\.toml: .*no intact checkpoint", best("10m"))
    kept.rename(folder.checkpoints)
    file.write_text(re.sub("\ncooldown = .*", "", written).replace('"cooldown"', '"cosine"'))
    assert 'cannot go on from its end, with train.schedule = "cosine"' in best("10m")
    file.write_text(written)
    assert "goes on where runs/best-a ended" in best("10m")


def test_a_recipe_of_another_text_that_has_the_name_is_refused(ran: list[Recipe]) -> None:
    """best-a-10m.toml is that of a-10m.txt, or of a.txt with 10 minutes."""
    Path("a-10m.txt").write_text(STORY * 5000)
    assert CliRunner().invoke(root, ["best", "a-10m.txt", "--time", "1h"]).exception is None
    best("5m")
    train("best-a.toml", 300.0)
    assert "best-a-10m.toml is a recipe of another text" in best("10m")


def test_a_time_that_is_too_short_says_the_least_and_leaves_no_recipe(
    ran: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the words of this command: with the time of the run that it goes on from."""

    def refuse(recipe: Recipe, *_: object, **__: object) -> None:
        raise Refusal(
            "too short. The nearest plan that fits: --set budget.time=14s (2 steps)", "time", "budget.time=14s"
        )

    with monkeypatch.context() as short:
        short.setattr(running, "run_in_terminal", refuse)
        assert best("1s") == "too short. The nearest plan that fits: --time 14s (2 steps)"
        assert not Path("best-a.toml").exists()
    best("5m")
    train("best-a.toml", 300.0)
    with monkeypatch.context() as short:
        short.setattr(running, "run_in_terminal", refuse)
        assert "--time 5m14s" in best("301s") and not Path("best-a-5m1s.toml").exists()
    assert "goes on where runs/best-a ended" in best("10m")


def test_what_is_given_is_in_the_recipe(ran: list[Recipe]) -> None:
    def given(*words: str) -> str:
        result = CliRunner().invoke(root, ["best", "a.txt", "--time", "5m", *words])
        return str(result.exception) if result.exception else result.output

    assert 'unknown field "lr2"' in given("--set", "train.lr2=1") or not ran
    assert "recipe: best-a.toml" in given("--set", "data.on_error=skip", "--set", "train.lr=0.01")
    assert (ran[-1].data.on_error, ran[-1].train.lr) == ("skip", 0.01) and ran[-1].model.width
    assert "--set=train.lr=0.01" in Path("best-a.toml").read_text()
    assert "is there already: edit it there" in given("--set", "train.lr=0.02")
    assert "is there already, and is followed" in given()


def test_a_text_that_is_newer_than_its_recipe_is_told(ran: list[Recipe]) -> None:
    best("5m")
    assert "is newer" not in best("5m")
    os.utime("a.txt", (2e9, 2e9))
    assert "a.txt is newer than best-a.toml: if it is another text now, choose another name" in best("5m")


def test_another_text_is_refused(ran: list[Recipe]) -> None:
    best("5m")
    Path("a.txt").write_text((STORY + "\n") * 5000)
    assert "best-a.toml is a recipe of another text" in best("10m") and len(ran) == 1
