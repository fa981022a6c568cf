"""A network to train: what is measured, planned, prepared and trained."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from shoestring.core.choices import Choices
from shoestring.core.errors import PlanError, UserError
from shoestring.core.family import network_cost
from shoestring.core.files import free_bytes
from shoestring.core.fingerprints import read_fingerprints
from shoestring.core.recipe import Recipe
from shoestring.core.records import Cost, Plan, Profile
from shoestring.core.run_folder import RunFolder
from shoestring.core.units import counted
from shoestring.data.store.sizes import estimate_bytes
from shoestring.planning.corpus import Ready, scored_at_once
from shoestring.planning.history import NO_HISTORY, Correction
from shoestring.planning.make import make_plan
from shoestring.planning.room import check_host
from shoestring.runs.prepare import check_source, prepare_recipe, prepared_documents, ready_rows, vocabulary_of
from shoestring.runs.reporter import Reporter
from shoestring.runs.task import Task

if TYPE_CHECKING:
    import torch

    from shoestring.parallel.process_group import ProcessGroup
    from shoestring.probe.meter import Meter
    from shoestring.probe.trials import Workload
    from shoestring.runs.async_start import Waiting
    from shoestring.runs.trainee import Trainee


class NetworkTask(Task):
    """Training with an effective batch, split into micro-batches as the plan says."""

    command = ("train",)

    def __init__(self, recipe: Recipe, choices: Choices | None = None):
        self.recipe, self.choices = recipe, choices
        self._waiting: list[Waiting] | None = None
        if not recipe.autos:  # until its numbers are chosen, a task is only asked for its corpus
            self.workload, self.batch = recipe.workload, recipe.batch
            self.most_rows = self.batch

    def check(self, devices: int) -> None:
        if self.batch % devices:
            raise PlanError(
                f"an effective batch of {counted(self.batch, 'row')} does not divide over {devices} processes; "
                f"start another number of processes, or change train.batch"
            )
        if self.recipe.train.continued and self.recipe.model.init is None:
            raise UserError("train.continued = true: model.init must name the run to continue")
        check_host(self.recipe)
        check_source(self.recipe)
        if self.recipe.evaluate.overlap is not None and not RunFolder.of(self.recipe).overlap.is_file():
            read_fingerprints(self.recipe)

    def cost(self) -> Cost:
        recipe = self.recipe
        return network_cost(recipe.model, vocabulary_of(recipe), recipe.data.length, recipe.data.masked)

    def trial_rows(self, factor: int) -> list[int]:
        from shoestring.probe.measure import candidate_batches

        given = self.recipe.train.per_device
        return candidate_batches(self.batch, factor) if given is None else [given]

    def scored_rows(self, per_device: int, device: str) -> int:
        return min(scored_at_once(self.recipe, per_device, device), self.recipe.evaluate.rows)

    def load(self) -> None:
        from shoestring.runs import network_workload  # noqa: F401

        with contextlib.suppress(UserError):  # the worker's answer tells of it
            self.cost()  # loads a library that the network comes from

    def open_workload(self, device: torch.device, real: bool) -> Callable[[Meter], Workload]:
        from shoestring.runs.network_workload import TrainingWorkload, own_rows

        rows = own_rows(self.recipe, device) if real else None
        return lambda meter: TrainingWorkload(self.recipe, meter, rows)

    def make_plan(
        self, profile: Profile, spent: float = 0.0, devices: int = 1, correction: Correction = NO_HISTORY
    ) -> Plan:
        plan = plan_network(
            self.recipe, ready_rows(self.recipe), profile, spent, devices, correction, _steps_read(self.recipe)
        )
        return plan if self.choices is None else replace(plan, lines=(*plan.lines, *self.choices.lines()))

    def prepare(self, plan: Plan, reporter: Reporter) -> None:
        if self.recipe.data.stream is None and self.recipe.data.label is None:
            prepare_recipe(self.recipe, plan, reporter)

    def fork_workers(self, open_here: Iterable[Connection]) -> None:
        if self.recipe.strategy == "async" and self._waiting is None:
            from shoestring.runs.async_start import fork_workers

            self._waiting = fork_workers(self, open_here)

    def end_workers(self) -> None:
        while self._waiting:
            self._waiting.pop().end()

    def open(self, plan: Plan, group: ProcessGroup) -> Trainee:
        from shoestring.runs.async_trainee import AsyncTrainee
        from shoestring.runs.local_trainee import LocalTrainee
        from shoestring.runs.network_trainee import NetworkTrainee

        kinds = {"sync": NetworkTrainee, "local": LocalTrainee, "async": AsyncTrainee}
        trainee = kinds[self.recipe.strategy](self.recipe, plan, group)
        if isinstance(trainee, AsyncTrainee):
            trainee.waiting = self._waiting or []
        return trainee

    def fits(self, profile: Profile) -> bool:
        """A profile that was measured at several micro-batches serves any train.per_device."""
        any_split = replace(self.recipe, train=replace(self.recipe.train, per_device=None))
        return profile.workload in (self.workload, any_split.workload)


def plan_network(
    recipe: Recipe,
    ready: Ready | None,
    profile: Profile,
    spent: float,
    devices: int,
    correction: Correction,
    read: int = 0,
) -> Plan:
    """As `NetworkTask.make_plan`, for rows that are `ready`, or must be prepared; those of `read` steps were read by a
    run that this one continues."""
    store_bytes, free = partial(estimate_bytes, data=recipe.data), free_bytes(Path(recipe.run.folder))
    endless = ready is None and profile.density is not None and profile.density.total_documents is None
    prepared = prepared_documents(recipe) if endless and not read else ()  # a run that goes on reads more
    return make_plan(recipe, profile, store_bytes, spent, free, ready, devices, correction, prepared, read)


def _steps_read(recipe: Recipe) -> int:
    """The steps whose rows were read by a run that this one continues."""
    if not recipe.train.continued:
        return 0
    from shoestring.runs.continued import steps_read  # imports torch

    return steps_read(recipe)
