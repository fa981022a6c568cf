"""An HMM from its recipe to DONE: rows, profile, plan, fit, score, page. It goes on wherever it was cut."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from shoestring.core.clock import Clock
from shoestring.core.errors import RunError, UserError
from shoestring.core.facts import Evaluation, Outcome, Plan, StateRow, StateTable
from shoestring.core.files import folder_bytes
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder
from shoestring.data.sentence_store import SentenceStore, prepare_rows
from shoestring.hmm.contexts import count_corpus
from shoestring.hmm.engine import engine_of_updates
from shoestring.hmm.fit import Epoch, FitSettings, fit
from shoestring.hmm.inference import token_log_probs
from shoestring.hmm.parameters import Parameters, Saved, load, save
from shoestring.hmm.score import Scores, score
from shoestring.hmm.show import describe
from shoestring.parallel.team import Team, join
from shoestring.plan.make import RESERVE_SECONDS, checkpoint_interval, reserve_seconds
from shoestring.probe.machine import describe_machine, pick_device
from shoestring.probe.meter import Meter
from shoestring.report.page import draw, write_page
from shoestring.stages.hmm_workload import fit_settings
from shoestring.stages.measure import Measuring, ensure_profile
from shoestring.stages.plan import plan_recipe, read_plan
from shoestring.stages.session import FINISH_MARGIN
from shoestring.stages.train import Finished, measuring_seconds, read_finished
from shoestring.stages.voice import Live, Voice
from shoestring.track import LineFile, read_lines


def fit_recipe(recipe: Recipe, voice: Voice, clock: Clock) -> Finished | None:
    """Everything that is missing, up to DONE. Under torchrun all processes share the counting; the first one writes,
    and the others return None."""
    if recipe.hmm is None:
        raise UserError("this recipe has no [hmm] section; a network is trained with: shoestring train RECIPE")
    folder, team = RunFolder.of(recipe), join(pick_device())
    with contextlib.ExitStack() as stack:
        if team.rank == 0:
            stack.enter_context(folder.lock())
        plan = team.first(_begin, recipe, folder, voice, clock)
        if plan is None:
            return read_finished(folder) if team.rank == 0 else None
        rows = prepare_rows(recipe.data, recipe.run.seed, recipe.hmm)
        return _fit(recipe, folder, plan, rows, voice, clock, team)


def _begin(recipe: Recipe, folder: RunFolder, voice: Voice, clock: Clock) -> Plan | None:
    """Rows and plan; None where the run is finished."""
    with folder.claiming(recipe):
        if folder.done.is_file():
            voice.say(f"{folder.path} is finished; its page is {folder.report}")
            return None
        assert recipe.hmm is not None
        rows = prepare_rows(recipe.data, recipe.run.seed, recipe.hmm)
        length, heldout = recipe.data.length, len(rows.heldout)
        voice.say(f"{len(rows.train):,} rows of {length} tokens, {heldout:,} held out: {rows.path}")
        plan = plan_fit(recipe, folder, voice, clock)
    voice.planned(plan)
    return plan


def plan_fit(recipe: Recipe, folder: RunFolder, voice: Voice, clock: Clock) -> Plan:
    """The plan that is there, or a new one after measuring."""
    if folder.plan.is_file():
        return read_plan(recipe, folder.plan)
    profile = ensure_profile(recipe, folder, voice, Measuring(seconds=measuring_seconds(recipe)))
    plan = plan_recipe(recipe, profile, clock.elapsed())
    plan.write(folder.plan)
    return plan


def _until_time(recipe: Recipe, plan: Plan) -> bool:
    """Whether it is time alone that ends a fit: one that is faster than planned goes on."""
    return plan.binding == "time" and recipe.budget.epochs is None


class _Writer:
    """Writes an epoch's metrics and timings, scores the held-out rows when due, and shows where the fit stands."""

    def __init__(self, recipe: Recipe, folder: RunFolder, plan: Plan, rows: SentenceStore, voice: Voice, clock: Clock):
        self._recipe, self._plan, self._voice, self._clock = recipe, plan, voice, clock
        self._heldout = torch.from_numpy(rows.heldout[: recipe.evaluate.rows].astype("int64"))
        self._metrics, self._timings = LineFile(folder.metrics), LineFile(folder.timings)
        lines = read_lines(folder.metrics)  # a process may have been killed between the two lines of an epoch
        self._written, self._scored = (
            {line["step"] for line in lines if key in line} for key in ("loss", "heldout_loss")
        )
        self._timings.add(step=max(self._written, default=0), elapsed=clock.elapsed(), event="start", **clock.marks)
        assert plan.epochs is not None and recipe.hmm is not None
        # while several starts are compared, an epoch comes once for each of them, and the winner is not known yet
        self._compared = FitSettings(states=2).restart_epochs if recipe.hmm.restarts > 1 else 0
        self._last = round(plan.epochs)
        self._planned = _epoch_seconds(plan)
        self._seconds, self._epochs = 0.0, 0
        self.beyond = False
        """Whether all epochs that were planned are made."""
        self._every = max(1, math.ceil(self._last * recipe.evaluate.every))

    @property
    def slower(self) -> float:
        """How many times as long as planned epochs take, one at least: what follows them will be as slow."""
        return max(1.0, self._seconds / max(1, self._epochs) / self._planned)

    def __call__(self, epoch: Epoch, parameters: Parameters) -> None:
        self._seconds, self._epochs = self._seconds + epoch.seconds, self._epochs + 1
        self.beyond = epoch.epoch >= self._last
        number, comparing = epoch.epoch, epoch.epoch <= self._compared
        if number not in self._written and not comparing:
            self._metrics.add(step=number, tokens=epoch.tokens, loss=epoch.loss, updates=epoch.updates)
            self._written.add(number)
        due = number % self._every == 0 or number == self._last
        if due and number not in self._scored and not comparing:
            loss = -float(token_log_probs(parameters, self._heldout).log_probabilities.double().mean())
            self._metrics.add(step=number, heldout_loss=loss)
            self._scored.add(number)
        speed = epoch.tokens_per_second
        self._timings.add(step=epoch.epoch, elapsed=self._clock.elapsed(), tokens_per_second=speed)
        budget = self._recipe.budget.time
        live = Live(
            step=epoch.epoch,
            total=max(self._last, epoch.epoch),
            loss=epoch.loss,
            tokens_per_second=speed,
            seconds_left=max(0, self._last - epoch.epoch) * epoch.seconds,
            budget_left=None if budget is None else float(budget) - self._clock.elapsed(),
        )
        self._voice.training(live)

    def evaluated(self, evaluation: Evaluation) -> None:
        """After the last epoch, which may not have been due."""
        if evaluation.step not in self._scored:
            self._metrics.add(step=evaluation.step, heldout_loss=evaluation.loss)

    def end(self, epochs: int) -> None:
        self._timings.add(step=epochs, elapsed=self._clock.elapsed(), event="end")


def _fit(
    recipe: Recipe, folder: RunFolder, plan: Plan, rows: SentenceStore, voice: Voice, clock: Clock, team: Team
) -> Finished | None:
    device = team.device
    writer = _Writer(recipe, folder, plan, rows, voice, clock) if team.rank == 0 else None
    budget = recipe.budget.time

    def time_left() -> float:
        if budget is None:
            return math.inf
        assert writer is not None, "the first process is asked"
        kept = reserve_seconds(float(budget)) if writer.beyond else RESERVE_SECONDS
        return float(budget) - clock.elapsed() - FINISH_MARGIN * plan.parts["finish"] * writer.slower - kept

    meter = Meter(device)
    fitted = fit(
        torch.from_numpy(rows.train),
        fit_settings(recipe, round(plan.epochs or 0)),
        symbols=len(rows.alphabet),
        device=device,
        on_epoch=writer,
        checkpoint=folder.checkpoints / "fit.safetensors",
        checkpoint_every=_epochs_between_checkpoints(recipe, plan),
        time_left=time_left,
        until_time=_until_time(recipe, plan),
        count=engine_of_updates(device, plan.per_device),
    )
    if writer is None:
        return None
    usage = meter.usage()
    voice.trained()
    describe_machine(device).write(folder.machine)
    save(folder.model, fitted.parameters, rows.alphabet)
    state_table(fitted.parameters, rows.alphabet).write(folder.states)
    scores = score_rows(fitted.parameters, rows, recipe.evaluate.rows)
    scores.write(folder.scores)
    evaluation = _as_evaluation(scores, len(fitted.epochs))
    evaluation.write(folder.evaluation)
    voice.evaluated(evaluation)
    writer.evaluated(evaluation)
    figures = draw(folder)
    writer.end(len(fitted.epochs))
    timings = read_lines(folder.timings)
    speeds = [line["tokens_per_second"] for line in timings if "tokens_per_second" in line]
    made, planned = len(fitted.epochs), round(plan.epochs or 0)
    short = f"the time was up after {made} of {planned} epochs" if fitted.stopped == "time" and made < planned else None
    outcome = Outcome(
        steps=fitted.epochs[-1].updates if fitted.epochs else 0,
        tokens=len(fitted.epochs) * rows.train.size,
        seconds=clock.elapsed(),
        segments=sum(line.get("event") == "start" for line in timings),
        tokens_per_second=len(speeds) / sum(1 / speed for speed in speeds) if speeds else 0.0,
        disk_bytes=folder_bytes(folder.checkpoints) + folder.model.stat().st_size,
        peak_bytes=None if usage is None else usage.reserved,
        loss=evaluation.loss,
        shortened=short,
    )
    write_page(folder, figures, outcome)
    outcome.write(folder.done)
    return Finished(folder, plan, outcome, evaluation)


def _epochs_between_checkpoints(recipe: Recipe, plan: Plan) -> int:
    """As many as the interval has seconds for, one at least."""
    return max(1, int(checkpoint_interval(recipe) / _epoch_seconds(plan)))


def _epoch_seconds(plan: Plan) -> float:
    assert plan.step_seconds and plan.steps and plan.epochs, "a plan of an HMM has them"
    return plan.step_seconds * plan.steps / plan.epochs


def state_table(parameters: Parameters, alphabet: Sequence[str], most: int = 30) -> StateTable:
    """The most visited states as a table for people."""
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


def score_rows(parameters: Parameters, rows: SentenceStore, most: int | None = None) -> Scores:
    """Held-out rows, causally, beside the strategies in context and from the training rows."""
    counts = count_corpus(torch.from_numpy(rows.train.astype("int64")), len(rows.alphabet))
    return score(parameters, torch.from_numpy(rows.heldout[:most].astype("int64")), corpus_counts=counts)


def _as_evaluation(scores: Scores, epochs: int) -> Evaluation:
    assert scores.loss is not None and scores.perplexity is not None, "a prior leaves no row impossible"
    strategies = {name: value.loss for name, value in scores.strategies.items() if value.loss is not None}
    return Evaluation(
        step=epochs,
        rows=scores.sequences,
        tokens=scores.tokens,
        loss=scores.loss,
        perplexity=scores.perplexity,
        bits_per_byte=None,
        loss_by_position=tuple(loss for loss in scores.loss_by_position if loss is not None),
        strategies=strategies,
    )


class Opened(NamedTuple):
    """A fitted model with the rows it was made for."""

    recipe: Recipe
    folder: RunFolder
    model: Saved


def open_model(run: Path) -> Opened:
    """The model of a run, finished or not."""
    folder = RunFolder.open(run)
    if not folder.model.is_file():
        raise RunError(f"{run} holds no fitted HMM yet: it has no {folder.model.name}")
    return Opened(folder.read_recipe(), folder, load(folder.model))


def score_run(run: Path) -> Scores:
    """Score a fitted run's model on all its held-out rows."""
    opened = open_model(run)
    hmm = opened.recipe.hmm
    assert hmm is not None
    rows = prepare_rows(opened.recipe.data, opened.recipe.run.seed, hmm)
    if rows.alphabet != opened.model.alphabet:
        raise RunError(f"{opened.folder.model} has another alphabet than {rows.path}")
    return score_rows(opened.model.parameters.to(pick_device(), torch.float32), rows)
