"""A worker of asynchronous steps: computes the gradient of one share after the other, until its line is closed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any, NamedTuple

import torch

from shoestring.core import recipe_file
from shoestring.core.environment import slowness, step_seconds
from shoestring.core.errors import Fault, ShoestringError
from shoestring.core.host import end_with_parent, is_out_of_memory
from shoestring.core.reading import parse_toml
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.registry import load_added
from shoestring.core.seeds import derive
from shoestring.datasets.corpus import open_corpus
from shoestring.parallel.shared_weights import CPU, Mapped, NotShared, SharedWeights
from shoestring.probe.machine import pick_device
from shoestring.runs.network_trainee import reading, store_corpus
from shoestring.runs.network_workload import RandomRows, make_learner
from shoestring.training.asynchronous import Share
from shoestring.training.passes import half
from shoestring.training.stepper import slow_down


class Order(NamedTuple):
    """What a worker needs to begin."""

    recipe: str
    plan: dict[str, Any]
    added: str
    worker: int
    workers: int
    rows: tuple[int, int]
    """Of the effective batch, and of a micro-batch."""
    device: str
    """The kind of device that workers have."""


Read = tuple[int, dict[str, Any]]
"""The steps of the run that this one continues, and the rows that are read (`NetworkTrainee.rows_read`)."""


def work(line: Connection) -> None:
    """Answer shares with gradients. The first message is the order; the second, with a file, says where the weights
    are, and the third that the rows are there.

    The answer to a second message with a GPU's memory is None, or why that cannot be mapped. On a GPU everything is
    compiled before it: a first gradient that took seconds more would be stale.
    """
    order: Order = line.recv()
    load_added(order.added)
    recipe = recipe_file.build(parse_toml(order.recipe, Path("the recipe")), "the recipe")
    device = _own_device(order)
    try:
        learner = make_learner(recipe, device, init=False)
    except (RuntimeError, MemoryError) as cause:
        if not is_out_of_memory(cause):
            raise
        raise Fault("its copy of the model does not fit the memory; take fewer parallel.workers") from cause
    if device.type == "cuda":
        learner.warm_up(RandomRows(recipe).rows(order.rows[1]), order.rows[1])
    mapped: Mapped | None = line.recv()
    file = recv_handle(line)
    held = CPU if mapped is None else torch.device("cuda", 0)
    try:
        shared = SharedWeights(learner.optimizer.masters, order.workers, file, recipe.compensates, held, mapped)
    except NotShared as cause:
        line.send(cause)
        return
    if mapped is not None:
        line.send(None)
    read: Read = line.recv()
    compute = _computing(recipe, Plan.from_dict(order.plan, "the plan"), order, read, learner, shared)
    while True:
        line.send(compute(Share(*line.recv())))


def _own_device(order: Order) -> torch.device:
    """The CPU, or a GPU, which workers share if there are more of them."""
    if order.device == "cpu":
        return CPU
    pick_device()  # compiled kernels are kept
    device = torch.device("cuda", order.worker % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _computing(
    recipe: Recipe, plan: Plan, order: Order, read: Read, learner: Any, shared: SharedWeights
) -> Callable[[Share], tuple[float, int]]:
    """What computes the gradient of a share into shared memory, and returns its loss and predictions."""
    (before, rows), corpus, seed = read, open_corpus(recipe, plan), recipe.run.seed
    store = store_corpus(corpus)
    source = (reading(store, rows) if store and rows else corpus).training(learner.device)
    batch, per_device = order.rows
    slow = slowness(order.worker)
    least = step_seconds() / order.workers

    def compute(share: Share) -> tuple[float, int]:
        nonlocal per_device
        index = source.order(seed, before + share.step, batch).share(share.number, order.workers)
        shared.copy_to(learner.optimizer.masters, order.worker)
        begun = time.perf_counter()
        while True:
            torch.manual_seed(derive(seed, "torch", before + share.step, share.number))
            tally = learner.accumulate(source.batch(index), per_device)
            if tally.fitted:
                break
            per_device = half(min(per_device, len(index.rows)))
        shared.put_gradients(learner.optimizer.gradients(), order.worker)
        learner.drop_gradient()
        slow_down(slow, begun, learner.device, least)
        return float(tally.nats), tally.predictions

    return compute


def answer(line: Connection) -> None:
    """Work until the line is closed; an error is sent as its message."""
    try:
        work(line)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the run has ended
        return
    except ShoestringError as error:
        line.send(" ".join(str(error).split()))


def main(line: str) -> None:
    end_with_parent()
    answer(Connection(int(line)))


if __name__ == "__main__":
    main(*sys.argv[1:])
