"""Training by the clock in one process, for benchmarks: so many seconds of steps, without compiling and scoring.

The learning rate follows the share of the seconds, or of the steps, that is spent. What a run compiles is done before
its first step, by steps whose updates are not made.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from dataclasses import replace
from typing import NamedTuple

import torch

from shoestring.core.family import family_of, network_cost
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.sections import number
from shoestring.core.warmup import least_steps, warmup_share
from shoestring.datasets.corpus import StoreCorpus, StreamCorpus, training_corpus, vocabulary
from shoestring.planning.auto import without_embedding
from shoestring.planning.rates import best_lr
from shoestring.probe.machine import pick_device
from shoestring.runs.network_workload import make_learner
from shoestring.runs.prepare import prepare_recipe
from shoestring.runs.reporter import Reporter
from shoestring.training.learner import Learner, SomeRows
from shoestring.training.schedule import Warmup, learning_rate

REHEARSED = {"cpu": 1, "cuda": 6}
"""Steps whose updates are not made: the first are compiled and recorded, the last three tell the speed."""
IN_FLIGHT = 2
"""Steps that the device may have before it."""


class Timed(NamedTuple):
    """One run."""

    loss: float
    """Held out, nats per token."""
    lr: float
    steps: int
    seconds: float
    """Of its steps."""
    before: float
    """Seconds until its first step: building, compiling, recording."""
    scoring: float
    parameters: int
    peak_bytes: int | None


def rows_of(recipe: Recipe) -> StoreCorpus | StreamCorpus:
    """The corpus of a recipe, prepared as a whole."""
    store = prepare_recipe(recipe, None, Reporter()) if recipe.data.stream is None else None
    corpus = training_corpus(recipe, Plan(binding=""), store)
    assert isinstance(corpus, StoreCorpus | StreamCorpus), "it has rows of tokens"
    return corpus


def law_lr(recipe: Recipe, steps: float) -> float:
    """The learning rate that "auto" takes for a run of so many steps."""
    cost = network_cost(recipe.model, vocabulary(recipe), recipe.data.length)
    n, b = without_embedding(cost), float(recipe.batch * recipe.data.length)
    return best_lr(n, steps * b, b, recipe.train.optimizer, family=family_of(recipe.model)).value


def timed_run(
    recipe: Recipe,
    corpus: StoreCorpus | StreamCorpus,
    *,
    seconds: float | None = None,
    steps: int | None = None,
    factor: float | None = None,
) -> Timed:
    """Train for so many seconds or steps; with `factor`, at so many times the law's learning rate."""
    begun = time.perf_counter()
    device = pick_device()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        torch._dynamo.reset()  # beyond a number of graphs layers would run as they are
    learner, source = make_learner(recipe, device), corpus.training(device)
    step_seconds = _rehearse(learner, source.batch(source.order(recipe.run.seed, 0, recipe.batch)), recipe.batch)
    expected = steps if steps is not None else max(1, round((seconds or 0.0) / step_seconds))
    train = recipe.train if factor is None else replace(recipe.train, lr=factor * law_lr(recipe, expected))
    share = number(train.warmup)
    warmup = Warmup(share=share, least=0, end=warmup_share(expected, share, least_steps(recipe)))
    before, started, done = time.perf_counter() - begun, time.perf_counter(), 0
    waiting = deque[torch.cuda.Event]()
    while True:
        taken = time.perf_counter() - started
        progress = (done + 0.5) / steps if steps is not None else taken / (seconds or 1.0)
        if progress >= 1:
            break
        rows = source.batch(source.order(recipe.run.seed, done, recipe.batch))
        learner.update(learner.accumulate(rows, recipe.batch), learning_rate(train, progress, warmup))
        done += 1
        if device.type == "cuda":
            waiting.append(torch.cuda.Event())
            waiting[-1].record()
            if len(waiting) > IN_FLIGHT:
                waiting.popleft().synchronize()
    _wait(device)
    ended = time.perf_counter()
    loss = float(learner.score(corpus.heldout(), recipe.batch).nanmean())
    found = Timed(
        loss, number(train.lr), done, ended - started, before, time.perf_counter() - ended,
        sum(p.numel() for p in learner.parameters.values()),
        torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
    )  # fmt: skip
    del learner
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return found


def _rehearse(learner: Learner, rows: SomeRows, batch: int) -> float:
    """Compile and record what a step needs, and change nothing; the seconds of one."""

    def step() -> float:
        begun = time.perf_counter()
        tally = learner.accumulate(rows, batch)
        assert tally.fitted, f"a micro-batch of {batch} does not fit"
        learner.update(tally._replace(fitted=False), 0.0)
        _wait(learner.device)
        learner.optimizer.refused.zero_()
        return time.perf_counter() - begun

    learner.warm_up(rows, batch)
    return min([step() for _ in range(REHEARSED[learner.device.type])][-3:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
