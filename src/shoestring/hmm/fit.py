"""Fitting a model to sequences: expectation and maximisation in turn, until the epochs or the time are used up.

    parameters = fit(tokens, FitSettings(states=100), symbols=500).parameters

Under `torch.distributed` (torchrun), every process calls `fit` with the same arguments, counts its share of each
update's sequences, and ends with the same parameters. Nothing here draws from torch's own random state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from shoestring.core.errors import Fault
from shoestring.core.seeds import derive
from shoestring.hmm import resume
from shoestring.hmm.checks import ROUNDING, check_rise, check_tables, numbers
from shoestring.hmm.expect import Counts, expect, zeros
from shoestring.hmm.inference import check_tokens
from shoestring.hmm.maximize import log_prior, maximize
from shoestring.hmm.parameters import HmmError, Parameters, check, is_symmetric, random_parameters
from shoestring.hmm.resume import Epoch, Progress, Tally, Trial
from shoestring.hmm.sampling import stationary
from shoestring.hmm.schedule import FitSettings, blend, order, share, step, summed, updates_per_epoch
from shoestring.parallel.team import Team

__all__ = ["Epoch", "FitSettings", "Fitted", "fit", "learn"]

Count = Callable[[Parameters, Tensor, Tensor | None, Tensor | None], Counts]
"""An expectation step: parameters, tokens, lengths, weights. `expect` is one."""
OnEpoch = Callable[[Epoch, Parameters], None]
Stopped = Literal["epochs", "tolerance", "time"]


class Fitted(NamedTuple):
    parameters: Parameters
    epochs: tuple[Epoch, ...]
    """Of the start that went on; those begun but not ended when the time was up are not among them."""
    stopped: Stopped


def fit(
    tokens: Tensor,
    settings: FitSettings,
    *,
    symbols: int,
    lengths: Tensor | None = None,
    weights: Tensor | None = None,
    start: Parameters | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    on_epoch: OnEpoch | None = None,
    checkpoint: Path | None = None,
    checkpoint_every: int = 1,
    time_left: Callable[[], float] | None = None,
    until_time: bool = False,
    count: Count = expect,
) -> Fitted:
    """Fit a model of `settings.states` states to tokens (rows, positions) of any integer type.

    It is computed on `device` (default: where the tokens are; they may stay elsewhere, and are moved as needed) in
    `dtype`, from `start` or from random starts.

    `on_epoch` gets each epoch's record and a copy of the parameters after it, on every process; nothing that it does
    changes the fit. While several starts are compared it sees the epochs of all of them.

    With a `checkpoint` file, a fit goes on from where the file stands; it is written every `checkpoint_every` epochs
    and at the end, after `on_epoch`. A killed fit that goes on repeats the epochs since, and ends with the same bits
    on a CPU. A file of another fit is refused and left as it is; `tolerance` may change, and `epochs` unless online.

    `time_left` says how many seconds remain: before an update that would not end in time, together with the
    checkpoint and `on_epoch` where it ends an epoch, the fit is saved and stops. A stop within an epoch loses nothing.
    With `until_time` it goes on after `settings.epochs` as long as there is time, unless it is taken up again; an
    online fit's updates become as small as they ever do.
    """
    if until_time and time_left is None:
        raise HmmError("until_time needs time_left")
    work = _work(tokens, settings, symbols, lengths, weights, start, device, dtype, count)
    if checkpoint_every < 1:
        raise HmmError(f"checkpoint_every = {checkpoint_every}: must be at least 1")
    found, identity = None, None
    if checkpoint is not None:
        found, identity = work.team.first(_find, checkpoint, work)
    progress = _begin(work) if found is None else found.to(work.device)
    if len(progress.trial.epochs) > settings.epochs and not until_time:
        raise HmmError(f"epochs = {settings.epochs}: {checkpoint} stands at epoch {len(progress.trial.epochs)} already")
    pace = _Pace(progress, work)
    saved, open_end = found, until_time and found is None

    def keep() -> None:
        nonlocal saved
        if checkpoint is not None and identity is not None and saved is not progress:
            began = perf_counter()
            work.team.first(resume.save, checkpoint, progress, identity)
            pace.save = perf_counter() - began
            saved = progress

    while (stopped := _stopped(progress, settings, open_end)) is None:
        if time_left is not None and work.team.first(_too_short, time_left, pace.needed(progress, work)):
            stopped = "time"
            break
        trial = _update(progress.trial, work)
        pace.update = trial.tally.seconds - progress.trial.tally.seconds
        if trial.tally.updates < work.updates:
            progress = replace(progress, trial=trial)
            continue
        trial = _end_epoch(trial, progress.trial.parameters, work)
        check_rise(trial.epochs, settings, work.dtype)
        if on_epoch is not None:
            began = perf_counter()
            on_epoch(trial.epochs[-1], _copy(trial.parameters))
            pace.callback = perf_counter() - began
        progress = _next(replace(progress, trial=trial), work)
        if trial.epochs[-1].epoch % checkpoint_every == 0:
            keep()
    keep()
    ended = progress.best or progress.trial  # the time may be up while starts are compared
    return Fitted(ended.parameters, ended.epochs, stopped)


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What stays the same during a fit."""

    settings: FitSettings
    tokens: Tensor
    lengths: Tensor | None
    weights: Tensor | None
    start: Parameters | None
    symbols: int
    device: torch.device
    dtype: torch.dtype
    count: Count
    updates: int
    """In an epoch."""
    weighed_tokens: float
    """In the data, by weight."""
    team: Team


def _work(
    tokens: Tensor,
    settings: FitSettings,
    symbols: int,
    lengths: Tensor | None,
    weights: Tensor | None,
    start: Parameters | None,
    device: torch.device | str | None,
    dtype: torch.dtype,
    count: Count,
) -> _Work:
    """Everything checked, before anything is computed."""
    if dtype not in ROUNDING:
        raise HmmError(f"dtype = {dtype}: must be torch.float32 or torch.float64")
    check_tokens(tokens, symbols, lengths)
    rows, positions = tokens.shape
    if not rows:
        raise HmmError("there are no sequences to fit a model to")
    sizes = torch.full((rows,), positions) if lengths is None else lengths.cpu().long()
    if weights is not None and tuple(weights.shape) != (rows,):
        raise HmmError(f"weights must have one value for each of {rows} rows, not shape {tuple(weights.shape)}")
    weighed = torch.ones(rows, dtype=torch.float64) if weights is None else weights.detach().cpu().double()
    wrong = (~(weighed.isfinite() & (weighed >= 0))).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise HmmError(f"row {row} has weight {float(weighed[row])}: a weight must be finite and not negative")
    weighed_tokens = float(weighed @ sizes.double())
    if weighed_tokens == 0:
        raise HmmError("all weights are zero: there is nothing to fit a model to")
    if start is not None:
        _check_start(start, settings, symbols)
    where = torch.device(device) if device is not None else tokens.device
    return _Work(
        settings=settings, tokens=tokens, lengths=lengths, weights=weights, start=start, symbols=symbols, device=where,
        dtype=dtype, count=count, updates=updates_per_epoch(settings, rows), weighed_tokens=weighed_tokens,
        team=Team.of(where),
    )  # fmt: skip


def _check_start(start: Parameters, settings: FitSettings, symbols: int) -> None:
    check(start)
    if start.states != settings.states:
        raise HmmError(f"the start has {start.states} states, the settings ask for {settings.states}")
    if start.symbols != symbols:
        raise HmmError(f"the start has an alphabet of {start.symbols} symbols, the data one of {symbols}")
    if (start.end is not None) != settings.end:
        has = "has no" if start.end is None else "has"
        raise HmmError(f"the start {has} end probabilities, but end = {settings.end}")
    if settings.restarts > 1:
        raise HmmError(f"restarts = {settings.restarts}: with a given start there is only that one")


def _find(path: Path, work: _Work) -> tuple[Progress | None, resume.Identity]:
    identity = resume.identify(
        work.settings, work.symbols, work.dtype, work.start, work.tokens, work.lengths, work.weights
    )
    return resume.load(path, identity), identity


def _begin(work: _Work) -> Progress:
    return Progress(trial=_trial(0, work), choosing=work.settings.restarts > 1)


def _trial(restart: int, work: _Work) -> Trial:
    settings = work.settings
    parameters = work.start
    if parameters is None:
        seed = derive(settings.seed, "hmm", "restart", restart)
        parameters = random_parameters(settings.states, work.symbols, seed, settings.concentration, settings.end)
        if settings.tied_start:
            parameters = parameters._replace(start=stationary(parameters.transition))
    if is_symmetric(parameters):
        raise HmmError(
            "the start is symmetric: all states emit the same symbols with the same probabilities, so every state gets "
            "the same share of every token and EM can never tell them apart; start from random_parameters, or from "
            "rows that differ"
        )
    return Trial(restart=restart, parameters=_copy(parameters.to(work.device, work.dtype)))


def _stopped(progress: Progress, settings: FitSettings, open_end: bool) -> Stopped | None:
    """Why the fit is over, by its epochs."""
    if progress.choosing:
        return None
    epochs = progress.trial.epochs
    # while an online fit holds, its loss is as noisy as that of few sequences, and the last gain is still to come
    held = settings.hold * settings.epochs if settings.update == "online" else 0
    if settings.tolerance is not None and len(epochs) > held + 1:
        before, now = epochs[-2].objective, epochs[-1].objective
        if now - before < settings.tolerance * abs(before):
            return "tolerance"
    return "epochs" if len(epochs) >= settings.epochs and not open_end else None


def _update(trial: Trial, work: _Work) -> Trial:
    """One expectation step over the next sequences, and the maximisation after it."""
    began = perf_counter()
    settings, tally = work.settings, trial.tally
    counts, seen = _count(trial, work)
    rate = step(settings, trial.updates, work.updates) if settings.update == "online" else None
    learned = learn(counts, trial.parameters, trial.statistics, settings, rate, work.weighed_tokens)
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


class Learned(NamedTuple):
    """What the counts of an update lead to, and what they were of."""

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
    """The maximisation of an update, with all that is checked; online, its counts replace the share `rate` of the
    running statistics, of data that has so many `tokens`."""
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


def _count(trial: Trial, work: _Work) -> tuple[Counts, int]:
    """The counts of the next update's sequences, by all processes together, and how many tokens these have."""
    rows, positions = work.tokens.shape
    part = share(rows, work.updates, trial.tally.updates, 0, 1)
    own = share(rows, work.updates, trial.tally.updates, work.team.rank, work.team.world)
    everything: slice | Tensor = part
    picked: slice | Tensor = own
    if work.updates > 1:  # of all sequences the order does not matter, and a slice takes no memory
        sequence = order(rows, work.settings.seed, len(trial.epochs))
        everything, picked = sequence[part], sequence[own]
    if own.start == own.stop:
        counts = zeros(trial.parameters)
    else:
        counts = work.count(
            trial.parameters, _of(work.tokens, picked), _maybe(work.lengths, picked), _maybe(work.weights, picked)
        )
    lengths = _maybe(work.lengths, everything)
    seen = (part.stop - part.start) * positions if lengths is None else int(lengths.sum())
    return summed(counts, work.team), seen


def _of(table: Tensor, picked: slice | Tensor) -> Tensor:
    return table[picked] if isinstance(picked, slice) else table[picked.to(table.device)]


def _maybe(table: Tensor | None, picked: slice | Tensor) -> Tensor | None:
    return None if table is None else _of(table, picked)


def _end_epoch(trial: Trial, used: Parameters, work: _Work) -> Trial:
    """The trial with a record of the epoch that its tally tells of; `used` were the parameters of the last update."""
    tally = trial.tally
    if not tally.loss_tokens > 0:
        raise HmmError("every sequence has probability zero under the start: it rules out what the data holds; "
                       "leave no zeros in it that the data contradicts")  # fmt: skip
    (prior,) = numbers(log_prior(used, work.settings.priors))
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


def _next(progress: Progress, work: _Work) -> Progress:
    """What an epoch's end leads to: the same trial, the next start, or the best one, chosen."""
    trial, best, settings = progress.trial, progress.best, work.settings
    if not progress.choosing or len(trial.epochs) < settings.restart_epochs:
        return progress
    if best is None or trial.epochs[-1].objective > best.epochs[-1].objective:
        best = trial
    if trial.restart + 1 < settings.restarts:
        return replace(progress, trial=_trial(trial.restart + 1, work), best=best)
    return Progress(trial=best)


class _Pace:
    """Seconds that an update, `on_epoch` and a checkpoint took last."""

    def __init__(self, progress: Progress, work: _Work):
        epochs, tally = progress.trial.epochs, progress.trial.tally
        self.update = epochs[-1].seconds / work.updates if epochs else tally.seconds / max(1, tally.updates)
        self.callback = self.save = 0.0

    def needed(self, progress: Progress, work: _Work) -> float:
        """For one more update and what must follow it."""
        last = progress.trial.tally.updates + 1 == work.updates
        return self.update + self.save + (self.callback if last else 0.0)


def _too_short(time_left: Callable[[], float], needed: float) -> bool:
    return time_left() <= needed


def _copy(parameters: Parameters) -> Parameters:
    return Parameters(*(None if table is None else table.detach().clone() for table in parameters))  # type: ignore[arg-type]
