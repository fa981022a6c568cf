"""The first steps of a run make its plan final, if it was made by counting."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shoestring.core.clock import Clock
from shoestring.core.recipe import Recipe
from shoestring.core.records import Line, Plan, Point, Profile
from shoestring.core.units import Bytes, Count, Flops, Seconds, counted, rate
from shoestring.planning.corpus import full_passes, scored_at_once, scored_rows
from shoestring.planning.expect import OVERFITTING, turn_again
from shoestring.planning.lines import (
    REPETITION,
    download_lines,
    epochs_read,
    overall_line,
    parts_reason,
    repetition_lines,
    warmup_line,
)
from shoestring.planning.make import REPORT_SECONDS
from shoestring.probe.meter import Meter
from shoestring.runs.timeline import BEFORE
from shoestring.runs.trainee import Trainee
from shoestring.training.checkpoint import State
from shoestring.training.deadline import Deadline
from shoestring.training.hooks import KeepDeadline
from shoestring.training.loop import Report

_ALIKE = 0.05
"""Steps show their speed where the last ones, the later half and all differ by no more than this share."""
_LONG_SHARE, _LONG_SECONDS = 0.05, 10.0
"""Or after this share of the time budget; without one, after so many seconds."""
_CONSENSUS_STEPS = 3
"""After which several processes have the schedule that the first one asks for: it is sent with the numbers of a step,
and the step after that has begun."""
CREEP_BYTES = 4_000_000
"""By which memory on a CPU grows in the course of a run, 0 to 5 MB (results/log.md): the C library's heap comes to have
gaps."""
PAGE_SLACK, LEAST_PAGE = 3.0, 0.25
"""How much longer the page of a whole run may take than that of its first steps, and its seconds at least."""


@dataclass
class FirstSteps:
    """Makes the plan final as soon as the steps show their speed, and again after the first evaluation, which shows its
    own seconds and the whole memory. Before that no change of the schedule is news."""

    plan: Plan
    trainee: Trainee
    deadline: Deadline
    keep: KeepDeadline
    meter: Meter
    clock: Clock
    write: Callable[[Plan, bool], None]
    """Takes the final plan, and whether it is the first."""
    rehearse_page: Callable[[], object] | None = None
    """Draws the page, so that its seconds are known; None: those planned stay."""
    copied: Callable[[], int] = lambda: 0
    """Bytes of the copy that a checkpoint is written from, beside further steps; 0: no checkpoint was written yet, or
    the copy is not in the memory of the device."""
    baseline_seconds: float | None = None
    """About how long the baselines take at the end; None: as planned."""
    _waited: int = field(default=0, init=False)
    """Steps since the schedule was to change once more, by the speed that is known now."""
    _paced: bool = field(default=False, init=False)
    _done: bool = field(default=False, init=False)
    _alone: int = field(default=0, init=False)
    """Bytes of the steps that were taken before the first checkpoint."""

    def __post_init__(self) -> None:
        self.keep.quiet = True

    def __call__(self, state: State, report: Report) -> State:
        copied = self.copied()
        if not self._done and not copied:
            self.meter.look()
            self._alone = self.meter.seen
        evaluation = self.deadline.evaluation_seen(self._forward())
        if self._done or report.finished or not (self._known() if not self._paced else evaluation is not None):
            return state
        if self._waited == 0:
            self.deadline.reconsider()
        if self._waited < (1 if self.keep.requests.alone else _CONSENSUS_STEPS):
            self._waited += 1
            return state
        first, self._done = not self._paced, evaluation is not None
        self._paced, self.keep.quiet = True, False
        seconds, usage = self.deadline.seconds_per_step, self.meter.usage()
        assert seconds is not None, "there were steps"
        seconds = seconds * self._fitting(state) if first else self.plan.step_seconds or seconds
        peak = None if usage is None else max(usage.reserved, self._alone + copied)
        if peak is not None and self.meter.device.type == "cpu":
            peak += CREEP_BYTES
        page = None if evaluation is None else self._page_seconds()
        once, slow = evaluation or (None, 0.0)
        saving = self._saving(state)
        took = Took(seconds, once, peak, self.clock.parts(), state.step, page, slow, saving, self.baseline_seconds)
        total = state.schedule.total if first else self.plan.steps or state.schedule.total
        self.plan = final_plan(self.plan, self.trainee.recipe, total, took, self.meter.device.type)
        self.keep.planned = total
        self.deadline.replan(seconds, self.plan.parts["evaluations"] / max(1, self.plan.evaluations or 0))
        self.write(self.plan, first)
        return replace(state, shortened=None, lengthened=None) if first else state

    def _forward(self) -> float:
        """Seconds of an evaluation, by those of a step."""
        step, device = self.deadline.seconds_per_step or 0.0, self.meter.device.type
        return evaluation_seconds(self.plan, self.trainee.recipe, step, device)

    def _fitting(self, state: State) -> float:
        """What the schedule is too long by at the mean speed; it was made to fit, at that of the faster steps."""
        schedule, left = state.schedule, self.deadline.time_left()
        needed = self.deadline.seconds_left(schedule.total - state.step, schedule.progress(state.step))
        return left / needed if needed and 0 < left < needed else 1.0

    def _saving(self, state: State) -> float:
        """Seconds of the checkpoints of the whole run: those so far, and those that follow."""
        left = self.deadline.saving_left(state.schedule.total - state.step, state.schedule.progress(state.step))
        return self.clock.parts().get("checkpoints", 0.0) + left

    def _page_seconds(self) -> float | None:
        if self.rehearse_page is None:
            return None
        with self.clock.during("page"):
            started = self.clock.elapsed()
            self.rehearse_page()
            return max(LEAST_PAGE, PAGE_SLACK * (self.clock.elapsed() - started))

    def _known(self) -> bool:
        time = self.trainee.recipe.budget.time
        long = _LONG_SECONDS if time is None else _LONG_SHARE * float(time)
        if self.trainee.settling:
            return False
        alike = self.deadline.differing < _ALIKE or self.deadline.step_seconds >= long
        return self.deadline.settled and alike


class Took(NamedTuple):
    """What the first steps showed."""

    step: float
    """Seconds."""
    evaluation: float | None
    """Seconds of one; None: there was none yet."""
    peak: int | None
    """Bytes; None: unknown."""
    parts: Mapping[str, float]
    """Seconds of the parts of the session so far."""
    steps: int
    """That were taken."""
    page: float | None = None
    """Seconds of the page; None: as planned."""
    slow: float = 0.0
    """Seconds by which the first evaluation took longer than another."""
    checkpoints: float | None = None
    """Seconds of all checkpoints but the last, by those so far; None: as planned."""
    baselines: float | None = None
    """Seconds of the baselines; None: as planned."""


def evaluation_seconds(plan: Plan, recipe: Recipe, step: float, device: str) -> float:
    """Of an evaluation, by those of a `step`: a forward pass alone over other rows. Where more rows are scored at once
    than a step has, each takes less; how much less, the first evaluation shows."""
    assert plan.effective_batch and plan.per_device, "a network's plan has them"
    scored = _scored(plan, recipe)
    more = min(scored, scored_at_once(recipe, plan.per_device, device)) / plan.effective_batch
    return scored * step / plan.effective_batch / 3 / math.sqrt(max(1.0, more))


def _scored(plan: Plan, recipe: Recipe) -> int:
    return plan.scored or scored_rows(recipe, None)


def final_plan(plan: Plan, recipe: Recipe, steps: int, took: Took, device: str = "cpu") -> Plan:
    """The plan with the measured seconds of a step, the steps that fit, the memory, and the parts that are over."""
    assert plan.steps and plan.effective_batch, "a network's plan has them"
    rows, length = plan.effective_batch, recipe.data.length
    evaluation = evaluation_seconds(plan, recipe, took.step, device) if took.evaluation is None else took.evaluation
    more = steps / plan.steps
    parts = dict(plan.parts)
    if plan.estimated:
        slow = max(0.0, took.parts.get("train", 0.0) - took.steps * took.step)  # the first ones
        parts |= {
            "spent so far": sum(took.parts.get(name, 0.0) for name in BEFORE),
            "prepare": took.parts.get("prepare", 0.0),
            "set-up": took.parts.get("set-up", 0.0) + took.parts.get("first step", 0.0) + slow,
        }
    parts |= {
        "set-up": parts.get("set-up", 0.0) + took.slow,
        "train": steps * took.step,
        "evaluations": (plan.evaluations or 0) * evaluation,
        "finish": evaluation + (REPORT_SECONDS if took.page is None else min(took.page, REPORT_SECONDS)),
    }
    known = {"checkpoints": took.checkpoints, "baselines": took.baselines}
    parts |= {name: seconds for name, seconds in known.items() if seconds is not None}
    during = sum(parts.get(name, 0.0) for name in ("train", "evaluations", "checkpoints"))
    seconds, tokens = sum(parts.values()), steps * rows * length
    time_binds = steps < plan.steps and plan.binding != "time" and recipe.budget.time is not None
    final = replace(
        plan,
        estimated=False,
        binding="time" if time_binds else plan.binding,
        most_steps=plan.steps if time_binds else plan.most_steps,
        steps=steps,
        tokens=tokens,
        predictions=None if plan.predictions is None else round(plan.predictions * more),
        samples=steps * rows,
        epochs=None if plan.epochs is None else _more_epochs(plan, more),
        wanted_entries=None if plan.wanted_entries is None else math.ceil(plan.wanted_entries * more),
        wanted_gigabytes=None if plan.wanted_gigabytes is None else plan.wanted_gigabytes * more,
        flops=None if plan.flops is None else plan.flops * more,
        seconds=seconds,
        parts=parts,
        step_seconds=took.step,
        tokens_per_second=rows * length / took.step,
        overall_tokens_per_second=tokens / during,
        peak_bytes=plan.peak_bytes if took.peak is None else took.peak,
        intervals={
            name: (low * more, high * more) if name.startswith("wanted") else (low, high)
            for name, (low, high) in plan.intervals.items()
            if name != "seconds"
        },
    )
    return replace(final, lines=_lines(final, recipe, took.step, rows * length, time_binds))


def _more_epochs(plan: Plan, more: float) -> float:
    """The epochs of so many times the steps: of a part of a corpus, more rows are prepared when they are needed."""
    assert plan.epochs is not None, "asked"
    return plan.epochs * more if plan.share is None else min(plan.epochs * more, max(1.0, plan.epochs))


def final_profile(profile: Profile, plan: Plan, recipe: Recipe) -> Profile:
    """The profile with what the steps of a final plan took, in place of what was counted."""
    assert plan.step_seconds and plan.per_device and plan.accumulate, "a final plan of a network has them"
    update = min(profile.update_seconds, plan.step_seconds / 2)
    each = (plan.step_seconds - update) / plan.accumulate
    point = Point(
        batch=plan.per_device,
        seconds=each,
        slowest_seconds=each,
        fastest_seconds=each,
        peak_bytes=plan.peak_bytes,
    )
    return replace(
        profile,
        points=(point,),
        update_seconds=update,
        setup_seconds=plan.parts["set-up"],
        loading_seconds=0.0,
        validate_seconds_per_row=plan.parts["evaluations"] / max(1, plan.evaluations or 0) / _scored(plan, recipe),
        stopped="taken from the first steps of the run",
        date=datetime.date.today().isoformat(),
        estimated=False,
    )


def _lines(plan: Plan, recipe: Recipe, step_seconds: float, positions: int, time_binds: bool) -> tuple[Line, ...]:
    """The lines of a plan, with those of measured numbers in place of counted ones; `time_binds`: now it is the time
    that limits the run."""
    measured = f"measured in the first steps: {Seconds(step_seconds).short()} each"
    steps, tokens = plan.steps or 0, plan.tokens or 0
    warmup, steps_of_it, why = warmup_line(recipe, steps)
    new: dict[str, tuple[str | None, str | None]] = {
        warmup: (steps_of_it, why),
        "steps": (Count(steps).short(), f"what fits {recipe.budget.time}" if time_binds else None),
        "positions": (Count(tokens).short(), f"{counted(steps, 'step')} × {positions:,} positions"),
        "predictions": (None if plan.predictions is None else Count(plan.predictions).short(), None),
        "speed": (rate(plan.tokens_per_second or 0.0, "positions/s"), measured),
        "overall speed": overall_line(plan, recipe)[1:],
        "computation": (None if plan.flops is None else Flops(plan.flops).short(), None),
        "seconds": (Seconds(plan.seconds or 0.0).short(), parts_reason(plan.parts)),
        "memory": (None if plan.peak_bytes is None else Bytes(plan.peak_bytes).short(), "the peak of the first steps"),
    }
    if plan.epochs:
        new["epochs"] = epochs_read(recipe, plan, round((plan.samples or 0) / plan.epochs))
    new |= {line.quantity: (line.value, line.reason) for line in download_lines(plan)}
    lines, notes = list[Line](), list[Line]()
    for line in plan.lines:
        if line.quantity == OVERFITTING and plan.epochs:
            notes += turn_again(line, plan.epochs / full_passes(recipe))
        elif line.quantity != REPETITION:
            value, reason = new.get(line.quantity, (None, None))
            lines.append(replace(line, value=value or line.value, reason=reason or line.reason))
    return (*lines, *(notes or repetition_lines(plan.epochs, full_passes(recipe))))
