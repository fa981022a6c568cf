"""What several processes do in the tests: a small model on rows that are one stream, or packed with unequal gaps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

from shoestring.core.recipe import Model, Train
from shoestring.data.order import step_rows
from shoestring.models import Batch, build
from shoestring.parallel.team import Team
from shoestring.train.checkpoint import State
from shoestring.train.course import Course
from shoestring.train.learner import Learner
from shoestring.train.loop import AnyHook, Loop, Report

VOCABULARY, LENGTH, ROWS, BATCH, STEPS = 29, 9, 40, 6, 20
ALONE = Team(0, 1, torch.device("cpu"))


class PlainRows:
    """Rows of random tokens."""

    def __init__(self) -> None:
        self._ids = np.random.default_rng(0).integers(0, VOCABULARY, (ROWS, LENGTH + 1))

    def order(self, seed: int, step: int, batch: int) -> NDArray[np.int64]:
        return step_rows(seed, ROWS, step, batch)

    def rows(self, indices: NDArray[np.int64]) -> Any:
        return self._ids[indices]


class PackedRows(PlainRows):
    """The same rows, row i with two documents and i modulo 5 places of padding: rows predict unequally often."""

    def rows(self, indices: NDArray[np.int64]) -> Batch:
        numbers = [[1] * 4 + [2] * (LENGTH + 1 - 4 - i % 5) + [0] * (i % 5) for i in indices.tolist()]
        return Batch(torch.from_numpy(super().rows(indices)), torch.tensor(numbers), within=True)


SOURCES: dict[str, Callable[[], PlainRows]] = {"plain": PlainRows, "packed": PackedRows}


def make(
    team: Team = ALONE,
    shard: bool = False,
    width: int = 8,
    seed: int = 3,
    double: bool = False,
    dropout: float = 0.0,
    **settings: Any,
) -> Learner:
    model = build(Model(width=width, layers=2, heads=1, dropout=dropout), VOCABULARY, LENGTH, seed)
    return Learner(
        model.double() if double else model, Train(batch=BATCH, lr=1e-2, **settings), team.device, team, shard
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

    state = State(recipe="", data="", course=Course(total=steps), step=first)
    loop = Loop(
        learner,
        SOURCES[source](),
        Train(batch=BATCH, lr=1e-2),
        (note, *hooks),
        batch=BATCH,
        per_device=per_device,
        seed=1,
        halved=halved,
    )
    loop.run(state)
    return found


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def weights(learner: Learner) -> dict[str, Tensor]:
    return {name: whole(p) for name, p in learner.parameters.items()}
