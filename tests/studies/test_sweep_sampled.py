"""Optuna's samplers over a grid: with runs whose losses are a known function, and nothing trained."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev

import pytest
from conftest import Command

from shoestring.core.errors import MissingExtra, UserError
from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.core.sweep_folder import SweepRun
from shoestring.runs.reporter import Reporter
from shoestring.studies.sweep import sampled
from shoestring.studies.sweep import survey as module
from shoestring.studies.sweep.driver import Result
from shoestring.studies.sweep.grid import read_grid
from shoestring.studies.sweep.sampled import Sampled, Space, parse_sampler
from shoestring.studies.sweep.survey import Survey, survey

RATES = [1e-4 * 2**k for k in range(12)]
OVER = ["train.lr=" + ",".join(map(str, RATES)), "train.beta1=0.5,0.6,0.7,0.8,0.9", "train.clip=0.5,1.0"]


def loss_of(values: dict[str, object]) -> float:
    """Lowest at the fifth rate and 0.8."""
    return (
        1.0 + 0.1 * abs(RATES.index(float(str(values["train.lr"]))) - 4) + abs(float(str(values["train.beta1"])) - 0.8)
    )


def finish(found: Survey, run: SweepRun) -> None:
    folder = RunFolder(found.folder.run_path(run))
    folder.path.mkdir(parents=True, exist_ok=True)
    Outcome(
        steps=1, tokens=1, seconds=1.0, segments=1, tokens_per_second=1.0, disk_bytes=1, peak_bytes=None,
        loss=loss_of(run.values), shortened=None,
    ).write(folder.done)  # fmt: skip


def driven(found: Survey, sampler: str, trials: int, most: int = 10**6) -> list[SweepRun]:
    """The runs that were started, one after the other."""
    order, started = Sampled(found, sampler, trials, 0), list[SweepRun]()
    while len(started) < most and (job := order.next([], None)) is not None:
        started.append(job.run)
        finish(found, job.run)
        order.ended(job.run, Result(event="ended"))
    return started


@pytest.fixture
def here(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "crowd", lambda *_: None)
    monkeypatch.setattr(module, "fly", lambda *_: None)
    return tiny


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_as_many_settings_as_asked_for_and_none_twice(here: Path, sampler: str) -> None:
    found = survey(read_grid(here, (), OVER), Reporter())
    started = driven(found, sampler, 15)
    assert len({run.name for run in started}) == len(started) == 15


def test_it_learns_and_goes_on_after_a_kill(here: Path) -> None:
    found = survey(read_grid(here, (), OVER), Reporter())
    first = driven(found, "tpe", 30, most=12)
    assert len(first) == 12, "then it was killed"
    found = survey(read_grid(here, (), OVER), Reporter())
    second = driven(found, "tpe", 30)
    assert len(second) == 18 and not {run.name for run in first} & {run.name for run in second}
    losses = [loss_of(run.values) for run in (*first, *second)]
    every = [loss_of(run.values) for run in found.index.runs]
    assert fmean(losses[-15:]) < fmean(every) - 2 * stdev(every) / 15**0.5, "better than chance"


def test_all_seeds_of_a_setting_before_the_next(here: Path) -> None:
    found = survey(read_grid(here, (), OVER[:2], seeds=2), Reporter())
    order = Sampled(found, "tpe", 3, 0)
    jobs = [order.next([], None) for _ in range(7)]
    runs = [job.run for job in jobs if job is not None]
    assert jobs[6] is None and len(runs) == 6
    settings = [(run.values["train.lr"], run.values["train.beta1"]) for run in runs]
    assert settings[0::2] == settings[1::2] and len(set(settings)) == 3
    assert "proposes 3 of 60 settings" in order.sentence()


def test_numbers_have_an_order_and_names_have_none(here: Path) -> None:
    axes = read_grid(here, (), ["train.lr=3e-3,1e-3", "train.optimizer=adamw,muon"], ["model.width=16,32"]).axes
    space = Space(axes)
    kinds = {name: type(each).__name__ for name, each in space.distributions.items()}
    assert kinds == {
        "train.lr": "IntDistribution",
        "train.optimizer": "CategoricalDistribution",
        "zip": "CategoricalDistribution",
    }
    assert space.place({"train.lr": 3e-3, "train.optimizer": "muon", "model.width": 16}) == (1, 1, 0)


def test_wrong_samplers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--sampler optuna:tpa: unknown"):
        parse_sampler("optuna:tpa")
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(MissingExtra, match="optuna"):
        sampled.optuna()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--trials", "3"), "give --sampler too"),
        (("--random", "3", "--sampler", "random"), "--sampler random --trials N"),
        (("--sampler", "grid", "--trials", "3"), "leave --trials out"),
        (("--sampler", "optuna:tpe", "--halving", "asha"), "goes with neither"),
        (("--sampler", "dice"), "--sampler dice: unknown"),
    ],
)
def test_mistakes_are_named(words: tuple[str, ...], message: str, tiny: Path, shoestring: Command) -> None:
    told = shoestring("sweep", tiny, "--over", "train.lr=1e-3,1e-2", *words, "--dry-run")
    assert told.returncode == 2 and message in told.stderr and "Traceback" not in told.stderr
