"""Keeping the deadline: will the rest of the course end in time, and where should it end if not, or far too early?"""

from __future__ import annotations

import math
from collections import deque

from shoestring.core.clock import Clock

_SETTLED_STEPS = 5
_SETTLED_SECONDS = 2.0
_SLACK, _EARLY_SLACK = 0.01, 0.05
"""An overshoot below this fraction of the time that is left is waited out; it is mended later if it stays. Early means
that less than a third of the steps are behind: a slow moment says little then, and there is much left to mend."""
_STILL_IDLE, _UNCERTAIN = 0.5, 0.02
"""What a course that is made longer leaves, else a slow moment would shorten it again: of the time that may be idle,
and of all that is left, as the next steps may take so much longer than the last."""
_IDLE_STEPS = 2
"""For so many steps no course is made longer: the time of one of them is not known so well."""
_PLANNED_STOPS = 2
"""As many evaluations and checkpoints as the planned seconds of one count for, beside those that were seen."""


class Pace:
    """Watches the seconds a step takes, and what evaluation and saving take beside it."""

    def __init__(
        self,
        clock: Clock,
        deadline: float,
        overhead_per_step: float,
        planned_step_seconds: float | None = None,
        finish_seconds: float = 0.0,
        stops_per_step: float = 1.0,
        idle_seconds: float = math.inf,
    ):
        """`deadline` is when the last step must be done, on `clock`, for the `finish_seconds` that follow to fit;
        `overhead_per_step` is the planned cost of evaluations and checkpoints, spread over the steps, and
        `stops_per_step` their planned number: those at the beginning, which come more often, say what one costs, but
        for the first of each kind, which compiles or takes new memory and is part of the set-up that was planned. On a
        machine that takes longer than `planned_step_seconds` a step, the finish will take longer too, and the deadline
        moves. A course that would end more than `idle_seconds` early may be made longer."""
        self._clock = clock
        self._deadline = deadline
        self._planned_overhead = overhead_per_step
        self._planned_step = planned_step_seconds
        self._finish = finish_seconds
        self._stops_per_step, self._idle = stops_per_step, idle_seconds
        self._recent: deque[float] = deque()
        self._recent_seconds = 0.0
        self.step_seconds = 0.0
        """Spent in steps so far in this process."""
        self._steps = 0
        self._kinds: set[str] = set()
        self._stops, self._stop_seconds = 0, 0.0

    def finish_takes(self, seconds: float) -> None:
        """What follows the last step is known better now."""
        self._deadline += self._finish - seconds
        self._finish = seconds

    def took_step(self, seconds: float) -> None:
        self._steps += 1
        self.step_seconds += seconds
        self._recent.append(seconds)
        self._recent_seconds += seconds
        while len(self._recent) > 1 and self._recent_seconds > max(_SETTLED_SECONDS, self.step_seconds / 2):
            self._recent_seconds -= self._recent.popleft()

    def took_overhead(self, seconds: float, kind: str) -> None:
        """For one evaluation, or one checkpoint."""
        if kind in self._kinds:
            self._stops += 1
            self._stop_seconds += seconds
        self._kinds.add(kind)

    @property
    def seconds_per_step(self) -> float | None:
        """Over the later half of the steps, or the last two seconds where that is more."""
        return self._recent_seconds / len(self._recent) if self._recent else None

    def seconds_left(self, steps: int) -> float | None:
        """How long `steps` more will take, with evaluations and checkpoints; None before the first step."""
        if self.seconds_per_step is None:
            return None
        return steps * (self.seconds_per_step + self._overhead_per_step())

    def _overhead_per_step(self) -> float:
        planned = _PLANNED_STOPS * self._planned_overhead
        return (planned + self._stops_per_step * self._stop_seconds) / (_PLANNED_STOPS + self._stops)

    def time_left(self) -> float:
        late = 0.0
        if self._planned_step and self.seconds_per_step and self._settled:
            # a slow moment is not all of the machine, and the first steps, which compile, are not its pace
            usual = min(self.seconds_per_step, self.step_seconds / self._steps)
            late = self._finish * max(0.0, usual / self._planned_step - 1)
        return self._deadline - late - self._clock.elapsed()

    @property
    def _settled(self) -> bool:
        return self._steps >= _SETTLED_STEPS and self.step_seconds >= _SETTLED_SECONDS

    def must_shorten_to(self, left: int) -> int | None:
        """How many of the `left` steps still fit, when that is not all of them; 0 when the time is up."""
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

    def may_lengthen_to(self, left: int) -> int | None:
        """How many steps fit and leave most of what may be idle, where the `left` ones leave more; from half way on."""
        needed, time_left = self.seconds_left(left), self.time_left()
        if not left or needed is None or not self._settled or self.step_seconds < needed:
            return None
        sure, idle = time_left * (1 - _UNCERTAIN), max(self._idle, _IDLE_STEPS * needed / left)
        if math.isinf(idle) or sure - needed <= idle:
            return None
        fits = int(left * (sure - _STILL_IDLE * idle) / needed)
        return fits if fits > left else None
