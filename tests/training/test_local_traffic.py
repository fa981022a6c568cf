"""Bytes that a worker gives to collectives in real steps: local ones that average every 100 beside synchronous ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from group_jobs import BATCH, SOURCES, make, train
from processes import together
from torch import Tensor

from shoestring.core.parallel import Parallel
from shoestring.core.train_section import Train
from shoestring.parallel.process_group import ProcessGroup
from shoestring.training.checkpoint import State
from shoestring.training.local import Average, LocalSettings, LocalStepper
from shoestring.training.loop import Loop
from shoestring.training.schedule import Schedule

STEPS = EVERY = 100
GIVEN = {"all_reduce": 0, "all_to_all_single": 1, "all_gather": 1}
"""The argument of each collective that holds what a process gives."""


@contextmanager
def counted() -> Iterator[list[int]]:
    """The bytes that collectives of torch are given, as they are called."""
    found: list[int] = []

    def counting(name: str) -> Any:
        real = getattr(dist, name)

        def call(*args: Any, **rest: Any) -> Any:
            given: Tensor = args[GIVEN[name]]
            found.append(given.numel() * given.element_size())
            return real(*args, **rest)

        return patch.object(dist, name, call)

    with counting("all_reduce"), counting("all_to_all_single"), counting("all_gather"):
        yield found


def take_steps(group: ProcessGroup) -> dict[int, int]:
    """The bytes that this process gave: in synchronous steps (0), and in DiLoCo's with 32 and 8 bits."""
    sent = {}
    with counted() as found:
        train(make(group, width=16), "plain", BATCH, STEPS)
    sent[0] = sum(found)
    for bits in (32, 8):
        diloco = Parallel(strategy="local", outer_lr=0.7, outer_momentum=0.9, difference_bits=bits)  # type: ignore[arg-type]
        learner = make(group, width=16)
        average = Average(learner.optimizer.masters, LocalSettings.of(diloco), group)
        stepper = LocalStepper(
            learner,
            SOURCES["plain"](),
            Train(batch=BATCH, lr=1e-2),
            average=average,
            together=lambda act: act(),
            batch=BATCH,
            per_device=BATCH,
            seed=1,
        )
        with counted() as found:
            Loop(stepper, ()).run(State(recipe="", data="", schedule=Schedule(total=STEPS)))
        sent[bits] = sum(found)
        assert average.count == STEPS // EVERY
    return sent


def test_diloco_sends_a_hundredth_of_what_synchronous_steps_send() -> None:
    first, second = together(take_steps, 2)
    assert first == second
    assert first[32] * 100 <= first[0], "the weights once, and as many sums as one synchronous step"
    assert first[8] * 100 < 0.55 * first[0], "codes and scales of the worker's differences and of its share of the mean"
