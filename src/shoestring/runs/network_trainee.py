"""A network in training: its learner on the rows of its corpus, step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shoestring.baselines.of_corpus import baseline_seconds
from shoestring.core.clock import Clock
from shoestring.core.recipe import Recipe
from shoestring.core.records import Evaluation, Plan
from shoestring.core.run_folder import RunFolder
from shoestring.data.store.store import write_tokenizer
from shoestring.datasets.corpus import open_corpus
from shoestring.parallel.process_group import ProcessGroup
from shoestring.runs.evaluate import Watch, evaluate_learner
from shoestring.runs.network_workload import make_learner
from shoestring.runs.trainee import Trainee
from shoestring.track import LineFile
from shoestring.training import hooks
from shoestring.training.checkpoint import State
from shoestring.training.hooks import Evenly
from shoestring.training.learner import Learner
from shoestring.training.loop import AnyHook, Requests
from shoestring.training.schedule import Schedule
from shoestring.training.stepper import NetworkStep, Stepper

METRICS_LINES = 1000
"""About how many lines a run writes."""


class NetworkTrainee(Trainee):
    """Steps with the effective batch; a step that does not fit the memory is repeated with a smaller micro-batch."""

    looks_ahead = True

    learner: Learner
    _stepper: Stepper
    _watch: Watch

    def __init__(self, recipe: Recipe, plan: Plan, group: ProcessGroup):
        assert plan.steps and plan.per_device and plan.effective_batch, "a network's plan has them"
        self.recipe, self.plan, self.group = recipe, plan, group
        self.corpus = group.on_all(open_corpus, recipe, plan)
        self.data, self.data_bytes = self.corpus.fingerprint, self.corpus.bytes
        self._split = plan.effective_batch, plan.per_device
        self.scored_rows = recipe.evaluate.per_device or plan.per_device
        self.planned_steps = plan.steps
        if plan.binding == "time":
            self.most_steps = math.inf if plan.most_steps is None else plan.most_steps
        self.tokens_per_step = plan.effective_batch * recipe.data.length

    def write_inputs(self, folder: RunFolder) -> None:
        if not folder.tokenizer.is_file():
            write_tokenizer(folder.tokenizer, self.corpus.tokenizer)

    def build(self, fresh: bool) -> None:
        recipe, group = self.recipe, self.group
        self.learner = make_learner(recipe, group.device, group, init=fresh)
        source, (batch, rows) = self.corpus.training(group.device), self._split
        self._stepper = Stepper(self.learner, source, recipe.train, batch=batch, per_device=rows, seed=recipe.run.seed)

    @property
    def saveable(self) -> Learner:
        return self.learner

    @property
    def per_device(self) -> int:
        return self._stepper.per_device

    @per_device.setter
    def per_device(self, rows: int) -> None:
        self._stepper.per_device = rows

    def begin(self, step: int, schedule: Schedule, requests: Requests) -> NetworkStep:
        return self._stepper.begin(step, schedule, requests)

    def halve(self) -> int:
        return self._stepper.halve()

    def hooks(self, metrics: LineFile, timings: LineFile, clock: Clock) -> Sequence[AnyHook]:
        self._watch = Watch(self.corpus)
        every = max(1, self.planned_steps // METRICS_LINES)
        return [hooks.Log(metrics, timings, clock, every, int(self.tokens_per_step))]

    def evaluates(self, state: State) -> Evenly:
        return Evenly(self.recipe.evaluate.every, state)

    def score(self) -> dict[str, float]:
        return self._watch(self.learner, self.scored_rows)

    def evaluate(self, state: State) -> Evaluation:
        return evaluate_learner(self.learner, state.step, self.scored_rows, self.corpus)

    def baseline_seconds(self) -> float | None:
        return baseline_seconds(self.corpus)
