"""The schedule of a run, which has a learning rate for every step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoestring.core.sections import Train


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """From an anchor (step, progress) straight to progress 1 at step `total`.

    A run starts at (0, 0). When it is shortened or lengthened, the next step to begin becomes the anchor. So its
    progress, and with it the learning rate, has no jump, and is complete after the last step.
    """

    total: int
    anchor_step: int = 0
    anchor_progress: float = 0.0

    def progress(self, step: float) -> float:
        """The fraction of the budget that is spent after `step` steps."""
        if self.total == self.anchor_step:  # it was cut at its anchor, and is over
            return 1.0
        share = (step - self.anchor_step) / (self.total - self.anchor_step)
        return self.anchor_progress + (1 - self.anchor_progress) * share

    def ending(self, step: int, total: int) -> Schedule:
        """The rest of the schedule from `step` on, squeezed or stretched to end at `total`.

        A schedule that is through continues from the middle of its last step, which had the last learning rate.
        """
        done = self.progress(step) if step < self.total else self.progress(step - 0.5)
        return Schedule(total=total, anchor_step=step, anchor_progress=done)


def learning_rate(train: Train, progress: float) -> float:
    """The rate in the middle of a step at `progress` in [0, 1]: a linear warm-up, then the schedule."""
    if progress < train.warmup:
        return train.lr * progress / train.warmup
    if train.schedule == "constant":
        return train.lr
    left = (1 - progress) / (1 - train.warmup)
    shape = left if train.schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * left)
    return train.lr * (train.final_lr + (1 - train.final_lr) * shape)
