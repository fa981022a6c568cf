"""The deadline of a run: how many steps still fit, by the speed of the steps so far.

Progress is the share of the schedule that is done, from 0 to 1. Estimates lag behind a machine that changes its speed,
which costs little: what is left shrinks, and with it every error.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from shoestring.core.clock import Clock
from shoestring.core.units import Seconds

_SETTLED_STEPS, _SETTLED_SECONDS = 10, 2.0
"""After so much, steps show a speed."""
_SETTLED_SHARE = 0.2
"""And after so much of the remaining time, few steps must do."""
_UNSETTLED_SHARE = 0.5
"""Of the time: until then, slow steps beside a compiler do not shorten the schedule, and begin no cool-down."""
_FIRST_STEPS = 5
"""They may compile and allocate, and do not count as soon as there is another."""
_FEW_STEPS = 3
_EARLY = 1 / 3
"""Progress below which a small deviation is left to a later correction, which costs as little."""
_SLACK, _EARLY_SLACK = 0.01, 0.05
"""A deviation below this share of the remaining time is ignored; early, two standard errors are added to it."""
_UNCERTAIN = 0.02
"""The share of the remaining time that a lengthened schedule leaves, lest a slow moment shorten it again."""
_MOST_SHORTER, _STEADY = 4, 0.1
"""A schedule is shortened to this part at the most where the speed is not sure: the means of the steps differ by more
than such a share, or the standard error of one is more. So it is where the evaluations that are due would take all that
is left. It may be shortened again. Its learning rate falls with it, and does not come back after a slow moment."""
_IDLE_STEPS = 2
"""A schedule is not lengthened by this many steps or fewer: the time of a step is not known that well."""
_PAUSE_SHARE, _PAUSE_PROGRESS = 0.1, 0.05
"""Between two changes passes this share of the remaining time, or so much of the schedule."""
_PLANNED_STOPS = 2
"""Weight of the planned seconds of an evaluation or checkpoint, in observed ones."""
_MOST_SLOWER = 3.0
"""How much slower than planned the finish is taken to be, at most, where only the time of steps is known: that may be
off because it was measured badly."""
_FINISH_SLACK = 2.0
"""How much slower the machine may be before the page and the baselines take longer than planned: a free core takes half
of the seconds that are planned for them."""
_EVALUATION_SLACK = 2.0
"""How much longer a forward pass over held-out rows may take than a third of a step of as many."""
_NOTABLE = 0.05
"""A cause is named if it changes the time by this share."""


@dataclass
class _Stops:
    """Evaluations, or checkpoints: the planned seconds of one, and those of the ones so far but the first.

    The first compiles or allocates, which is part of the planned set-up.
    """

    planned: float
    count: int = 0
    seconds: float = 0.0
    first: float | None = None

    def took(self, seconds: float) -> None:
        if self.first is None:
            self.first = seconds
            return
        self.count += 1
        self.seconds += seconds

    @property
    def each(self) -> float:
        return (_PLANNED_STOPS * self.planned + self.seconds) / (_PLANNED_STOPS + self.count)

    @property
    def slower(self) -> float | None:
        """Observed / planned seconds; None: unknown."""
        return self.seconds / self.count / self.planned if self.count and self.planned else None


class _Window:
    """The latest steps: at least `least` of them, and `seconds`."""

    def __init__(self, least: int) -> None:
        self._least = least
        self.clear()

    def clear(self) -> None:
        self.steps: deque[float] = deque()
        self._total = self._squares = 0.0

    def add(self, step: float, seconds: float) -> None:
        self.steps.append(step)
        self._total += step
        self._squares += step**2
        while len(self.steps) > self._least and self._total - self.steps[0] > seconds:
            gone = self.steps.popleft()
            self._total -= gone
            self._squares -= gone**2

    @property
    def mean(self) -> float:
        return self._total / len(self.steps)

    @property
    def error(self) -> float:
        """The standard error of the mean, as a share of it."""
        count = len(self.steps)
        return math.sqrt(max(0.0, self._squares / count / self.mean**2 - 1) / count) if self.mean > 0 else 0.0


@dataclass
class Deadline:
    """Watches the seconds of steps, and those of evaluations and checkpoints."""

    clock: Clock
    last_step: float
    """When the last step must be done, on the clock, so that the `finish_seconds` fit."""
    planned_step_seconds: float | None = None
    finish_seconds: float = 0.0
    """What follows the last step."""
    evaluations: float = 0.0
    """In a whole schedule, evenly by progress; the last one follows the last step."""
    evaluation_seconds: float = 0.0
    """Planned, of one."""
    checkpoint_seconds: float = 0.0
    checkpoint_every: float = math.inf
    """Seconds between checkpoints; each evaluation may have one more."""
    most_saving: float = 0.9
    """The share of the time that regular checkpoints may take."""
    most_evaluating: float = 0.1
    """The share of the remaining time that evaluations may take, with their checkpoints, where one takes long:"""
    long_evaluation: float = math.inf
    """more than so many seconds."""
    idle_seconds: float = math.inf
    """A schedule that would end earlier than this may be lengthened."""
    spent_before: float = 0.0
    """Seconds of earlier sessions: a session may take the whole time for the planned steps, but not for more."""
    planned_start: float | None = None
    """When the first step was expected to begin, on the clock."""
    settling: bool = False
    """Whether steps still share the host with a compiler, so that one that takes long says little about the next."""
    estimated: bool = False
    """Whether the planned seconds were only counted, so that other ones say nothing about the machine."""
    step_seconds: float = field(default=0.0, init=False)
    """Spent in steps so far in this process."""

    def __post_init__(self) -> None:
        self._steps, self._first_seconds = 0, 0.0
        self._started: float | None = None
        self._half, self._short = _Window(1), _Window(_FIRST_STEPS)
        self._stops = {"evaluation": _Stops(self.evaluation_seconds), "checkpoint": _Stops(self.checkpoint_seconds)}
        self._early = 0
        """Steps before which an evaluation shows neither its seconds nor its memory."""
        self._changed: tuple[float, float] | None = None
        """Clock and progress at the last change."""

    def finish_takes(self, seconds: float) -> None:
        """Correct the estimate of what follows the last step."""
        self.last_step += self.finish_seconds - seconds
        self.finish_seconds = seconds

    def took_step(self, seconds: float) -> None:
        self._steps += 1
        if self._started is None:
            self._started = self.clock.elapsed() - seconds
        if self._steps in (2, _FIRST_STEPS + 1):  # the very first one says less than any other
            self._half.clear()
            self._short.clear()
        self.step_seconds += seconds
        if self._steps <= _FIRST_STEPS:
            self._first_seconds += seconds
        self._half.add(seconds, max(_SETTLED_SECONDS, self.step_seconds / 2))
        self._short.add(seconds, _SETTLED_SECONDS)

    def begin_again(self) -> None:
        """Forget the seconds of the steps and evaluations so far: those that follow are faster, but for the very next.

        The memory of an evaluation is another, too, so one more is awaited before a plan is final, and not right away:
        the first steps leave memory that it would use, which is no longer there when their passes are recorded.
        """
        self.settling, self._early = False, _FIRST_STEPS
        self._stops["evaluation"] = _Stops(self.evaluation_seconds)
        self._steps, self._first_seconds, self.step_seconds = 0, 0.0, 0.0
        self._half.clear()
        self._short.clear()

    def took_overhead(self, seconds: float, kind: str) -> None:
        """Count one "evaluation" or "checkpoint"."""
        if kind != "evaluation" or self._steps >= self._early:
            self._stops[kind].took(seconds)

    @property
    def seconds_per_step(self) -> float | None:
        """Mean over the later half of the time in steps, or over the last two seconds if that is more."""
        return self._half.mean if self._steps else None

    def _means(self) -> tuple[float, float]:
        """The least and the largest mean seconds per step: of the last steps, the later half, the whole run."""
        means = [self._short.mean, self._half.mean]
        if self._steps > _FIRST_STEPS:
            means.append((self.step_seconds - self._first_seconds) / (self._steps - _FIRST_STEPS))
        return min(means), max(means)

    def seconds_left(self, left: int, progress: float) -> float | None:
        """How long `left` more steps will take, with evaluations and checkpoints; None before the first step."""
        return None if self.seconds_per_step is None else self._needed(left, progress, self.seconds_per_step)

    def _needed(self, left: int, progress: float, step: float) -> float:
        return (left * step + self._evaluating(progress)) / (1 - self._saving_share)

    def saving_left(self, left: int, progress: float) -> float:
        """How long the checkpoints during `left` more steps will take, by those so far; the last one not."""
        regular = self._saving_share * (self.seconds_left(left, progress) or 0.0)
        return regular + max(0, self._due(progress) - 1) * self._stops["checkpoint"].each

    def _fitting(self, seconds: float, progress: float, step: float) -> float:
        """The steps that fit: the inverse of `_needed`."""
        return max(0.0, seconds * (1 - self._saving_share) - self._evaluating(progress)) / max(1e-9, step)

    def _evaluating(self, progress: float) -> float:
        """Seconds of the evaluations that are due, with their checkpoints; that of the last one is in the finish."""
        due = self._due(progress)
        evaluation, checkpoint = self._stops["evaluation"].each, self._stops["checkpoint"].each
        seconds = due * evaluation + max(0, due - 1) * checkpoint
        return min(seconds, max(evaluation, self.most_evaluating * self.time_left())) if self._long_stops else seconds

    def _due(self, progress: float) -> int:
        """Evaluations that are due."""
        return math.ceil(self.evaluations * (1 - progress) - 1e-9)

    @property
    def _long_stops(self) -> bool:
        return self._evaluated > self.long_evaluation

    @property
    def _evaluated(self) -> float:
        """Seconds of an evaluation with its checkpoint."""
        return self._stops["evaluation"].each + self._stops["checkpoint"].each

    def too_soon(self, last: float) -> bool:
        """Whether another evaluation so soon after the one that ended at `last`, on the clock, would take too much."""
        return self._long_stops and self.clock.elapsed() - last < self._evaluated / self.most_evaluating

    @property
    def _saving_share(self) -> float:
        """Of the time, what regular checkpoints take."""
        return min(self.most_saving, self._stops["checkpoint"].each / self.checkpoint_every)

    def time_left(self) -> float:
        return self.last_step - self._later_finish() - self.clock.elapsed()

    def _later_finish(self) -> float:
        """Seconds that the finish will take longer than planned: its evaluation as those that were seen, and the rest
        as far as the machine is slower than was planned for."""
        slower, seen = self._slower(), self._stops["evaluation"].slower
        evaluation = min(self.finish_seconds, self.evaluation_seconds)
        scoring = evaluation * (max(1.0, slower if seen is None else seen) - 1)
        return scoring + (self.finish_seconds - evaluation) * (max(1.0, slower / _FINISH_SLACK) - 1)

    def _slower(self) -> float:
        """How much slower than planned the machine is: as much as both evaluations and steps are.

        Where no evaluation was seen, the least mean of a step counts: a slow moment is not the speed of a machine.
        """
        if not self.planned_step_seconds or not self.settled or self.settling or self.estimated:
            return 1.0
        (fast, slow), evaluations = self._means(), self._stops["evaluation"].slower
        if evaluations is None:
            return max(1.0, min(fast / self.planned_step_seconds, _MOST_SLOWER))
        return max(1.0, min(slow / self.planned_step_seconds, evaluations))

    def replan(self, step_seconds: float | None, evaluation_seconds: float) -> None:
        """Compare with these seconds from now on, which the steps so far have shown."""
        self.planned_step_seconds, self.planned_start = step_seconds, self._started or 0.0
        self.estimated = False
        self.evaluation_seconds = self._stops["evaluation"].planned = evaluation_seconds

    def evaluation_seen(self, expected: float) -> tuple[float, float] | None:
        """Seconds of an evaluation, and by how many the first one took longer; None: there was none.

        Where there was only the first, which compiles or allocates, another takes twice as long as `expected` at most.
        """
        stops = self._stops["evaluation"]
        if stops.first is None:
            return None
        each = stops.seconds / stops.count if stops.count else min(stops.first, _EVALUATION_SLACK * expected)
        return each, max(0.0, stops.first - each)

    @property
    def differing(self) -> float:
        """The share by which the means of the last steps, of the later half and of all differ."""
        fast, slow = self._means()
        return slow / max(1e-9, fast) - 1

    @property
    def settled(self) -> bool:
        """Whether the steps so far show a speed."""
        return self._steps >= _SETTLED_STEPS and self.step_seconds >= _SETTLED_SECONDS

    def steps_to_take(self, left: int, progress: float, grow: bool = True) -> int | None:
        """How many steps should follow in place of `left`; None: just these. 0: the time is up.

        A schedule is shortened if `left` steps are too many even at the least mean of the seconds per step, and
        lengthened, if it may `grow`, where time is left even at the largest.
        """
        if not self._steps:
            return None
        time_left, (fast, slow) = self.time_left(), self._means()
        if left and time_left < self._evaluating(1 - 1e-6) + self._longest():
            return 0
        if not self._may_change(progress, time_left):
            return None
        found = self._shorter(left, progress, time_left, fast) if left else None
        if found is None and grow:
            found = self._longer(left, progress, time_left - self.spent_before, slow)
        if found is not None:
            self._changed = self.clock.elapsed(), progress
        return found

    def reconsider(self) -> None:
        """Let the schedule change at once, however recent the last change is."""
        self._changed = None

    def _longest(self) -> float:
        """Seconds that the next step may take; the very first one says nothing about it."""
        if self._steps == 1 and self.planned_step_seconds is not None:
            return self.planned_step_seconds
        return self._short.mean if self.settling else max(self._short.steps)

    def _may_change(self, progress: float, time_left: float) -> bool:
        if self._changed is None:
            return True
        when, then = self._changed
        return self.clock.elapsed() - when >= _PAUSE_SHARE * time_left or progress - then >= _PAUSE_PROGRESS

    def _shorter(self, left: int, progress: float, time_left: float, step: float) -> int | None:
        if self.settling and self.clock.elapsed() < _UNSETTLED_SHARE * self.last_step:
            return None
        enough = self._steps >= _FEW_STEPS and self.step_seconds >= _SETTLED_SHARE * time_left
        fits = self._fitting(time_left, progress, step)
        slack = self._early_slack() if progress < _EARLY else _SLACK
        if left <= fits * (1 + slack) or not (self.settled or enough):
            return None
        steady = max(self.differing, self._half.error) < _STEADY and fits >= 1
        least = 0 if steady else left // _MOST_SHORTER
        return min(left - 1, max(int(fits * (1 - _SLACK)), least))

    def _longer(self, left: int, progress: float, time_left: float, step: float) -> int | None:
        """Decided early, because a schedule that is done cannot be stretched: even by a single step if it must be."""
        several = len(self._half.steps) >= _FEW_STEPS or self._steps > 2 * _FIRST_STEPS
        known = progress >= 0.25 or (several and (progress >= 0.05 or self.step_seconds >= _SETTLED_SECONDS))
        if not known or math.isinf(self.idle_seconds):
            return None
        patient = 1 if left else 2  # a schedule that is through was estimated before
        sure, idle = time_left * (1 - _UNCERTAIN), patient * max(self.idle_seconds, _IDLE_STEPS * step)
        early = self._early_slack() * time_left if progress < _EARLY else 0.0
        if sure - self._needed(left, progress, step) <= max(idle, early):
            return None
        fits = int(self._fitting(sure, progress, step))
        return fits if fits > left else None

    def _early_slack(self) -> float:
        return _EARLY_SLACK + 2 * self._half.error

    def why(self, unit: str = "step") -> str:
        """What differs from the plan, for people; at least the time of a step, which is called `unit`."""
        found, step = [], self.seconds_per_step or 0.0
        step_takes = f"{'an' if unit[0] in 'aeiou' else 'a'} {unit} takes {Seconds(step).short()}"
        evaluation, planned = self._stops["evaluation"], self.planned_step_seconds
        budget = max(1e-9, self.last_step)
        if planned and abs(step / planned - 1) > _NOTABLE:
            found.append(f"{step_takes}, planned: {Seconds(planned).short()}")
        if self.evaluations * abs(evaluation.each - evaluation.planned) > _NOTABLE * budget:
            took, was = Seconds(evaluation.each).short(), Seconds(evaluation.planned).short()
            found.append(f"an evaluation takes {took}, planned: {was}")
        started = self._started or 0.0
        if self.planned_start is not None and abs(started - self.planned_start) > _NOTABLE * budget:
            began, was = Seconds(started).short(), Seconds(self.planned_start).short()
            found.append(f"training began after {began}, planned: {was}")
        return "; ".join(found) or step_takes
