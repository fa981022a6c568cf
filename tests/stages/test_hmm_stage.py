"""A fit keeps to its plan: rows at a time, seconds between checkpoints, and its time rather than its epochs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from profiles import write_profile

from shoestring.core.clock import Clock
from shoestring.core.facts import Plan
from shoestring.core.recipe_file import build, load
from shoestring.hmm.engine import engine_of_updates
from shoestring.hmm.expect import expect
from shoestring.hmm.fit import FitSettings, fit, learn
from shoestring.plan.hmm import EPOCH_BYTES
from shoestring.probe.meter import Meter
from shoestring.stages.hmm import _epochs_between_checkpoints, _until_time, fit_recipe
from shoestring.stages.hmm_workload import HmmWorkload, fit_settings
from shoestring.stages.voice import Voice
from shoestring.track import read_lines

DATA = {"tokenizer": "words:9", "documents": 9}


@pytest.mark.parametrize(("step_seconds", "epochs"), [(0.001, 450), (2.0, 1)])
def test_checkpoints_are_an_interval_apart_and_an_epoch_at_least(step_seconds: float, epochs: int) -> None:
    """A twentieth of three minutes is 9 s; an epoch has 20 updates."""
    recipe = build({"budget": {"time": "3m"}, "data": DATA, "hmm": {}}, "test")
    plan = Plan(binding="time", steps=2000, epochs=100.0, step_seconds=step_seconds)
    assert _epochs_between_checkpoints(recipe, plan) == epochs


def test_a_gpu_takes_as_many_rows_at_a_time_as_planned_and_is_asked_once_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoestring.hmm.engine.free_bytes", lambda _: 9000)
    monkeypatch.setattr("shoestring.hmm.engine.engine", lambda _: expect)
    planned = engine_of_updates(torch.device("cuda"), 64)
    assert isinstance(planned, partial)
    assert (planned.func, planned.keywords) == (expect, {"chunk": 64, "limit_bytes": 4500})
    assert engine_of_updates(torch.device("cpu"), 64) is expect


@pytest.mark.parametrize("update", ["all", "every", "online"])
def test_an_update_that_is_measured_is_one_of_a_fit(update: str, tmp_path: Path) -> None:
    """Down to the statistics that it leaves: a fit's updates were 10 to 25 % slower than a shorter one of its own."""
    section = {"states": 3, "update": update, "update_every": 8, "tied_start": True}
    run = {"folder": str(tmp_path)}
    recipe = build({"run": run, "budget": {"epochs": 1}, "data": DATA | {"length": 12}, "hmm": section}, "test")
    work = HmmWorkload(recipe, Meter(torch.device("cpu")))
    work.accumulate(8)
    tokens = work._rows(8)
    work.update()
    settings = fit_settings(recipe, 1)
    path = tmp_path / "fit.safetensors"
    fitted = fit(tokens, settings, symbols=9, start=work._parameters, checkpoint=path)
    rate = 1.0 if update == "online" else None
    learned = learn(expect(work._parameters, tokens), work._parameters, None, settings, rate, 96.0)
    for found, expected in zip(fitted.parameters[:3], learned.parameters[:3], strict=True):
        torch.testing.assert_close(found, expected)
    assert (work._statistics is None) == (learned.statistics is None) == (update != "online")
    if work._statistics is not None and learned.statistics is not None:
        torch.testing.assert_close(work._statistics.transition, learned.statistics.transition)


def test_the_notes_of_an_epoch_take_no_more_than_planned(tmp_path: Path) -> None:
    rows, sizes = torch.randint(9, (40, 12), generator=torch.Generator().manual_seed(0)), []
    for epochs in (10, 60):
        path = tmp_path / f"{epochs}.safetensors"
        fit(rows, FitSettings(states=3, epochs=epochs, update="all"), symbols=9, checkpoint=path)
        sizes.append(path.stat().st_size)
    assert EPOCH_BYTES / 2 < (sizes[1] - sizes[0]) / 50 <= EPOCH_BYTES


@pytest.mark.parametrize(
    ("binding", "budget", "on"),
    [
        ("time", {"time": "3m"}, True),
        ("time", {"time": "3m", "epochs": 40}, False),
        ("epochs", {"time": "3m", "epochs": 7}, False),
        ("epochs", {"epochs": 7}, False),
    ],
)
def test_only_time_lets_a_fit_go_on(binding: str, budget: dict[str, Any], on: bool) -> None:
    recipe = build({"budget": budget, "data": DATA, "hmm": {}}, "test")
    assert _until_time(recipe, Plan(binding=binding)) is on


def test_a_fit_that_is_faster_than_planned_uses_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "fast.toml"
    file.write_text(
        '[run]\nname = "fast"\n[budget]\ntime = "13s"\n[hmm]\nstates = 3\n[evaluate]\nrows = 20\nevery = 0.5\n'
        '[data]\nsource = "stories"\ndocuments = 150\ntokenizer = "words:300"\nlength = 20\n'
    )
    write_profile(file)  # of a machine that takes seconds for an epoch
    monkeypatch.chdir(tmp_path)
    finished = fit_recipe(load(file), Voice(), Clock(0.0))
    assert finished is not None
    epochs = finished.evaluation.step
    assert epochs > 10 > (finished.plan.epochs or 0)
    assert finished.outcome.shortened is None
    lines = read_lines(finished.folder.metrics)
    heldout = [line["step"] for line in lines if "heldout_loss" in line]
    assert heldout[-1] == epochs
    assert len(heldout) == len(set(heldout))
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, epochs + 1))
