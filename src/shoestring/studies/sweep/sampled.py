"""An order in which each setting is proposed by what those before it came to: Optuna's samplers over the grid.

Nothing is kept: the study is made again from the run folders whenever a run is to be chosen, so a sweep that is killed
goes on with all that is known.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from shoestring.core.errors import MissingExtra, UserError, nearest
from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.core.seeds import derive
from shoestring.core.sweep_folder import SweepRun
from shoestring.core.units import Seconds
from shoestring.studies.sweep.driver import Job, Result
from shoestring.studies.sweep.grid import Axes
from shoestring.studies.sweep.orders import InOrder
from shoestring.studies.sweep.plans import schedule
from shoestring.studies.sweep.survey import Survey

SAMPLERS = {"tpe": "TPESampler", "gp": "GPSampler"}
"""Optuna's classes by the name in --sampler optuna:NAME."""
_TRIES = 30
"""Proposals of settings that were run already, before the next one of the grid is taken."""
Place = tuple[int, ...]
"""Of a setting on the grid: the number of its value on each axis."""


def parse_sampler(text: str) -> str | None:
    """The name of Optuna's sampler; None for grid and random."""
    kind, _, name = text.partition(":")
    if text in ("grid", "random"):
        return None
    if kind != "optuna" or name not in SAMPLERS:
        known = ["grid", "random", *(f"optuna:{each}" for each in SAMPLERS)]
        raise UserError(f"--sampler {text}: unknown; {nearest(text, known)}")
    return name


def optuna() -> Any:
    """The package, which is an extra."""
    try:
        import optuna as found
    except ModuleNotFoundError as cause:
        raise MissingExtra("--sampler optuna:…", "optuna", "optuna") from cause
    found.logging.set_verbosity(found.logging.ERROR)
    return found


class Space:
    """The grid as Optuna sees it: values of numbers have an order, others have none."""

    def __init__(self, axes: Axes):
        self._axes = axes
        package = optuna()
        self.distributions: dict[str, Any] = {}
        for field, values in axes.over.items():
            if _is_ordered(values):
                self.distributions[field] = package.distributions.IntDistribution(0, len(values) - 1)
            else:
                self.distributions[field] = package.distributions.CategoricalDistribution(range(len(values)))
        if axes.zipped:
            count = len(next(iter(axes.zipped.values())))
            self.distributions["zip"] = package.distributions.CategoricalDistribution(range(count))

    def place(self, values: Mapping[str, Any]) -> Place:
        """Of a run with these values."""
        found = [_ranked(every).index(values[field]) for field, every in self._axes.over.items()]
        if self._axes.zipped:
            together = list(zip(*self._axes.zipped.values()))
            found.append(together.index(tuple(values[field] for field in self._axes.zipped)))
        return tuple(found)

    def parameters(self, place: Place) -> dict[str, int]:
        return dict(zip(self.distributions, place))


def _is_ordered(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _ranked(values: Sequence[Any]) -> list[Any]:
    """Values in the order in which they are numbered."""
    return sorted(values) if _is_ordered(values) else list(values)


class Sampled(InOrder):
    """Settings as a sampler of Optuna proposes them, up to a number of them; all seeds of one before the next."""

    def __init__(self, found: Survey, sampler: str, trials: int, seed: int):
        super().__init__(found)
        self._sampler, self._trials, self._seed = sampler, trials, seed
        self._space = Space(found.grid.axes)
        self._settings: dict[Place, list[SweepRun]] = {}
        for run in found.index.runs:
            if found.problem(run) is None:
                self._settings.setdefault(self._space.place(run.values), []).append(run)
        self._begun = {place for place, runs in self._settings.items() if any(map(self._has_begun, runs))}
        self._count = min(trials, len(self._settings)) * max(1, found.grid.axes.seeds or 1)
        self._failed: set[str] = set()

    def sentence(self) -> str:
        """How many settings are run, and how long that takes at most, with the longest of them."""
        count = min(self._trials, len(self._settings)) - len(self._begun)
        longest = sorted((self._found.seconds(run).expected for run in self._waiting), reverse=True)
        seeds = max(1, self._found.grid.axes.seeds or 1)
        most = max(schedule(longest[: max(0, count) * seeds], self._found.slots.at_once), default=0.0)
        what = f"{SAMPLERS[self._sampler]} proposes {min(self._trials, len(self._settings))} of {len(self._settings)}"
        return f"{what} settings; at most {Seconds(most).short()}"

    @property
    def left(self) -> list[SweepRun]:
        """Runs of settings that were proposed; the others were not asked for."""
        return [run for run in self._waiting if self._space.place(run.values) in self._begun]

    def next(self, active: Sequence[str], left: float | None) -> Job | None:
        waiting = {run.name for run in self._waiting} - set(active) - self._failed
        proposed = ""
        place = next((each for each in self._settings if each in self._begun and self._open(each, waiting)), None)
        if place is None:
            if len(self._begun) >= min(self._trials, len(self._settings)):
                return None
            place = self._propose(active)
            proposed = f"setting {len(self._begun) + 1} of {self._trials}, proposed by {SAMPLERS[self._sampler]}"
        run = next(run for run in self._settings[place] if run.name in waiting)
        if left is not None and self._pace.seconds(run.name) > left:
            return None
        self._begun.add(place)
        self._waiting.remove(run)
        self._pace.started(run.name)
        return Job(run=run, reason=proposed)

    def ended(self, run: SweepRun, result: Result) -> str:
        if result.event == "failed":
            self._failed.add(run.name)
        return super().ended(run, result)

    def _outlook(self) -> str:
        return ""  # which settings come next is not known

    def _open(self, place: Place, waiting: set[str]) -> bool:
        return any(run.name in waiting for run in self._settings[place])

    def _has_begun(self, run: SweepRun) -> bool:
        return self._found.standings[run.name].state in ("done", "running", "stopped", "failed")

    def _propose(self, active: Sequence[str]) -> Place:
        """A setting that was not run, by what is known of the others."""
        package = optuna()
        study = self._study(package, active)
        for _ in range(_TRIES):
            trial = study.ask(self._space.distributions)
            place = tuple(trial.params[name] for name in self._space.distributions)
            if place in self._settings and place not in self._begun:
                return place
            study.tell(trial, state=package.trial.TrialState.FAIL)
        return next(place for place in self._settings if place not in self._begun)

    def _study(self, package: Any, active: Sequence[str]) -> Any:
        """What is known: settings with the mean of their losses; those that run count as bad, so others are tried."""
        options = (
            {"constant_liar": True, "n_startup_trials": max(3, self._trials // 4)} if self._sampler == "tpe" else {}
        )
        seed = derive(self._seed, f"sampler {len(self._begun)}") % 2**32
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", package.exceptions.ExperimentalWarning)
            sampler = getattr(package.samplers, SAMPLERS[self._sampler])(seed=seed, **options)
        study = package.create_study(sampler=sampler)
        states, create = package.trial.TrialState, package.trial.create_trial
        for place in sorted(self._begun):
            given = {"params": self._space.parameters(place), "distributions": self._space.distributions}
            losses = self._losses(place)
            if losses:
                study.add_trial(create(value=sum(losses) / len(losses), **given))
            elif any(run.name in active for run in self._settings[place]):
                study.add_trial(create(state=states.RUNNING, **given))
            else:
                study.add_trial(create(state=states.FAIL, **given))
        return study

    def _losses(self, place: Place) -> list[float]:
        """Of the runs of a setting that are done."""
        folders = (RunFolder(self._found.folder.run_path(run)) for run in self._settings[place])
        return [outcome.loss for each in folders if (outcome := Outcome.read_if_there(each.done)) is not None]
