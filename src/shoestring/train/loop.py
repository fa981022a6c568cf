"""The loop. A *step* is one update with the effective batch; step s reads the rows that the source's `order` names.

After each step the hooks run in order with the new `State`; each returns the state to go on with.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import Fault
from shoestring.core.recipe import Train
from shoestring.models import Batch
from shoestring.train.checkpoint import State
from shoestring.train.course import learning_rate
from shoestring.train.learner import Learner, SomeRows, Sum


class TokenSource(Protocol):
    """Anything that gives row i."""

    def order(self, seed: int, step: int, batch: int) -> NDArray[np.int64]:
        """The numbers of the rows that a step reads: a pure function of its arguments."""
        ...

    def rows(self, indices: NDArray[np.int64]) -> SomeRows:
        """Rows by number, (n, length + 1), as a batch where they are packed; tensors may lie on any device."""
        ...


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the step that was just taken has to tell."""

    loss: Sum
    lr: float
    grad_norm: float
    seconds: float


Hook = Callable[[State, Report], State]


def train(
    learner: Learner,
    source: TokenSource,
    settings: Train,
    state: State,
    hooks: Sequence[Hook],
    *,
    batch: int,
    per_device: int,
    order_seed: int,
) -> State:
    """Take steps from where `state` stands to the end of its course."""
    while state.step < state.course.total:
        started = time.perf_counter()
        indices = source.order(order_seed, state.step, batch)
        rows = Batch.of(source.rows(indices))
        loss = learner.accumulate(rows, per_device)
        if not math.isfinite(loss.nats):
            raise _not_finite(learner, state.step, indices, rows, per_device)
        lr = learning_rate(settings, state.course.progress(state.step + 0.5))
        norm = learner.update(loss.predictions, lr)
        if not math.isfinite(norm):
            raise _fault(state.step, f"gradient is not finite, though the loss is {loss.mean:.4f}", indices.tolist())
        state = replace(state, step=state.step + 1)
        report = Report(loss=loss, lr=lr, grad_norm=norm, seconds=time.perf_counter() - started)
        for hook in hooks:
            state = hook(state, report)
    return state


def _not_finite(learner: Learner, step: int, indices: NDArray[np.int64], rows: Batch, per_device: int) -> Fault:
    """Name the rows that did it, by scoring the batch again with the weights as they still are."""
    wrong = ~learner.score(rows, per_device).isfinite() & rows.predicted().cpu()
    bad = wrong.any(dim=1).nonzero().flatten().tolist()
    return _fault(step, "loss is not finite", [int(indices[i]) for i in bad] or indices.tolist())


def _fault(step: int, what: str, rows: list[int]) -> Fault:
    return Fault(
        f"step {step}: the {what}; the update was not made, and the last checkpoint is good. Rows: {_some(rows)}. "
        f"A smaller train.lr, a longer train.warmup or a smaller train.clip may help"
    )


def _some(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} and {len(numbers) - 8} more" if len(numbers) > 8 else shown
