"""The progress of a fit, as values and as tensors with a note. A fit restored from it continues to the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from shoestring.core.errors import RecordError
from shoestring.core.schema import decode, encode
from shoestring.hmm.expect import Counts
from shoestring.hmm.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One pass over the data."""

    epoch: int
    """From 1."""
    restart: int
    """Which random start it belongs to, from 0."""
    loss: float
    """Nats per token on the training data: each update's sequences under the parameters before that update."""
    loss_tokens: float
    """Tokens that `loss` is the mean over, by weight and without impossible sequences."""
    log_prior: float | None
    """Of the parameters in the last expectation step, in nats, up to a constant; None for minus infinity."""
    tokens: int
    """Seen since this start, in this epoch and all before."""
    updates: int
    """Since this start."""
    seconds: float
    """Time for expectation and maximisation in this epoch."""
    tokens_per_second: float
    impossible: float
    """Sequences, by weight, that had probability zero and were left out."""

    @property
    def objective(self) -> float:
        """Likelihood and prior in nats per token, which EM raises."""
        return -float("inf") if self.log_prior is None else self.log_prior / self.loss_tokens - self.loss


@dataclass(frozen=True, kw_only=True)
class Tally:
    """The sums of an epoch that is not over."""

    updates: int = 0
    tokens: int = 0
    log_likelihood: float = 0.0
    loss_tokens: float = 0.0
    impossible: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One start and its fit so far."""

    restart: int
    parameters: Parameters
    statistics: Counts | None = None
    """For online updates: the running counts per token."""
    updates: int = 0
    epochs: tuple[Epoch, ...] = ()
    tally: Tally = Tally()

    def to(self, device: torch.device) -> Trial:
        statistics = self.statistics
        if statistics is not None:
            statistics = Counts(*(None if table is None else table.to(device) for table in statistics))  # type: ignore[arg-type]
        return replace(self, parameters=self.parameters.to(device), statistics=statistics)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Everything that is needed to continue a fit."""

    trial: Trial
    best: Trial | None = None
    """The best start so far, while starts are compared."""
    choosing: bool = False

    def to(self, device: torch.device) -> Progress:
        best = None if self.best is None else self.best.to(device)
        return replace(self, trial=self.trial.to(device), best=best)


@dataclass(frozen=True, kw_only=True)
class _TrialNote:
    """A trial without its tables."""

    restart: int
    updates: int
    epochs: tuple[Epoch, ...]
    tally: Tally


@dataclass(frozen=True, kw_only=True)
class _Note:
    """A fit's progress without its tables."""

    choosing: bool
    trials: dict[str, _TrialNote]


def save_progress(progress: Progress) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tables by name, where they are, and the rest as plain values."""
    tensors: dict[str, Tensor] = {}
    notes = {}
    for name, trial in (("trial", progress.trial), ("best", progress.best)):
        if trial is None:
            continue
        for kind, tables in (("parameters", trial.parameters), ("statistics", trial.statistics)):
            known = {} if tables is None else tables._asdict()
            tensors |= {f"{name}/{kind}/{field}": table for field, table in known.items() if table is not None}
        notes[name] = _TrialNote(restart=trial.restart, updates=trial.updates, epochs=trial.epochs, tally=trial.tally)
    return tensors, encode(_Note(choosing=progress.choosing, trials=notes))


def load_progress(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> Progress:
    """The progress that `save_progress` saved; raises RecordError where the values are not such a note."""
    problems: list[str] = []
    note: _Note | None = decode(_Note, values, "", problems)
    if note is None or problems or "trial" not in note.trials:
        raise RecordError("\n  ".join(["not the progress of a fit", *problems]))
    trials = {name: _trial(name, trial, tensors) for name, trial in note.trials.items()}
    return Progress(trial=trials["trial"], best=trials.get("best"), choosing=note.choosing)


def _trial(name: str, note: _TrialNote, tensors: Mapping[str, Tensor]) -> Trial:
    parameters, statistics = (
        [tensors.get(f"{name}/{kind}/{field}") for field in fields]
        for kind, fields in (("parameters", Parameters._fields), ("statistics", Counts._fields))
    )
    return Trial(
        **vars(note),
        parameters=Parameters(*parameters),  # type: ignore[arg-type]
        statistics=None if statistics[0] is None else Counts(*statistics),  # type: ignore[arg-type]
    )
