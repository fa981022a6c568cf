"""What follows the last step of a run, and the deadline that leaves time for it."""

from __future__ import annotations

import math
from typing import NamedTuple

from shoestring.core.clock import Clock
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.planning.make import RESERVE_SECONDS
from shoestring.planning.stops import GPU_STOP_SECONDS, STOPS_SHARE, checkpoint_interval, saved_interval
from shoestring.training.deadline import Deadline

IDLE_SHARE = 0.01
"""A run whose last step would be this share of the time budget before its deadline is made longer."""
LEAST_IDLE = 1.0
"""Seconds: no run is made longer for less."""
KNOWN_CHECKPOINTS = 4
"""After so many, the slowest one counts, even where it is faster than planned."""
FINISH_MARGIN = 1.25
"""The finish may take this many times as long as planned without missing the deadline."""
GPU_RESERVE = 1.0
"""Seconds kept free on a machine with a GPU, where the finish is timed beforehand; a process takes 0.2 to end."""


class Finish(NamedTuple):
    """What follows the last step: the checkpoint, evaluation, baselines and page."""

    rest: float
    """Seconds of all but the checkpoint; baselines as timed here where known, else as planned."""
    write: float
    """Planned seconds of the checkpoint."""
    beside: bool
    """Whether it is written meanwhile; a CPU has no core and no memory to spare for it."""

    @classmethod
    def of(cls, plan: Plan, baselines: float | None, beside: bool) -> Finish:
        finish, planned, last = (plan.parts.get(name, 0.0) for name in ("finish", "baselines", "last checkpoint"))
        rest = finish + (planned if baselines is None else baselines)
        return cls(rest, finish + last if beside else last, beside)

    def seconds(self, slowest: float = 0.0, written: int = 0) -> float:
        """The most seconds that the finish takes; `slowest` is the longest of `written` checkpoints."""
        write = slowest if written >= KNOWN_CHECKPOINTS else max(self.write, slowest)
        return FINISH_MARGIN * (max(self.rest, write) if self.beside else self.rest + write)


def deadline_of(
    recipe: Recipe, plan: Plan, clock: Clock, finish: float, spent_before: float, sparing: bool = False
) -> Deadline:
    """The deadline of the last step, so that the `finish` seconds of evaluation, page and saving still fit.

    A run that is `sparing` evaluates less often if that takes long, and keeps less time free.
    """
    budget, parts = math.inf if recipe.budget.time is None else float(recipe.budget.time), plan.parts
    train, evaluations = parts.get("train", 0.0), plan.evaluations or 0
    every = min(checkpoint_interval(recipe), saved_interval(recipe, plan.step_seconds or math.inf))
    return Deadline(
        clock,
        budget - finish - (GPU_RESERVE if sparing else RESERVE_SECONDS),
        plan.step_seconds,
        finish,
        evaluations=evaluations,
        evaluation_seconds=parts.get("evaluations", 0.0) / max(1, evaluations),
        checkpoint_seconds=parts.get("checkpoints", 0.0) / max(1.0, train / every + evaluations),
        checkpoint_every=every,
        most_saving=STOPS_SHARE if recipe.train.checkpoint_every is None else 0.9,
        most_evaluating=STOPS_SHARE,
        long_evaluation=GPU_STOP_SECONDS if sparing and recipe.budget.time is not None else math.inf,
        idle_seconds=max(IDLE_SHARE * budget, LEAST_IDLE),
        spent_before=spent_before,
        planned_start=sum(parts.get(name, 0.0) for name in ("spent so far", "set-up", "prepare")),
    )
