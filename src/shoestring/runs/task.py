"""The kind of a run: a network to train, or an HMM to fit. Everything else is the runner's.

A task needs no torch; the `Trainee` that it opens for training does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from shoestring.core.choices import Choices
from shoestring.core.recipe import Recipe
from shoestring.core.records import Cost, Plan, Profile
from shoestring.planning.history import NO_HISTORY, Correction
from shoestring.runs.reporter import Reporter

if TYPE_CHECKING:
    import torch

    from shoestring.parallel.process_group import ProcessGroup
    from shoestring.probe.meter import Meter
    from shoestring.probe.trials import Workload
    from shoestring.runs.trainee import Trainee


class Task(ABC):
    """The recipe of a run, and what its kind decides."""

    recipe: Recipe
    choices: Choices | None = None
    """What was chosen for fields of the recipe that were "auto"; the recipe has the numbers."""
    command: tuple[str, ...]
    """Words of the command that runs it."""
    workload: str
    """Fingerprint of everything that determines the bytes and seconds of a step."""
    batch: int
    """Rows per step, or the most that are worth trying in one pass."""
    most_rows: int
    """The most rows per pass of a run, however many would be faster."""
    first_rows: int = 1
    """Rows of the first trial in a search for the largest batch."""

    @abstractmethod
    def check(self, devices: int) -> None:
        """Raise an error for what is known to fail, before anything is measured or written."""

    def before_measuring(self) -> None:
        """Make what the plan needs anyway, so that its errors come before time is spent on measuring."""
        return

    @abstractmethod
    def cost(self) -> Cost: ...

    @abstractmethod
    def trial_rows(self, factor: int) -> list[int]:
        """Micro-batches to time; neighbours differ by about `factor` where each size must be compiled."""

    @abstractmethod
    def scored_rows(self, per_device: int, device: str) -> int:
        """Rows per scoring pass, beside training with a micro-batch of `per_device`."""

    @abstractmethod
    def load(self) -> None:
        """Import what its steps need, but look for no GPU."""

    @abstractmethod
    def open_workload(self, device: torch.device, real: bool) -> Callable[[Meter], Workload]:
        """Its steps, to be measured on random rows or its own; the model is built with the meter, all else before."""

    @abstractmethod
    def make_plan(
        self, profile: Profile, spent: float = 0.0, devices: int = 1, correction: Correction = NO_HISTORY
    ) -> Plan:
        """The plan, with `spent` seconds of the time budget already used."""

    @abstractmethod
    def prepare(self, plan: Plan, reporter: Reporter) -> None:
        """Make the rows that the run reads, unless they exist."""

    def fork_workers(self, open_here: Iterable[Connection]) -> None:  # noqa: B027
        """Fork workers that wait for an order, if the task needs them and has none yet. This process first loads torch
        for all of them. They close what is open for this process alone."""

    def end_workers(self) -> None:  # noqa: B027
        """End the workers that got no order."""

    @abstractmethod
    def open(self, plan: Plan, group: ProcessGroup) -> Trainee:
        """The trainee that takes the steps, with its rows open."""

    def fits(self, profile: Profile) -> bool:
        """Whether a profile was measured for this workload."""
        return profile.workload == self.workload


def task_of(recipe: Recipe, choices: Choices | None = None) -> Task:
    """The task of a recipe: the only place that distinguishes networks from HMMs."""
    if recipe.hmm is not None:
        from shoestring.runs.hmm_task import HmmTask

        return HmmTask(recipe, recipe.hmm)
    from shoestring.runs.network_task import NetworkTask

    return NetworkTask(recipe, choices)
