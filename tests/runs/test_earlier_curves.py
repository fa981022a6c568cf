"""Which finished runs beside a run its forecast is by, and that it says so."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from profiles import write_profile

from shoestring.core.clock import Clock
from shoestring.core.recipe_file import dump, load
from shoestring.core.run_folder import RunFolder
from shoestring.report.forecast import ALONE
from shoestring.runs.earlier_curves import MOST, runs_beside
from shoestring.runs.watch import Notes, Watch
from shoestring.track import LineFile, read_lines
from shoestring.training.checkpoint import State
from shoestring.training.schedule import Schedule

REPORT: Any = SimpleNamespace()


def made(tiny: Path, name: str, *settings: str, until: int = 200, loss: float = 2.0, done: bool = True) -> RunFolder:
    """The folder of a run of 200 steps at one learning rate whose loss falls to `loss`."""
    recipe = load(tiny, [f"run.name={name}", "train.lr=1e-3", "train.schedule=constant", *settings])
    folder = RunFolder(tiny.parent / RunFolder.of(recipe).path)
    write_profile(tiny, f"run.name={name}", *settings)
    folder.recipe.write_text(dump(recipe))
    lines: list[dict[str, float]] = []
    for step in range(1, until + 1):
        lines.append({"step": step, "loss": loss * (step / 200) ** -0.2, "lr": 1e-3})
        if step % 20 == 0:
            lines.append({"step": step, "heldout_loss": loss * (step / 200) ** -0.2})
    folder.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if done:
        folder.done.touch()
    return folder


def names(own: RunFolder, *only: str) -> set[str]:
    return set(runs_beside(own, own.read_recipe(), only or None).shapes)


def test_finished_runs_on_the_same_rows_are_taken(tiny: Path) -> None:
    own = made(tiny, "own", until=40, done=False)
    made(tiny, "like")
    made(tiny, "wider", "model.width=64")
    made(tiny, "shorter", "data.length=16")
    made(tiny, "unfinished", done=False)
    made(tiny, "damaged").metrics.write_text("{not JSON\n")
    made(tiny, "empty").metrics.write_text("")
    made(tiny, "without").profile.unlink()
    turned = made(tiny, "turned")
    turned.metrics.write_text(turned.metrics.read_text() + '{"step": 200, "event": "overfitting", "best": 100}\n')
    (own.path.parent / "stray").write_text("no run")
    assert names(own) == {"like", "wider"}
    assert names(own, "wider", "removed") == {"wider"}
    own.done.touch()
    assert "own" not in names(own)
    own.profile.unlink()
    assert runs_beside(own, own.read_recipe()) == ALONE


def test_the_latest_runs_are_taken_and_not_all(tiny: Path) -> None:
    own = made(tiny, "own", done=False)
    for number in range(MOST + 2):
        os.utime(made(tiny, f"run{number}").done, (1000 + number, 1000 + number))
    assert names(own) == {f"run{number}" for number in range(2, MOST + 2)}


@pytest.mark.parametrize("ends", [1.0, 2.0])
def test_a_run_says_what_earlier_ones_lead_to_and_by_which_it_does(tiny: Path, tmp_path: Path, ends: float) -> None:
    """All fall alike; the earlier ones were at the same loss at the same place."""
    own = made(tiny, "own", until=40, loss=ends, done=False)
    made(tiny, "first", loss=ends)
    made(tiny, "second", loss=ends)
    notes = Notes(LineFile(tmp_path / "timings.jsonl"), Clock(0.0))
    watch = Watch(own.read_recipe(), own.metrics, lambda _: None, notes)
    state = State(recipe="", data="", schedule=Schedule(total=200), step=40)
    watch(replace(state), REPORT)
    found = watch.forecast
    assert found is not None and found.runs == 2
    assert found.loss == pytest.approx(ends, rel=0.04) and found.low < ends < found.high
    lines = read_lines(tmp_path / "timings.jsonl")
    (earlier,) = [line for line in lines if line["event"] == "earlier"]
    assert set(earlier["runs"]) == {"first", "second"}
    (told,) = [line for line in lines if line["event"] == "forecast"]
    assert told["runs"] == 2 and told["loss"] == found.loss
