"""What is assumed of a machine where the time for measuring was over before it was known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shoestring.core.records import Point, Profile
from shoestring.core.units import Seconds
from shoestring.planning.stops import evaluation_count
from shoestring.probe.trials import Overheads, Trial, Usage
from shoestring.runs.estimate import WRITTEN_BYTES_PER_SECOND, saved_bytes
from shoestring.runs.prepare import vocabulary_of
from shoestring.runs.task import Task

_STEPS = 100
"""That fill the time, where no step was measured."""
_EVALUATING = 0.05
"""Share of the time for all evaluations, in that case."""


def ended(seconds: float) -> str:
    """What a person reads of a measurement that was ended."""
    return f"measuring was ended after {Seconds(seconds).short()}, a fifth of the time,"


def first_steps(task: Task, facts: dict[str, Any]) -> Trial:
    """The first steps as a trial, where there was no time for another."""
    peak, seconds = facts["peak_bytes"], facts["step_seconds"]
    usage = None if peak is None else Usage(asked=peak, reserved=peak, outside=0, rest=peak)
    return Trial(task.trial_rows(2)[0], (seconds,), seconds, 0.0, 0.0, usage)


def assumed_overheads(task: Task, facts: dict[str, Any], points: Sequence[Point], batch: int, passes: int) -> Overheads:
    """What a run does besides passes, by what passes take: scoring is a third of one."""
    seconds = {point.batch: point.seconds for point in points}
    update = max(0.0, facts["step_seconds"] - seconds.get(task.trial_rows(2)[0], math.inf))
    saved = saved_bytes(task.recipe, task.cost(), vocabulary_of(task.recipe))
    return Overheads(
        update_seconds=update,
        step_seconds=passes * seconds[batch] + update,
        validate_seconds_per_row=seconds[batch] / 3 / batch,
        checkpoint_seconds=saved / WRITTEN_BYTES_PER_SECOND,
        checkpoint_bytes=saved,
        write_seconds=saved / WRITTEN_BYTES_PER_SECOND,
        score_late_seconds=0.0,
        peak_bytes=None,
    )


def assumed_profile(task: Task, most: float, share: float) -> Profile:
    """The profile where `most` seconds, this share of the time, were over before the first steps were measured.

    It has the smallest batch, and steps that fill the time; the run then finds its own pace.
    """
    from shoestring.probe.machine import available_bytes, describe_machine, pick_device  # loads torch

    recipe, rows, device = task.recipe, task.trial_rows(2)[0], pick_device()
    time_budget, saved = most / share, saved_bytes(task.recipe, task.cost(), vocabulary_of(task.recipe))
    seconds = time_budget / _STEPS * rows / max(rows, task.most_rows)
    scored = (1 + evaluation_count(recipe)) * max(1, len(recipe.data.scored)) * recipe.evaluate.rows
    return Profile(
        machine=describe_machine(device),
        workload=task.workload,
        length=recipe.data.length,
        points=(Point(batch=rows, seconds=seconds, slowest_seconds=seconds, peak_bytes=None),),
        setup_seconds=0.0,  # torch is loaded, and the clock of the run shows the rest
        update_seconds=0.0,
        validate_seconds_per_row=_EVALUATING * time_budget / scored,
        checkpoint_seconds=saved / WRITTEN_BYTES_PER_SECOND,
        checkpoint_bytes=saved,
        available_bytes=available_bytes(device),
        stopped="nothing was measured",
        cost=task.cost(),
        busy=f"{ended(most)} before the first steps were taken; {_STEPS} steps are assumed to fit",
        estimated=True,
    )
