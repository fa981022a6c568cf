"""What several processes do in the tests: a small model on rows that are one stream, or packed with unequal gaps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

from shoestring.core.sections import Model
from shoestring.core.train_section import Train
from shoestring.data.pack.order import RowIndex, step_rows
from shoestring.models.batch import Batch
from shoestring.models.language_model import build
from shoestring.parallel.process_group import ProcessGroup
from shoestring.training.checkpoint import State
from shoestring.training.learner import Learner
from shoestring.training.loop import AnyHook, Loop, Report
from shoestring.training.schedule import Schedule
from shoestring.training.stepper import Stepper

VOCABULARY, LENGTH, ROWS, BATCH, STEPS = 29, 9, 40, 6, 20
ALONE = ProcessGroup(0, 1, torch.device("cpu"))


class PlainRows:
    """Rows of random tokens."""

    def __init__(self) -> None:
        self._ids = np.random.default_rng(0).integers(0, VOCABULARY, (ROWS, LENGTH + 1))

    def order(self, seed: int, step: int, batch: int) -> RowIndex:
        return step_rows(seed, ROWS, step, batch)

    def batch(self, index: RowIndex) -> Batch:
        return self.rows(index.rows)

    def rows(self, numbers: NDArray[np.int64]) -> Batch:
        return Batch(torch.from_numpy(self._ids[numbers]))


class PackedRows(PlainRows):
    """The same rows, row i with two documents and i modulo 5 places of padding: rows predict unequally often."""

    def rows(self, numbers: NDArray[np.int64]) -> Batch:
        segments = [[1] * 4 + [2] * (LENGTH + 1 - 4 - i % 5) + [0] * (i % 5) for i in numbers.tolist()]
        return super().rows(numbers)._replace(segments=torch.tensor(segments), document_mask=True)


SOURCES: dict[str, Callable[[], PlainRows]] = {"plain": PlainRows, "packed": PackedRows}


def make(
    group: ProcessGroup = ALONE,
    shard: bool = False,
    width: int = 8,
    seed: int = 3,
    double: bool = False,
    dropout: float = 0.0,
    **settings: Any,
) -> Learner:
    model = build(Model(width=width, layers=2, heads=1, dropout=dropout), VOCABULARY, LENGTH, seed)
    return Learner(
        model.double() if double else model, Train(batch=BATCH, lr=1e-2, **settings), group.device, group, shard
    )


def train(
    learner: Learner,
    source: str,
    per_device: int,
    steps: int = STEPS,
    first: int = 0,
    hooks: tuple[AnyHook, ...] = (),
    halved: Callable[[int, int], None] | None = None,
) -> list[tuple[float, float]]:
    """The loss and the norm of the gradient at each step."""
    found = []

    def note(state: State, report: Report) -> State:
        found.append((report.loss.mean, report.grad_norm))
        return state

    state = State(recipe="", data="", schedule=Schedule(total=steps), step=first)
    settings = Train(batch=BATCH, lr=1e-2)
    stepper = Stepper(learner, SOURCES[source](), settings, batch=BATCH, per_device=per_device, seed=1)
    Loop(stepper, (note, *hooks), halved=halved).run(state)
    return found


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def weights(learner: Learner) -> dict[str, Tensor]:
    return {name: whole(p) for name, p in learner.parameters.items()}
