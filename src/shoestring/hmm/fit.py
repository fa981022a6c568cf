"""Fitting a model to sequences: expectation and maximisation in turn, one update at a time.

    parameters = fit(tokens, FitSettings(states=100), symbols=500).parameters

`Fit` does the same step by step, for a runner that saves, stops and continues. Under `torch.distributed` (torchrun),
every process makes a `Fit` with the same arguments, counts its share of each update's sequences, and has the same
parameters after each update. Nothing here draws from torch's own random state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from time import perf_counter
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from shoestring.core.errors import Fault
from shoestring.core.seeds import derive
from shoestring.core.units import counted
from shoestring.hmm.expect import Counts, check_weights, expect, zeros
from shoestring.hmm.inference import check_tokens
from shoestring.hmm.maximize import check_tables, log_prior, maximize, numbers
from shoestring.hmm.parameters import HmmError, Parameters, check, is_symmetric, random_parameters
from shoestring.hmm.progress import Epoch, Progress, Tally, Trial
from shoestring.hmm.sampling import stationary
from shoestring.hmm.schedule import FitSettings, blend, order, share, step, summed, updates_per_epoch
from shoestring.parallel.process_group import ProcessGroup

__all__ = ["Epoch", "Fit", "FitSettings", "Fitted", "fit", "learn"]

Count = Callable[..., Counts]
"""An expectation step: parameters, tokens, lengths, weights. `expect` is one."""
OnEpoch = Callable[[Epoch, Parameters], None]
Stopped = Literal["epochs", "tolerance"]

ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-9}
"""How much an exact step may lower likelihood and prior per token, as a fraction, before it counts as a fault."""


class Fitted(NamedTuple):
    parameters: Parameters
    epochs: tuple[Epoch, ...]
    """Of the start that was chosen."""
    stopped: Stopped


def fit(
    tokens: Tensor, settings: FitSettings, *, symbols: int, on_epoch: OnEpoch | None = None, **options: Any
) -> Fitted:
    """Fit a model of `settings.states` states to tokens (rows, positions) of any integer type; `options` as for `Fit`.

    `on_epoch` gets each epoch's record and a copy of the parameters after it, on every process. Nothing that it does
    changes the fit. While several starts are compared it sees the epochs of all of them.
    """
    work = Fit(tokens, settings, symbols=symbols, **options)
    while (stopped := work.stopped) is None:
        epoch = work.update()
        if epoch is not None and on_epoch is not None:
            on_epoch(epoch, _copy(work.ended_with))
    return Fitted(work.parameters, work.epochs, stopped)


class Fit:
    """A fit that advances by one update at a time. Only `progress` changes."""

    def __init__(
        self,
        tokens: Tensor,
        settings: FitSettings,
        *,
        symbols: int,
        lengths: Tensor | None = None,
        weights: Tensor | None = None,
        start: Parameters | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        count: Count = expect,
    ):
        """Check everything, and begin at `start` or at random starts.

        Computes in `dtype` on `device`, by default that of the tokens. They may stay elsewhere and are moved as needed.
        """
        if dtype not in ROUNDING:
            raise HmmError(f"dtype = {dtype}: must be torch.float32 or torch.float64")
        check_tokens(tokens, symbols, lengths)
        rows, positions = tokens.shape
        if not rows:
            raise HmmError("there are no sequences to fit a model to")
        exact = check_weights(weights, rows)
        sizes = torch.full((rows,), positions) if lengths is None else lengths.cpu().long()
        self._weighted_tokens = float(sizes.sum() if exact is None else exact @ sizes.double())
        if self._weighted_tokens == 0:
            raise HmmError("all weights are zero: there is nothing to fit a model to")
        _check_priors(settings, symbols, self._weighted_tokens, dtype)
        if start is not None:
            _check_start(start, settings, symbols)
        self.settings, self.updates_per_epoch = settings, updates_per_epoch(settings, rows)
        self._tokens, self._lengths, self._weights, self._start = tokens, lengths, weights, start
        self._symbols, self._dtype, self._count = symbols, dtype, count
        self._device = torch.device(device) if device is not None else tokens.device
        self._group = ProcessGroup.of(self._device)
        self.progress = Progress(trial=self._trial(0), choosing=settings.restarts > 1)
        self.ended_with = self.progress.trial.parameters
        """The parameters after the last epoch that ended, of whichever start."""

    @property
    def planned_updates(self) -> int:
        """Updates of `settings.epochs`, and of the epochs in which starts are compared."""
        compared = self.settings.restart_epochs * (self.settings.restarts - 1)
        return self.updates_per_epoch * (self.settings.epochs + compared)

    @property
    def stopped(self) -> Stopped | None:
        """Why the fit is over, by its epochs; `update` would still continue it."""
        if self.progress.choosing:
            return None
        settings, epochs = self.settings, self.progress.trial.epochs
        # while an online fit holds, its loss is as noisy as that of few sequences, and the last gain is still to come
        held = settings.hold * settings.epochs if settings.update == "online" else 0
        if settings.tolerance is not None and len(epochs) > held + 1:
            before, now = epochs[-2].objective, epochs[-1].objective
            if now - before < settings.tolerance * abs(before):
                return "tolerance"
        return "epochs" if len(epochs) >= settings.epochs else None

    @property
    def parameters(self) -> Parameters:
        """The parameters of the best start so far."""
        return (self.progress.best or self.progress.trial).parameters

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The finished epochs of the best start so far."""
        return (self.progress.best or self.progress.trial).epochs

    def update(self) -> Epoch | None:
        """Take an expectation step over the next sequences and maximise; return the epoch that this ends, if any.

        An error leaves everything as it was.
        """
        before = self.progress.trial
        trial = self._updated(before)
        if trial.tally.updates < self.updates_per_epoch:
            self.progress = replace(self.progress, trial=trial)
            return None
        trial = self._with_epoch(trial, before.parameters)
        _check_rise(trial.epochs, self.settings, self._dtype)
        self.ended_with = trial.parameters
        self.progress = self._next(replace(self.progress, trial=trial))
        return trial.epochs[-1]

    def recount(self, count: Count) -> None:
        """Use another expectation step from now on."""
        self._count = count

    def restore(self, progress: Progress) -> None:
        """Continue from saved progress."""
        self.progress = progress.to(self._device)
        self.ended_with = self.progress.trial.parameters

    def _trial(self, restart: int) -> Trial:
        settings, parameters = self.settings, self._start
        if parameters is None:
            seed = derive(settings.seed, "hmm", "restart", restart)
            parameters = random_parameters(settings.states, self._symbols, seed, settings.concentration, settings.end)
            if settings.tied_start:
                parameters = parameters._replace(start=stationary(parameters.transition))
        if is_symmetric(parameters):
            raise HmmError(
                "the start is symmetric: all states emit the same symbols with the same probabilities, so every state "
                "gets the same share of every token and EM can never tell them apart; start from random_parameters, or "
                "from rows that differ"
            )
        return Trial(restart=restart, parameters=_copy(parameters.to(self._device, self._dtype)))

    def _updated(self, trial: Trial) -> Trial:
        """The trial after an expectation step over the next sequences and a maximisation step."""
        began = perf_counter()
        settings, tally = self.settings, trial.tally
        counts, seen = self._counts(trial)
        rate = step(settings, trial.updates, self.updates_per_epoch) if settings.update == "online" else None
        learned = learn(counts, trial.parameters, trial.statistics, settings, rate, self._weighted_tokens)
        after = Tally(
            updates=tally.updates + 1,
            tokens=tally.tokens + seen,
            log_likelihood=tally.log_likelihood + learned.log_likelihood,
            loss_tokens=tally.loss_tokens + learned.tokens,
            impossible=tally.impossible + learned.impossible,
            seconds=tally.seconds + perf_counter() - began,
        )
        parameters, statistics = learned.parameters, learned.statistics
        return replace(trial, parameters=parameters, statistics=statistics, updates=trial.updates + 1, tally=after)

    def _counts(self, trial: Trial) -> tuple[Counts, int]:
        """The counts of the next update's sequences by all processes together, and how many tokens these have."""
        (rows, positions), updates, group = self._tokens.shape, self.updates_per_epoch, self._group
        part = share(rows, updates, trial.tally.updates, 0, 1)
        own = share(rows, updates, trial.tally.updates, group.rank, group.world)
        everything: slice | Tensor = part
        picked: slice | Tensor = own
        if updates > 1:  # the order of all sequences does not matter, and a slice takes no memory
            sequence = order(rows, self.settings.seed, len(trial.epochs))
            everything, picked = sequence[part], sequence[own]
        if own.start == own.stop:
            counts = zeros(trial.parameters)
        else:
            tables = (self._tokens, self._lengths, self._weights)
            counts = self._count(trial.parameters, *(_pick(table, picked) for table in tables))
        lengths = _pick(self._lengths, everything)
        seen = (part.stop - part.start) * positions if lengths is None else int(lengths.sum())
        return summed(counts, group), seen

    def _with_epoch(self, trial: Trial, used: Parameters) -> Trial:
        """The trial with a record of the epoch in its tally; `used` were the parameters of the last update."""
        tally = trial.tally
        if not tally.loss_tokens > 0:
            raise HmmError("every sequence has probability zero under the start: it rules out what the data holds; "
                           "leave no zeros in it that the data contradicts")  # fmt: skip
        (prior,) = numbers(log_prior(used, self.settings.priors))
        before = trial.epochs[-1].tokens if trial.epochs else 0
        epoch = Epoch(
            epoch=len(trial.epochs) + 1,
            restart=trial.restart,
            loss=-tally.log_likelihood / tally.loss_tokens,
            loss_tokens=tally.loss_tokens,
            log_prior=prior if isfinite(prior) else None,
            tokens=before + tally.tokens,
            updates=trial.updates,
            seconds=tally.seconds,
            tokens_per_second=tally.tokens / max(tally.seconds, 1e-9),
            impossible=tally.impossible,
        )
        return replace(trial, epochs=(*trial.epochs, epoch), tally=Tally())

    def _next(self, progress: Progress) -> Progress:
        """Progress after the end of an epoch: with the same trial, with the next start, or with the best one."""
        trial, best, settings = progress.trial, progress.best, self.settings
        if not progress.choosing or len(trial.epochs) < settings.restart_epochs:
            return progress
        if best is None or trial.epochs[-1].objective > best.epochs[-1].objective:
            best = trial
        if trial.restart + 1 < settings.restarts:
            return replace(progress, trial=self._trial(trial.restart + 1), best=best)
        return Progress(trial=best)


def _check_priors(settings: FitSettings, symbols: int, tokens: float, dtype: torch.dtype) -> None:
    """Raise HmmError where a prior leaves a cell of a well-visited row below the smallest number of the type."""
    smallest = torch.finfo(dtype).tiny
    cells = {"start": settings.states, "transition": settings.states, "emission": symbols, "end": 2}
    for name, count in cells.items():
        prior = getattr(settings.priors, name)
        if 0 < prior < (least := smallest * count * max(1.0, tokens)):
            raise HmmError(
                f"prior of {name} = {prior:g}: too small for {dtype}: a cell would be zero all the same; give at least "
                f"{least:.2g}, or 0 for no prior"
            )


def _check_start(start: Parameters, settings: FitSettings, symbols: int) -> None:
    check(start)
    if start.states != settings.states:
        raise HmmError(f"the start has {counted(start.states, 'state')}, the settings ask for {settings.states}")
    if start.symbols != symbols:
        raise HmmError(f"the start has an alphabet of {start.symbols} symbols, the data one of {symbols}")
    if (start.end is not None) != settings.end:
        has = "has no" if start.end is None else "has"
        raise HmmError(f"the start {has} end probabilities, but end = {settings.end}")
    if settings.restarts > 1:
        raise HmmError(f"restarts = {settings.restarts}: with a given start there is only that one")


def _check_rise(epochs: tuple[Epoch, ...], settings: FitSettings, dtype: torch.dtype) -> None:
    """Raise Fault if an exact EM step lowered what it must raise."""
    if settings.update != "all" or settings.tied_start or len(epochs) < 2:
        return
    before, now = epochs[-2:]
    if before.impossible != now.impossible:  # a prior makes sequences possible, so the sum is over others than before
        return
    slack = ROUNDING[dtype] * max(1.0, abs(before.objective))
    if now.objective < before.objective - slack:
        raise Fault(
            f"EM lowered likelihood and prior from {before.objective:.9g} to {now.objective:.9g} nats per token in "
            f"epoch {before.epoch}, by more than the rounding of {dtype}: the counts or the M-step are wrong"
        )


class Learned(NamedTuple):
    """The result of an update's maximisation, and what its counts were of."""

    parameters: Parameters
    statistics: Counts | None
    log_likelihood: float
    tokens: float
    impossible: float


def learn(
    counts: Counts,
    parameters: Parameters,
    statistics: Counts | None,
    settings: FitSettings,
    rate: float | None,
    tokens: float,
) -> Learned:
    """Maximise, and check the counts and the result.

    Online, `rate` is the share of the running statistics that the counts replace; the whole data has `tokens` tokens.
    """
    tables = torch.stack([table.sum() for table in counts[:4] if table is not None]).sum()
    log_likelihood, counted, impossible, total = numbers(
        counts.log_likelihood, counts.tokens, counts.impossible, tables
    )
    if not isfinite(log_likelihood + counted + impossible + total):
        raise Fault(f"the E-step gave counts that are not finite: {total:g} in all, log-likelihood {log_likelihood:g}")
    if counted > 0:  # else no sequence of this update is possible, and there is nothing to learn from
        if rate is not None:
            statistics, counts = blend(statistics, counts, counted, 1.0 if statistics is None else rate, tokens)
        parameters = maximize(counts, settings.priors, parameters, settings.tied_start)
        check_tables(parameters)
    return Learned(parameters, statistics, log_likelihood, counted, impossible)


def _pick(table: Tensor | None, picked: slice | Tensor) -> Tensor | None:
    if table is None:
        return None
    return table[picked if isinstance(picked, slice) else picked.to(table.device)]


def _copy(parameters: Parameters) -> Parameters:
    return Parameters(*(None if table is None else table.detach().clone() for table in parameters))  # type: ignore[arg-type]
