"""The course of a run: how many steps, and the learning rate at each, by fraction of the budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoestring.core.recipe import Train


@dataclass(frozen=True, kw_only=True)
class Course:
    """From an anchor (step, progress) straight to progress 1 at step `total`.

    A run starts at (0, 0). One that is made shorter or longer gets a new anchor where it stands, so that its progress,
    and with it the learning rate, goes on without a jump and is through when the last step is taken.
    """

    total: int
    anchor_step: int = 0
    anchor_progress: float = 0.0

    def progress(self, step: float) -> float:
        """The fraction of the budget that is behind when `step` steps are."""
        share = (step - self.anchor_step) / (self.total - self.anchor_step)
        return self.anchor_progress + (1 - self.anchor_progress) * share

    def ending(self, step: int, total: int) -> Course:
        """The rest of the course from `step` on, squeezed or stretched to end at `total`."""
        return Course(total=total, anchor_step=step, anchor_progress=self.progress(step))


def learning_rate(train: Train, progress: float) -> float:
    """The rate in the middle of a step at `progress` in [0, 1]: a linear warm-up, then the schedule."""
    if progress < train.warmup:
        return train.lr * progress / train.warmup
    left = (1 - progress) / (1 - train.warmup)
    shape = {"constant": 1.0, "linear": left, "cosine": 0.5 - 0.5 * math.cos(math.pi * left)}[train.schedule]
    if train.schedule == "constant":
        return train.lr
    return train.lr * (train.final_lr + (1 - train.final_lr) * shape)
