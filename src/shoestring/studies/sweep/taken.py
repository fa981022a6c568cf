"""What a run took, part by part, and the plan of another run that follows from it.

A counted plan knows the steps and the evaluations of a run, but only guesses their seconds. A run that was taken on the
same machine knows the seconds. Both together are a forecast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, ClassVar

from shoestring.core.errors import ShoestringError
from shoestring.core.numeric import interpolate
from shoestring.core.records import Plan
from shoestring.core.results import Outcome
from shoestring.core.run_folder import RunFolder
from shoestring.core.schema import Record
from shoestring.planning.history import DRIFT
from shoestring.planning.stops import TEXTS_SECONDS, TEXTS_SHARE
from shoestring.runs.timeline import BEFORE
from shoestring.studies.sweep.crowd import SPENT, Crowd
from shoestring.track import read_lines

_FINISH = ("last evaluation", "page", "last checkpoint")
_SIGMAS = 1.96
_LATER = 0.25
"""The share of a run's steps that may be slower than the others; they count as its set-up."""
_FEWEST = 8
"""Lines from which on these steps are told from the others."""


@dataclass(frozen=True, kw_only=True)
class Taken(Record):
    """Seconds of a run by part."""

    SCHEMA: ClassVar[str] = "shoestring.taken/1"

    start: float
    """From the start of the process until its plan is made; torch is loaded then."""
    setup: float
    """Until steps have their full speed."""
    step: float
    evaluation: float
    """Of one."""
    texts: float
    """That the model writes after an evaluation."""
    checkpoint: float
    """Of the one after an evaluation."""
    finish: float
    """After the last step."""
    end: float
    """From the last line of the run until its process is gone."""
    late: float = 0.0
    """More set-up of the first run of its kind, which compiles what others find."""


def taken(folder: RunFolder, wall: float) -> Taken | None:
    """The seconds of a finished run whose process lived for `wall` seconds; None: they cannot be read."""
    try:
        plan, outcome = Plan.read(folder.plan), Outcome.read(folder.done)
        lines = read_lines(folder.timings)
        texts = max(1, len(read_lines(folder.samples)))
    except (ShoestringError, OSError):
        return None
    parts, evaluations = outcome.timeline, max(1, plan.evaluations or 1)
    steps = max(1, outcome.steps - 1)  # the first one is a part of its own
    train = parts.get("train", 0.0)
    step = _later_step(lines, outcome.steps) or train / steps
    slow = max(0.0, train - steps * step)
    return Taken(
        start=sum(parts.get(name, 0.0) for name in BEFORE),
        setup=parts.get("set-up", 0.0) + parts.get("first step", 0.0) + slow,
        step=step,
        evaluation=parts.get("evaluations", 0.0) / evaluations,
        texts=parts.get("samples", 0.0) / texts,
        checkpoint=parts.get("checkpoints", 0.0) / evaluations,
        finish=sum(parts.get(name, 0.0) for name in _FINISH),
        end=max(0.0, wall - outcome.seconds),
    )


def _later_step(lines: Sequence[dict[str, Any]], steps: int) -> float | None:
    """Seconds of a step without the first ones; None: too few lines. Lines are of steps, or of epochs."""
    known = [(line["step"], line["elapsed"]) for line in lines if "tokens_per_second" in line]
    if len(known) < _FEWEST:
        return None
    (first, began), (last, ended) = known[int(_LATER * len(known))], known[-1]
    return float((ended - began) / (last - first) * last / steps)


class Seen:
    """Runs that were taken beside the plans that were made for them, as `(planned seconds of a step, taken)`."""

    def __init__(self, runs: Sequence[tuple[float, Taken]]):
        self._runs = sorted(runs, key=lambda run: run[0])
        self._low, self._high = self._runs[0][0], self._runs[-1][0]

    def corrected(self, plan: Plan) -> tuple[Plan, Crowd]:
        """The plan with the seconds that were seen, and what its process takes before and after it."""
        assert plan.step_seconds and plan.seconds is not None, "a plan that was made has seconds"
        planned, evaluations = plan.step_seconds, plan.evaluations or 0
        step = self.step(planned)
        start = self._mean(lambda run: run.start)
        saved = evaluations * self._at(planned, lambda run: run.checkpoint)
        parts = {name: plan.parts[name] for name in ("prepare", "baselines") if name in plan.parts} | {
            SPENT: start,
            "set-up": self._at(planned, lambda run: run.setup),
            "train": plan.parts["train"] * step / planned,
            "evaluations": evaluations * self._at(planned, lambda run: run.evaluation),
            "checkpoints": max(saved, plan.parts.get("checkpoints", 0.0)),
            "finish": self._mean(lambda run: run.finish),
        }
        texts = evaluations * self._at(planned, lambda run: run.texts)
        parts["evaluations"] += min(texts, TEXTS_SECONDS + TEXTS_SHARE * sum(parts.values()))
        seconds = sum(parts.values())
        half = _SIGMAS * DRIFT * seconds
        made = replace(
            plan,
            parts=parts,
            seconds=seconds,
            step_seconds=step,
            intervals=plan.intervals | {"seconds": (seconds - half, seconds + half)},
        )
        return made, Crowd(start=start, end=self._mean(lambda run: run.end), slower=1.0)

    @property
    def late(self) -> float:
        """More set-up of the first run of a kind that was not seen."""
        return self._mean(lambda run: run.late)

    def step(self, planned: float) -> float:
        """Seconds of a step that was planned to take `planned`: on the line between runs that were taken, or in the
        same ratio as the nearest one."""
        inside = min(max(planned, self._low), self._high)
        return self._at(inside, lambda run: run.step) * planned / inside

    def _at(self, planned: float, part: Callable[[Taken], float]) -> float:
        by_planned: dict[float, list[float]] = {}
        for known, run in self._runs:
            by_planned.setdefault(known, []).append(part(run))
        return interpolate([(known, fmean(each)) for known, each in by_planned.items()], planned)

    def _mean(self, part: Callable[[Taken], float]) -> float:
        return fmean(part(run) for _, run in self._runs)
