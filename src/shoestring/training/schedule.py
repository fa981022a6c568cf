"""The schedule of a run, which has a learning rate for every step, and its deadline.

The deadline predicts whether the rest of the schedule ends in time, and where it should end otherwise.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from shoestring.core.clock import Clock
from shoestring.core.recipe import Train

_SETTLED_STEPS = 5
_SETTLED_SECONDS = 2.0
_SLACK, _EARLY_SLACK = 0.01, 0.05
"""An overshoot below this fraction of the remaining time is ignored. Early means that less than a third of the
steps are done: a slow moment says little then, and much time is left to correct."""
_STILL_IDLE, _UNCERTAIN = 0.5, 0.02
"""What a lengthened schedule leaves, lest a slow moment shorten it again: this fraction of the permitted idle time, and
this fraction of the remaining time."""
_IDLE_STEPS = 2
"""A schedule is not lengthened by this many steps or fewer: the time of a step is not known that well."""
_PLANNED_STOPS = 2
"""Weight of the planned cost of an evaluation or checkpoint, in observed ones."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """From an anchor (step, progress) straight to progress 1 at step `total`.

    A run starts at (0, 0). When it is shortened or lengthened, its current step becomes the anchor. So its progress,
    and with it the learning rate, has no jump, and is complete after the last step.
    """

    total: int
    anchor_step: int = 0
    anchor_progress: float = 0.0

    def progress(self, step: float) -> float:
        """The fraction of the budget that is spent after `step` steps."""
        share = (step - self.anchor_step) / (self.total - self.anchor_step)
        return self.anchor_progress + (1 - self.anchor_progress) * share

    def ending(self, step: int, total: int) -> Schedule:
        """The rest of the schedule from `step` on, squeezed or stretched to end at `total`."""
        return Schedule(total=total, anchor_step=step, anchor_progress=self.progress(step))


def learning_rate(train: Train, progress: float) -> float:
    """The rate in the middle of a step at `progress` in [0, 1]: a linear warm-up, then the schedule."""
    if progress < train.warmup:
        return train.lr * progress / train.warmup
    if train.schedule == "constant":
        return train.lr
    left = (1 - progress) / (1 - train.warmup)
    shape = left if train.schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * left)
    return train.lr * (train.final_lr + (1 - train.final_lr) * shape)


@dataclass
class Deadline:
    """Watches the seconds of steps, and those of evaluations and checkpoints.

    The first evaluation and the first checkpoint are not counted: they compile or allocate, which is part of the
    planned set-up. On a machine that is slower than planned, the finish takes longer too, and the last step must be
    done earlier.
    """

    clock: Clock
    last_step: float
    """When the last step must be done, on the clock, so that the `finish_seconds` fit."""
    overhead_per_step: float
    """Planned seconds of evaluations and checkpoints per step."""
    planned_step_seconds: float | None = None
    finish_seconds: float = 0.0
    """What follows the last step."""
    stops_per_step: float = 1.0
    """Planned evaluations and checkpoints per step; at the beginning they are more frequent."""
    idle_seconds: float = math.inf
    """A schedule that would end earlier than this may be lengthened."""
    step_seconds: float = field(default=0.0, init=False)
    """Spent in steps so far in this process."""
    _steps: int = field(default=0, init=False)
    _recent: deque[float] = field(default_factory=deque, init=False)
    _recent_seconds: float = field(default=0.0, init=False)
    _kinds: set[str] = field(default_factory=set, init=False)
    _stops: int = field(default=0, init=False)
    _stop_seconds: float = field(default=0.0, init=False)

    def finish_takes(self, seconds: float) -> None:
        """Correct the estimate of what follows the last step."""
        self.last_step += self.finish_seconds - seconds
        self.finish_seconds = seconds

    def took_step(self, seconds: float) -> None:
        self._steps += 1
        self.step_seconds += seconds
        self._recent.append(seconds)
        self._recent_seconds += seconds
        while len(self._recent) > 1 and self._recent_seconds > max(_SETTLED_SECONDS, self.step_seconds / 2):
            self._recent_seconds -= self._recent.popleft()

    def took_overhead(self, seconds: float, kind: str) -> None:
        """Count one evaluation or checkpoint."""
        if kind in self._kinds:
            self._stops += 1
            self._stop_seconds += seconds
        self._kinds.add(kind)

    @property
    def seconds_per_step(self) -> float | None:
        """Mean over the later half of the steps, or over the last two seconds if that is more."""
        return self._recent_seconds / len(self._recent) if self._recent else None

    def seconds_left(self, steps: int) -> float | None:
        """How long `steps` more will take, with evaluations and checkpoints; None before the first step."""
        if self.seconds_per_step is None:
            return None
        return steps * (self.seconds_per_step + self._overhead_per_step())

    def _overhead_per_step(self) -> float:
        planned = _PLANNED_STOPS * self.overhead_per_step
        return (planned + self.stops_per_step * self._stop_seconds) / (_PLANNED_STOPS + self._stops)

    def time_left(self) -> float:
        late = 0.0
        if self.planned_step_seconds and self.seconds_per_step and self._settled:
            # the smaller one: neither a slow moment nor the first steps, which compile, show the speed of the machine
            usual = min(self.seconds_per_step, self.step_seconds / self._steps)
            late = self.finish_seconds * max(0.0, usual / self.planned_step_seconds - 1)
        return self.last_step - late - self.clock.elapsed()

    @property
    def _settled(self) -> bool:
        return self._steps >= _SETTLED_STEPS and self.step_seconds >= _SETTLED_SECONDS

    def must_shorten_to(self, left: int) -> int | None:
        """How many of the `left` steps still fit; None if all of them do, 0 if the time is up."""
        needed, time_left = self.seconds_left(left), self.time_left()
        if left == 0 or needed is None or needed <= time_left:
            return None
        if time_left <= needed / left:
            return 0
        last_moments = time_left < 2 * _SETTLED_SECONDS
        slack = _EARLY_SLACK if self.step_seconds < needed / 2 else _SLACK
        if not last_moments and (not self._settled or needed <= time_left * (1 + slack)):
            return None
        return min(left - 1, int(left * time_left / needed * (1 - _SLACK)))

    def may_lengthen_to(self, left: int, guess: bool = False) -> int | None:
        """How many steps fit, where the `left` ones leave more than the permitted idle time; None before half of the
        time is spent. With `guess`, a few steps suffice for an estimate, which may be corrected later."""
        needed, time_left = self.seconds_left(left), self.time_left()
        if not left or needed is None or not (guess or self._settled) or self.step_seconds < needed:
            return None
        sure, idle = time_left * (1 - _UNCERTAIN), max(self.idle_seconds, _IDLE_STEPS * needed / left)
        if math.isinf(idle) or sure - needed <= idle:
            return None
        fits = int(left * (sure - _STILL_IDLE * idle) / needed)
        return fits if fits > left else None
