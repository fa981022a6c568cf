"""The schedule of a run, which has a learning rate for every step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from shoestring.core.sections import number
from shoestring.core.train_section import Train
from shoestring.core.warmup import MOST, warmup_share


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """A line of learning rates from 0 at progress `start` to the peak at `end`: a share of the steps, at least `least`.

    `start` is 0 until the schedule changes during the warm-up. It may then be below 0.
    """

    share: float
    least: int
    end: float
    start: float = 0.0

    @classmethod
    def planned(cls, total: int, share: float, least: int) -> Warmup:
        """The warm-up of a run of `total` steps."""
        return cls(share=share, least=least, end=warmup_share(total, share, least))

    def rate(self, peak: float, progress: float) -> float:
        """The learning rate, up to `end`."""
        return peak * (progress - self.start) / (self.end - self.start)

    def through(self, reached: float, progress: float, end: float) -> Warmup:
        """The warm-up that has `reached` this share of the peak at `progress`, and ends at `end`."""
        return replace(self, end=end, start=(progress - reached * end) / (1 - reached))


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """From an anchor (step, progress) straight to progress 1 at step `total`.

    A run starts at (0, 0). When it is shortened or lengthened, the next step to begin becomes the anchor. So its
    progress, and with it the learning rate, has no jump, and is complete after the last step.
    """

    total: int
    anchor_step: int = 0
    anchor_progress: float = 0.0
    warmup: Warmup | None = None
    """None: there is no learning rate, or a run of an older version warms up for the recipe's share of the progress."""
    cooldown: float | None = None
    """The share at the end in which the learning rate decays from its peak; None: it decays all the time, or never."""

    def progress(self, step: float) -> float:
        """The fraction of the budget that is spent after `step` steps."""
        if self.total == self.anchor_step:  # it was cut at its anchor, and is over
            return 1.0
        share = (step - self.anchor_step) / (self.total - self.anchor_step)
        return self.anchor_progress + (1 - self.anchor_progress) * share

    def ending(self, step: int, total: int) -> Schedule:
        """The rest of the schedule from `step` on, squeezed or stretched to end at `total`.

        A cool-down that has not begun moves with the end.

        A schedule that is through continues from the middle of its last step, which had the last learning rate. A
        warm-up that is not through ends where it would in a run of `total` steps; where that is too near or passed, it
        takes as many more steps as before, but at most a part of the rest.
        """
        done = self.progress(step) if step < self.total else self.progress(step - 0.5)
        found = self._at_peak(step, total) if self.is_movable(done) else self._continued(step, total, done)
        if self.warmup is None or total <= step:
            return found
        if done >= self.warmup.end:
            end = min(self._steps_to(self.warmup.end) / total, found.progress(step)) if self.is_movable(done) else None
            return found if end is None else replace(found, warmup=replace(self.warmup, start=0.0, end=end))
        left = self._steps_to(self.warmup.end) - step
        fresh = total * warmup_share(total, self.warmup.share, self.warmup.least)
        end = max(fresh, step + min(left, MOST * (total - step)))
        reached = self.warmup.rate(1.0, done)
        return replace(found, warmup=self.warmup.through(reached, found.progress(step), found.progress(end)))

    def is_movable(self, progress: float) -> bool:
        """Whether a cool-down is still to come: until then the learning rate does not depend on the end."""
        return self.cooldown is not None and progress < 1 - self.cooldown

    def begins_cooldown(self, step: int) -> bool:
        """Whether the next step is the first one of the cool-down."""
        if self.cooldown is None:
            return False
        start = 1 - self.cooldown + 1e-12
        return self.progress(step) <= start < self.progress(step + 1)

    def _at_peak(self, step: int, total: int) -> Schedule:
        """The schedule of a run that had `total` steps from the start; its cool-down begins at `step` at the latest."""
        whole = replace(self, total=total, anchor_step=0, anchor_progress=0.0)
        if whole.is_movable(whole.progress(step)):
            return whole
        assert self.cooldown is not None, "it is movable"
        return replace(whole, anchor_step=step, anchor_progress=1 - self.cooldown)

    def _continued(self, step: int, total: int, done: float) -> Schedule:
        return replace(self, total=total, anchor_step=step, anchor_progress=done)

    def _steps_to(self, progress: float) -> float:
        """The inverse of `progress`."""
        share = (progress - self.anchor_progress) / (1 - self.anchor_progress)
        return self.anchor_step + share * (self.total - self.anchor_step)


def learning_rate(train: Train, progress: float, warmup: Warmup | None = None) -> float:
    """The rate in the middle of a step at `progress` in [0, 1]: a linear warm-up, then the schedule."""
    peak = number(train.lr)
    if warmup is None:
        warmup = Warmup(share=number(train.warmup), least=0, end=number(train.warmup))
    if progress < warmup.end:
        return warmup.rate(peak, progress)
    if train.schedule == "constant":
        return peak
    if train.cooling is not None:
        cooling = min(train.cooling, 1 - warmup.end)
        return peak * (train.final_lr + (1 - train.final_lr) * min(1.0, (1 - progress) / cooling))
    left = (1 - progress) / (1 - warmup.end)
    shape = left if train.schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * left)
    return peak * (train.final_lr + (1 - train.final_lr) * shape)
