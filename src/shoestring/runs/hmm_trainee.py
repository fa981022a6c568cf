"""An HMM that is fitted, update by update; its metrics count epochs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from shoestring.baselines.by_row import digest
from shoestring.baselines.hmm_score import Scorer, Scores
from shoestring.baselines.ngram import count
from shoestring.core.clock import Clock
from shoestring.core.host import is_out_of_memory
from shoestring.core.records import Plan
from shoestring.core.results import Evaluation, StateRow, StateTable
from shoestring.core.run_folder import RunFolder
from shoestring.core.seeds import derive
from shoestring.hmm.engine import engine, engine_of_updates
from shoestring.hmm.fit import Count, Epoch, Fit, FitSettings
from shoestring.hmm.maximize import Priors
from shoestring.hmm.parameters import Parameters, save
from shoestring.hmm.progress import Tally, Trial, load_progress, save_progress
from shoestring.hmm.show import describe
from shoestring.parallel.process_group import ProcessGroup
from shoestring.runs.generate import HmmWriter
from shoestring.runs.hmm_task import HmmTask
from shoestring.runs.sample_texts import SAMPLES, Sample
from shoestring.runs.trainee import Trainee
from shoestring.track import LineFile
from shoestring.training.checkpoint import State
from shoestring.training.loop import AnyHook, Consensus, Report, Requests, Sum
from shoestring.training.passes import half
from shoestring.training.schedule import Schedule


class HmmStep(NamedTuple):
    """A finished update."""

    number: int
    ended: float
    result: Report

    def read(self) -> Report:
        return self.result


class EpochEnds(NamedTuple):
    """Scores after a share `every` of the epochs, at the end of one."""

    every: float
    updates: int
    """Per epoch."""
    compared: int
    """Epochs of each start while several are compared: the winner is not known yet."""
    others: int
    """Starts that are compared with one."""

    def __call__(self, step: int, schedule: Schedule) -> bool:
        epoch, within = divmod(step, self.updates)
        number, last = (n - self.compared * self.others for n in (epoch, math.ceil(schedule.total / self.updates)))
        return not within and number > self.compared and number % max(1, math.ceil(last * self.every)) == 0

    def taken(self, step: int, schedule: Schedule) -> None:
        """Whether it is due depends on the step alone."""


class HmmTrainee(Trainee):
    """A fit whose updates are the steps of a run."""

    decays = sharded = False
    unit, step_unit = "epoch", "update"
    fit: Fit

    def __init__(self, task: HmmTask, plan: Plan, group: ProcessGroup):
        assert plan.epochs and plan.per_device, "the plan of an HMM has them"
        self.recipe, self.plan, self.group = task.recipe, plan, group
        self._task, self._settings = task, fit_settings(task, round(plan.epochs))
        self.rows = task.rows()
        self.data = self.rows.fingerprint
        self._per_device, self.scored_rows = plan.per_device, task.recipe.evaluate.rows
        self._heldout = torch.from_numpy(self.rows.scored(self.scored_rows).astype("int64"))
        self._scores: Scores | None = None
        self._scorer: Scorer | None = None

    def build(self, fresh: bool, say: Callable[[str], object] = lambda _: None) -> None:  # noqa: ARG002
        self.fit = Fit(
            torch.from_numpy(self.rows.train),
            self._settings,
            symbols=len(self.rows.alphabet),
            device=self.group.device,
            count=self._engine(),
        )
        self.planned_steps = self.fit.planned_updates
        self.tokens_per_step = self.rows.train.size / self.fit.updates_per_epoch
        if self.plan.binding == "time" and self.recipe.budget.epochs is None:
            self.most_steps = math.inf  # only time ends the fit

    @property
    def per_device(self) -> int:
        return self._per_device

    @per_device.setter
    def per_device(self, rows: int) -> None:
        if rows != self._per_device:
            self._per_device = rows
            self.fit.recount(self._engine())

    def _engine(self) -> Count:
        device = self.group.device
        if device.type == "cpu" and self.group.world > 1:  # each by its own memory: they cannot agree to halve
            return engine(device)
        return engine_of_updates(device, self._per_device, self._per_device / (self.plan.per_device or 1))

    @property
    def _compared(self) -> int:
        """Epochs of each start while several are compared; 0 with one start."""
        return self._settings.restart_epochs if self._settings.restarts > 1 else 0

    def begin(self, step: int, schedule: Schedule, requests: Requests) -> HmmStep:  # noqa: ARG002
        numbers = torch.tensor(requests.numbers(self.group.rank), dtype=torch.float64, device=self.group.device)
        before, epoch, unfitted = self.fit.progress.trial.tally, None, False
        try:
            epoch = self.fit.update()
        except Exception as cause:
            if not is_out_of_memory(cause) or self.group.world > 1:  # the others wait for counts that will not come
                raise
            unfitted = True
        self.group.all_reduce([numbers])
        consensus, finished = Consensus.of(numbers.tolist()), self.fit.stopped == "tolerance"
        loss = _loss(before, self.fit.progress.trial.tally, epoch)
        result = Report(loss, unfitted=unfitted, consensus=consensus, finished=finished, detail=epoch)
        return HmmStep(step, time.perf_counter(), result)

    def halve(self) -> int:
        self.per_device = half(self.per_device)
        return self.per_device

    @property
    def saveable(self) -> Self:
        return self

    def saved_tensors(self) -> dict[str, Tensor]:
        return save_progress(self.fit.progress)[0]

    def saved_values(self) -> dict[str, Any]:
        return save_progress(self.fit.progress)[1]

    def put_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def placement(self, name: str) -> None:
        """No tensor is divided."""

    def misfits(self, shapes: Mapping[str, torch.Size]) -> list[str]:  # noqa: ARG002
        return []

    def put_values(self, values: dict[str, Any]) -> None:
        self.fit.restore(load_progress(self._tensors, values))
        del self._tensors

    def label(self, state: State) -> int:  # noqa: ARG002
        """Epochs that ended; a run that resumes within an epoch has yet to write that epoch's lines."""
        return len(self._start.epochs)

    @property
    def _start(self) -> Trial:
        """The best start so far."""
        return self.fit.progress.best or self.fit.progress.trial

    def hooks(self, metrics: LineFile, timings: LineFile, clock: Clock) -> Sequence[AnyHook]:
        def log(state: State, report: Report) -> State:
            epoch: Epoch | None = report.detail
            if epoch is None:
                return state
            if epoch.epoch > self._compared:
                metrics.add(step=epoch.epoch, tokens=epoch.tokens, loss=epoch.loss, updates=epoch.updates)
            timings.add(step=epoch.epoch, elapsed=clock.elapsed(), tokens_per_second=epoch.tokens_per_second)
            return state

        return [log]

    def evaluates(self, state: State) -> EpochEnds:  # noqa: ARG002
        every, per_epoch = self.recipe.evaluate.every, self.fit.updates_per_epoch
        return EpochEnds(every, per_epoch, self._compared, self._settings.restarts - 1)

    def score(self) -> dict[str, float]:
        return metrics_of(self._score())

    def evaluate(self, state: State) -> Evaluation:
        self._scores = self._score()
        return replace(as_evaluation(self._scores, self.label(state)), scored_rows=digest(self._heldout.numpy()))

    @property
    def writes(self) -> bool:
        return self.recipe.evaluate.prompts != ()

    def samples(self, tokens: int) -> list[Sample]:
        writer, prompts = HmmWriter(self.fit.parameters, tuple(self.rows.alphabet)), self.recipe.evaluate.prompts
        if prompts is None:
            return [Sample("", text) for text in writer.write("", tokens, count=SAMPLES)]
        return [Sample(prompt, writer.write(prompt, tokens)[0]) for prompt in prompts]

    def _score(self) -> Scores:
        parameters = self.fit.parameters
        if self._scorer is None:
            self._scorer = Scorer(parameters, count([self.rows.train], len(self.rows.alphabet)))
        return self._scorer(parameters, self._heldout)

    def write_results(self, folder: RunFolder) -> int:
        assert self._scores is not None, "it was evaluated"
        save(folder.model, self.fit.parameters, self.rows.alphabet, parents=False)
        folder.write(folder.states, state_table(self.fit.parameters, self.rows.alphabet))
        folder.write(folder.scores, self._scores)
        return folder.model.stat().st_size

    def steps_taken(self, state: State) -> int:  # noqa: ARG002
        return self._start.updates

    def predictions_made(self, state: State) -> int:
        """An HMM predicts every token of its rows."""
        return self.tokens_seen(state)

    def tokens_seen(self, state: State) -> int:  # noqa: ARG002
        start = self._start
        return sum(epoch.tokens for epoch in start.epochs[-1:]) + start.tally.tokens

    def progress(self, state: State) -> tuple[int, int]:
        per_epoch, extra = self.fit.updates_per_epoch, self._compared * (self._settings.restarts - 1)
        done, total = state.step // per_epoch, math.ceil(state.schedule.total / per_epoch)
        return max(0, done - extra), max(1, total - extra)


def _loss(before: Tally, after: Tally, epoch: Epoch | None) -> Sum:
    """The loss of an update's rows under the tables before it; of the whole epoch where the update ended one."""
    if epoch is not None:
        return Sum(epoch.loss * epoch.loss_tokens, max(1, round(epoch.loss_tokens)))
    tokens = after.loss_tokens - before.loss_tokens
    return Sum(before.log_likelihood - after.log_likelihood, max(1, round(tokens)))


def fit_settings(task: HmmTask, epochs: int) -> FitSettings:
    """The settings of a fit of the recipe's model in so many epochs."""
    hmm = task.hmm
    return FitSettings(
        states=hmm.states,
        epochs=epochs,
        update=hmm.update,
        update_every=hmm.update_every,
        priors=Priors(start=hmm.prior, transition=hmm.prior, emission=hmm.prior, end=hmm.prior),
        restarts=hmm.restarts,
        concentration=hmm.concentration,
        tied_start=hmm.tied_start,
        tolerance=hmm.tolerance,
        seed=derive(task.recipe.run.seed, "hmm"),
    )


def state_table(parameters: Parameters, alphabet: Sequence[str], most: int = 30) -> StateTable:
    """The `most` most visited states, as a table for people."""
    description = describe(parameters, alphabet, top=6)
    rows = tuple(
        StateRow(
            state=state.state,
            share=state.stationary,
            words=", ".join(f"{w.word} {w.probability:.2f}" for w in state.words if w.probability >= 0.005),
            moves=", ".join(f"{m.state} {m.probability:.2f}" for m in state.moves[:4] if m.probability >= 0.005),
        )
        for state in description.states[:most]
    )
    return StateTable(rows=rows, sentences=description.sentences)


def metrics_of(scores: Scores) -> dict[str, float]:
    """The metrics of a scoring: the model's losses, and each baseline's loss with its divergences from the model.

    `kl_of_X` is KL(X ‖ model), as in the metrics of a network, and `kl_to_X` is KL(model ‖ X). A divergence that is
    infinite is left out.
    """
    named: dict[str, float | None] = {
        "heldout_loss": math.inf if scores.impossible else scores.loss,
        "heldout_error": scores.loss_error,
        "heldout_last_token_loss": scores.last_token_loss,
    }
    for name, baseline in scores.baselines.items():
        named[f"loss_of_{name}"] = baseline.loss
        named[f"kl_of_{name}"] = baseline.kl_of_baseline
        named[f"kl_to_{name}"] = baseline.kl_of_model
    return {name: value for name, value in named.items() if value is not None}


def as_evaluation(scores: Scores, epochs: int) -> Evaluation:
    """The evaluation record of a fit's scores, after so many epochs."""
    assert scores.loss is not None and scores.perplexity is not None, "a prior leaves no row impossible"
    baselines = {name: value.loss for name, value in scores.baselines.items() if value.loss is not None}
    return Evaluation(
        step=epochs,
        rows=scores.sequences,
        tokens=scores.tokens,
        loss=scores.loss,
        perplexity=scores.perplexity,
        perplexity_error=None if scores.loss_error is None else scores.perplexity * scores.loss_error,
        bits_per_byte=None,
        loss_by_position=tuple(loss for loss in scores.loss_by_position if loss is not None),
        baselines=baselines,
        loss_error=scores.loss_error,
        nats_by_row=scores.nats_by_row,
        predictions_by_row=scores.tokens_by_row,
    )
