"""When a fit updates its parameters: settings, order of the sequences, step size, share of each process.

All of it is a function of the settings and of the fit's progress. So resuming needs only an index, and any number of
processes makes the same updates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from shoestring.core.seeds import derive
from shoestring.hmm.expect import Counts
from shoestring.hmm.maximize import Priors
from shoestring.hmm.parameters import HmmError
from shoestring.parallel.process_group import ProcessGroup

Update = Literal["all", "every", "online"]


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """How a model is fitted: everything that its parameters depend on besides the data.

    - "all": one update per epoch, from all sequences. Exact expectation maximisation: the likelihood never falls.
    - "every": an update after every `update_every` sequences, from only these. Fast at first, but the noise of few
      sequences stays in the parameters.
    - "online": equally many updates, from running statistics. Each update replaces a share of them: all at first, then
      less and less (see `step`). As fast at first, without the noise at the end.
    """

    states: int
    epochs: int = 20
    """Passes over the data."""
    update: Update = "online"
    update_every: int = 256
    """Sequences per update, at most: an epoch is divided into updates of equal size."""
    hold: float = 0.8
    """Fraction of the epochs in which an online update replaces all statistics."""
    offset: float = 1.0
    decay: float = 0.6
    """After that, online update k replaces the share (k + offset) ** -decay."""
    priors: Priors = Priors()
    restarts: int = 1
    """Random starts; the best by likelihood and prior after `restart_epochs` epochs continues."""
    restart_epochs: int = 3
    concentration: float = 1.0
    """Concentration of the Dirichlet distribution of a random start's rows."""
    tied_start: bool = False
    """Use the stationary distribution of the transitions as start, as for rows cut from one long text."""
    end: bool = False
    """Learn where sequences end."""
    tolerance: float | None = None
    """Stop when an epoch improves likelihood and prior per token by less than this fraction (online: only once `hold`
    is over). None: never."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("states", "epochs", "update_every", "restarts", "restart_epochs"):
            self._need(name, _whole(getattr(self, name)) and getattr(self, name) >= 1, "a whole number of at least 1")
        self._need("seed", _whole(self.seed), "a whole number")
        self._need("update", self.update in get_args(Update), "one of " + ", ".join(map(repr, get_args(Update))))
        self._need("hold", _number(self.hold) and 0 <= self.hold <= 1, "between 0 and 1")
        self._need("offset", _number(self.offset) and self.offset >= 1, "at least 1: no share is above all")
        self._need("decay", _number(self.decay) and 0.5 < self.decay <= 1, "above 0.5 and at most 1")
        self._need("concentration", _number(self.concentration) and self.concentration > 0, "above 0")
        allowed = self.tolerance is None or (_number(self.tolerance) and self.tolerance >= 0)
        self._need("tolerance", allowed, "at least 0, or None")
        self._need("priors", isinstance(self.priors, Priors), "Priors")
        short = self.restarts > 1 and self.restart_epochs > self.epochs
        self._need("restart_epochs", not short, f"at most epochs = {self.epochs}")
        for name in ("tied_start", "end"):
            self._need(name, isinstance(getattr(self, name), bool), "true or false")

    def _need(self, name: str, fine: bool, allowed: str) -> None:
        if not fine:
            raise HmmError(f"{name} = {getattr(self, name)!r}: must be {allowed}")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def updates_per_epoch(settings: FitSettings, rows: int) -> int:
    return 1 if settings.update == "all" else -(-rows // settings.update_every)


def step(settings: FitSettings, done: int, per_epoch: int) -> float:
    """The share of the running statistics that an update replaces, after `done` updates.

    During the first `hold` of the epochs it is 1: the parameters still move, and old counts would hold them back. k
    updates after that it is (k + offset) ** -decay: the parameters move little, and the noise of few sequences averages
    out. It is never below 1 / `per_epoch`, where the statistics span about one epoch: the sequences of older counts
    have been counted again since. So with one update per epoch this is plain EM.
    """
    k = done - settings.hold * settings.epochs * per_epoch
    return 1.0 if k < 0 else max((k + settings.offset) ** -settings.decay, 1 / per_epoch)


def share(rows: int, updates: int, update: int, rank: int, world: int) -> slice:
    """The places of an epoch's order that one process counts for one update: contiguous, of nearly equal size."""
    first, past = rows * update // updates, rows * (update + 1) // updates
    size = past - first
    return slice(first + size * rank // world, first + size * (rank + 1) // world)


@lru_cache(maxsize=1)
def order(rows: int, seed: int, epoch: int) -> Int[Tensor, " rows"]:
    """The order of the sequences in an epoch, on the CPU: a permutation that depends only on the arguments."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(derive(seed, "hmm", "order", epoch)))


def blend(
    statistics: Counts | None, counts: Counts, counted: float, rate: float, tokens: float
) -> tuple[Counts, Counts]:
    """Running counts per token, after counts of `counted` tokens replaced the share `rate` of them; and the same scaled
    to the `tokens` of the whole data, so that the priors weigh as much as in a full batch."""
    fresh = counts.scaled(1 / counted)
    running = fresh if statistics is None else statistics.scaled(1 - rate).merge(fresh.scaled(rate))
    return running, running.scaled(tokens)


def summed(counts: Counts, group: ProcessGroup) -> Counts:
    """The counts of all processes added up, in float64."""
    if group.world == 1:
        return counts
    tables = [None if table is None else table.double().clone() for table in counts]
    group.all_reduce([table for table in tables if table is not None])
    return Counts(*tables)  # type: ignore[arg-type]
