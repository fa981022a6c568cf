"""An HMM to fit: what is measured, planned, prepared and fitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shoestring.core.errors import UserError
from shoestring.core.hmm_sections import Hmm
from shoestring.core.recipe import Recipe, fingerprint
from shoestring.core.records import Cost, Plan, Profile
from shoestring.core.units import counted
from shoestring.data.store.sentence_store import SentenceStore, prepare_rows
from shoestring.planning.history import NO_HISTORY, Correction
from shoestring.planning.hmm import HMM_ROWS, plan_hmm
from shoestring.planning.room import check_host
from shoestring.runs.reporter import Reporter
from shoestring.runs.task import Task

if TYPE_CHECKING:
    import torch

    from shoestring.parallel.process_group import ProcessGroup
    from shoestring.probe.meter import Meter
    from shoestring.probe.trials import Workload
    from shoestring.runs.trainee import Trainee


class HmmTask(Task):
    """Updates of the tables, each after some rows, which are sentences."""

    command = ("hmm", "fit")
    batch = HMM_ROWS
    first_rows = HMM_ROWS >> 10  # a row is small beside the fixed memory

    def __init__(self, recipe: Recipe, hmm: Hmm):
        self.recipe, self.hmm = recipe, hmm
        self.most_rows = HMM_ROWS if hmm.update == "all" else min(HMM_ROWS, hmm.update_every)
        updates = hmm.update if hmm.update == "all" else [hmm.update, hmm.update_every]
        self.workload = fingerprint(["hmm", hmm.states, recipe.data.tokenizer, recipe.data.length, updates])

    @property
    def symbols(self) -> int:
        """The size of the alphabet: N of words:N."""
        size = self.recipe.data.tokenizer.words
        assert size is not None, "checked when the recipe was read"
        return size

    def rows(self) -> SentenceStore:
        """The rows of its sentences, which are made once."""
        return prepare_rows(self.recipe.data, self.recipe.run.seed, self.hmm)

    def check(self, devices: int) -> None:  # noqa: ARG002 (any number of processes can share an update)
        from shoestring.data.read.corpora import open_source

        check_host(self.recipe)
        open_source(self.recipe.data, self.recipe.run.seed)

    def before_measuring(self) -> None:
        self.rows()

    def cost(self) -> Cost:
        """Three products of 2 H² FLOPs per token: one forward, two backward."""
        h, e = self.hmm.states, self.symbols
        return Cost(
            parameters={"start": h, "transition": h * h, "emission": h * e}, forward_flops_per_token=2.0 * h * h
        )

    def trial_rows(self, factor: int) -> list[int]:  # noqa: ARG002 (nothing is compiled)
        return sorted({self.most_rows, *(HMM_ROWS >> shift for shift in range(10, -1, -2))})

    def scored_rows(self, per_device: int, device: str) -> int:  # noqa: ARG002
        return self.recipe.evaluate.rows

    def load(self) -> None:
        from shoestring.runs import hmm_workload  # noqa: F401

    def open_workload(self, device: torch.device, real: bool) -> Callable[[Meter], Workload]:  # noqa: ARG002
        from shoestring.runs.hmm_workload import HmmWorkload

        if real:
            raise UserError("--real: an HMM is measured on random rows, which cost as much as real ones")
        return lambda meter: HmmWorkload(self, meter)

    def make_plan(
        self, profile: Profile, spent: float = 0.0, devices: int = 1, correction: Correction = NO_HISTORY
    ) -> Plan:
        rows = self.rows()
        return plan_hmm(self.recipe, profile, len(rows.train), spent, correction, devices, rows.reason)

    def prepare(self, plan: Plan, reporter: Reporter) -> None:  # noqa: ARG002
        rows, length = self.rows(), self.recipe.data.length
        reporter.say(
            f"{counted(len(rows.train), 'row')} of {length} tokens, {len(rows.heldout):,} held out: {rows.path}"
        )
        reporter.say(rows.reason)

    def open(self, plan: Plan, group: ProcessGroup) -> Trainee:
        from shoestring.runs.hmm_trainee import HmmTrainee

        return HmmTrainee(self, plan, group)
