"""A network in training: its learner on the rows of its corpus, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from shoestring.baselines.of_corpus import baseline_seconds, baselines_beside, counted_loss
from shoestring.baselines.streams import Baselines
from shoestring.core.clock import Clock
from shoestring.core.environment import slowness, step_seconds
from shoestring.core.errors import StorageError
from shoestring.core.family import family_of
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.results import Evaluation, Grown, Sharing
from shoestring.core.run_folder import RunFolder
from shoestring.core.sections import number
from shoestring.core.train_section import Train
from shoestring.core.units import Bytes
from shoestring.core.warmup import least_steps
from shoestring.data.pack.order import Pool
from shoestring.data.store.store import tokenizer_text
from shoestring.datasets.corpus import Corpus, StoreCorpus, StreamCorpus, open_corpus
from shoestring.datasets.other_text import OtherText
from shoestring.datasets.source import TokenSource
from shoestring.parallel.process_group import ProcessGroup
from shoestring.planning.corpus import SPARE, scored_at_once
from shoestring.probe.machine import available_bytes
from shoestring.runs.continued import Continued, RowsRead, steps_before
from shoestring.runs.drift import AfterFirstStep, Drift
from shoestring.runs.evaluate import Known, Watch, evaluate_learner
from shoestring.runs.generate import NetworkWriter
from shoestring.runs.network_workload import RandomRows, make_learner
from shoestring.runs.prepare import prepare_recipe
from shoestring.runs.reporter import Reporter
from shoestring.runs.sample_texts import Sample, sample_network
from shoestring.runs.trained_model import check_tokenizer, continue_run
from shoestring.runs.trainee import Trainee
from shoestring.track import LineFile
from shoestring.training import hooks
from shoestring.training.checkpoint import Saveable, State
from shoestring.training.growth import GrowingStepper, NoiseLines
from shoestring.training.hooks import Evenly
from shoestring.training.learner import Learner
from shoestring.training.loop import AnyHook, Requests
from shoestring.training.schedule import Schedule, Warmup
from shoestring.training.stepper import NetworkStep, Stepper

WRITING_SECONDS = 300.0
"""Of a run on a GPU whose model writes texts: kernels for the shapes of texts may take seconds to load."""
METRICS_LINES = 1000
"""About how many lines a run writes."""
AS_THEY_ARE = 3.0
"""The memory of layers that are not compiled, at most, in that of compiled ones."""


class NetworkTrainee(Trainee):
    """Steps with the effective batch; a step that does not fit the memory is repeated with a smaller micro-batch."""

    looks_ahead = True

    corpus: Corpus
    learner: Learner
    _stepper: Stepper
    _watch: Watch
    _reads: StoreCorpus | None
    """The store with the rows that it reads, if they come from one."""
    _drift: Drift | None = None
    _baselines: Callable[[], Baselines] | None = None
    """Those of a stream, which are computed while a GPU trains."""
    _say: Callable[[str], object] = staticmethod(lambda _: None)

    def __init__(self, recipe: Recipe, plan: Plan, group: ProcessGroup):
        assert plan.steps and plan.per_device and plan.effective_batch, "a network's plan has them"
        self.recipe, self.plan, self.group = recipe, plan, group
        self._split = plan.effective_batch, plan.per_device
        self.scored_rows = scored_at_once(recipe, plan.per_device, group.device.type)
        self.planned_steps = plan.steps
        if plan.binding == "time":
            self.most_steps = math.inf if plan.most_steps is None else plan.most_steps
        elif recipe.budget.time is not None:  # slow first steps may shorten the run, and it must grow again
            self.most_steps = plan.steps
        self.tokens_per_step = plan.effective_batch * recipe.data.length
        self._saved: dict[str, Any] = {}
        self._before = 0
        self._continued: Continued | None = None
        self._known = Known()
        self._best: tuple[int, Known] | None = None

    def write_inputs(self, folder: RunFolder) -> None:
        if not folder.tokenizer.is_file():
            folder.write(folder.tokenizer, tokenizer_text(self.corpus.tokenizer))
        if self._drift is not None:
            self._drift.write(folder.overlap)

    def build(self, fresh: bool, say: Callable[[str], object] = lambda _: None) -> None:
        recipe, group = self.recipe, self.group
        self._say, continued = say, bool(recipe.train.continued)
        init = fresh and not continued
        self.learner = make_learner(recipe, group.device, group, init, say, self._compiles_beside())
        if fresh and continued:
            self._continued = continue_run(self.learner, recipe, say)
            self._before = self._continued.steps(recipe)
        if fresh and recipe.evaluate.overlap is not None:
            self._drift = Drift.begin(self.learner, recipe, say)

    def warm_up(self) -> None:
        """On a GPU, kernels are compiled and loaded; several processes would have to agree on it."""
        if self.group.device.type == "cuda" and self.group.world == 1:
            rows = self._split[1]
            self.learner.warm_up(RandomRows(self.recipe).rows(rows), rows)

    def _compiles_beside(self) -> bool:
        """Whether steps may run before their layers are compiled: on one GPU with room for what they then keep.

        Not with dropout, whose random numbers a thread that compiles would draw from.
        """
        device, train, peak = self.group.device, self.recipe.train, self.plan.peak_bytes
        if device.type != "cuda" or self.group.world > 1 or train.recompute != "none" or peak is None:
            return False
        free = available_bytes(device)
        return free is not None and AS_THEY_ARE * peak < free and not self.recipe.model.drops

    @property
    def settling(self) -> bool:
        return self.learner.settling

    @property
    def unrecorded(self) -> str | None:
        return self.learner.unrecorded

    def open_rows(self) -> None:
        recipe, group = self.recipe, self.group
        self.corpus = group.on_all(open_corpus, recipe, self.plan)
        self.data, self.data_bytes = self.corpus.fingerprint, self.corpus.bytes
        if not isinstance(self.corpus, StreamCorpus):
            group.on_all(check_tokenizer, recipe, self.corpus.tokenizer)
        source, (batch, rows) = self.corpus.training(group.device), self._split
        self._reads = store_corpus(self.corpus)
        if isinstance(self.corpus, StreamCorpus) and group.device.type == "cuda":
            self._baselines = baselines_beside(self.corpus)
        self._stepper = self._make_stepper(source, recipe.train, batch=batch, per_device=rows, seed=recipe.run.seed)
        self._stepper.before = self._before
        self._stepper.slowness, self._stepper.least_seconds = slowness(group.rank), step_seconds()
        continued, self._continued = self._continued, None  # with its tensors
        if continued is not None and self._reads is not None:
            self._read_on(self._reads, group.on_all(continued.rows_read, recipe))

    def _read_on(self, corpus: StoreCorpus, rows: RowsRead | None) -> None:
        """Read first what the run that this one continues has not read; `rows` are those that it had."""
        if rows is None:
            return
        share, pools = rows
        if not pools:
            self._stepper.before = self._before = 0
            self._say("the text has changed since the run that this one continues, so it is read from its beginning")
            return
        if share > corpus.share:
            self.group.on_first(self._prepare, share)
        self._read(self.group.on_all(corpus.after, share, pools, self._before * self._split[0]))

    def _make_stepper(self, source: TokenSource, train: Train, **rest: int) -> Stepper:
        if train.grow is None:
            return Stepper(self.learner, source, train, **rest)
        return GrowingStepper(self.learner, source, train, most=train.grow, say=self._say, **rest)

    def warmup(self) -> Warmup:
        if self.recipe.train.continued:
            return Warmup.planned(self.planned_steps, 0.0, 0)
        return Warmup.planned(self.planned_steps, number(self.recipe.train.warmup), least_steps(self.recipe))

    @property
    def saveable(self) -> Saveable:
        return self.learner

    @property
    def per_device(self) -> int:
        return self._stepper.per_device

    @per_device.setter
    def per_device(self, rows: int) -> None:
        self._stepper.per_device = rows

    def begin(self, step: int, schedule: Schedule, requests: Requests) -> NetworkStep:
        self._known.forget()
        return self._stepper.begin(step, schedule, requests)

    def halve(self) -> int:
        return self._stepper.halve()

    def saved_values(self) -> dict[str, Any]:
        before: dict[str, Any] = {"before": self._before} if self._before else {}
        if isinstance(self._stepper, GrowingStepper):
            before["growth"] = self._stepper.growth.saved()
        return before | self.rows_read()

    def rows_read(self) -> dict[str, Any]:
        """The rows that this run reads, as a checkpoint keeps them: from each of some positions on, how many there are,
        and the share of the corpus that they are of. Empty if they are the plan's."""
        if self._reads is None or self._reads is store_corpus(self.corpus):
            return {}
        pools = self._reads.training_rows.pools
        return {"pools": [list(pool) for pool in pools], "share": self._reads.share}

    def put_values(self, values: dict[str, Any]) -> None:
        self._saved = values
        self._stepper.before = self._before = steps_before(values, RunFolder.of(self.recipe).checkpoints)
        if isinstance(self._stepper, GrowingStepper) and "growth" in values:
            self._stepper.put(values["growth"])
        self._known.forget()

    def continue_rows(self) -> None:
        if self._reads is None or "pools" not in self._saved:
            return
        self.group.on_first(self._prepare, self._saved["share"])
        self._read(self.group.on_all(reading, self._reads, self._saved))

    def _prepare(self, share: float) -> None:
        """Where the plan has no share, all that there is was prepared."""
        if self.plan.share is not None:
            prepare_recipe(self.recipe, replace(self.plan, share=share), Reporter())

    def more_rows(self, steps: int) -> float | None:
        reads = self._reads
        if reads is None or self.plan.share is None or reads.share >= 1:
            return None
        needed, there = (self._before + steps) * self._split[0], len(reads.training_rows)
        if needed <= there:
            return None
        share = min(1.0, SPARE * needed / there * reads.share)
        disk, more = self.recipe.budget.disk, (share / reads.share - 1) * reads.bytes
        room = math.inf if disk is None else int(disk) - (self.plan.disk_bytes or 0) - (reads.bytes - self.corpus.bytes)
        if more > room:
            raise StorageError(f"it would take {Bytes(int(more)).short()} more, and budget.disk = {disk}")
        return share

    def get_rows(self, share: float, step: int) -> int:
        assert self._reads is not None, "only the rows of a store grow"
        position = (self._before + step) * self._split[0]
        self._read(self.group.on_all(self._reads.with_more, share, position))
        return len(self._reads.training_rows)

    def _read(self, corpus: StoreCorpus) -> None:
        self._reads, self.data_bytes = corpus, corpus.bytes
        self._stepper.source = corpus.training(self.group.device)

    def hooks(self, metrics: LineFile, timings: LineFile, clock: Clock) -> Sequence[AnyHook]:
        self._watch = Watch(self.corpus, self._known)
        if self._drift is None and self.recipe.evaluate.overlap is not None:
            self._drift = Drift.read(RunFolder.of(self.recipe).overlap)
        every = max(1, self.planned_steps // METRICS_LINES)
        log = hooks.Log(metrics, timings, clock, every, int(self.tokens_per_step))
        found: list[AnyHook] = [log] if self._drift is None else [log, AfterFirstStep(self._distance, metrics)]
        return [*found, NoiseLines(self._stepper, metrics)] if isinstance(self._stepper, GrowingStepper) else found

    def evaluates(self, state: State) -> Evenly:
        every, planned = self.recipe.evaluate.every, self.plan.evaluations
        if planned and self.group.device.type == "cpu":  # on a GPU the clock decides
            every = max(every, 1 / planned)
        return Evenly(every, state)

    def repeats(self, state: State) -> bool:
        if isinstance(self.corpus, StreamCorpus):
            return False
        return self._reads is None or (self._before + state.step) * self._split[0] > len(self._reads.training_rows)

    def score(self) -> dict[str, float]:
        return self._watch(self.learner, self.scored_rows) | self._distance()

    def _distance(self) -> dict[str, float]:
        """From the first weights, where the recipe asks for it."""
        return {} if self._drift is None else self._drift.scores(self.learner)

    def evaluate(self, state: State) -> Evaluation:
        step, known = self._best or (None, self._known)
        if step != state.step:
            known = self._known
        baselines = None if self._baselines is None else self._baselines()
        return evaluate_learner(self.learner, state.step, self.scored_rows, self.corpus, known, baselines)

    @property
    def writes(self) -> bool:
        """A causal network that this process has whole; on a GPU, in a run that is not short."""
        hides = family_of(self.recipe.model).predicts_hidden(self.recipe.model)
        short = self.group.device.type == "cuda" and (self.plan.seconds or 0.0) < WRITING_SECONDS
        return self.recipe.evaluate.prompts != () and not (hides or short or self.learner.sharded)

    def samples(self, tokens: int) -> list[Sample]:
        writer = NetworkWriter(self.learner.model, self.corpus.tokenizer, self.recipe.data.length, recorded=False)
        with self.learner.writing():
            return sample_network(writer, self.recipe.evaluate.prompts, self.corpus.heldout().ids, tokens)

    def keep_scores(self, step: int) -> None:
        self._best = step, self._known.copy()

    def sharing(self, state: State) -> Sharing | None:
        workers = self.group.world
        if workers == 1:
            return None
        sent = None if self.learner.sharded else state.step * weight_bytes(self.learner.optimizer.masters.values())
        return Sharing(strategy="sync", workers=workers, synchronisations=state.step, sent_bytes=sent)

    def grown(self) -> Grown | None:
        return self._stepper.grown() if isinstance(self._stepper, GrowingStepper) else None

    def counted_loss(self) -> float | None:
        return counted_loss(self.corpus)

    def baseline_seconds(self) -> float | None:
        return baseline_seconds(self.corpus)


def weight_bytes(weights: Iterable[Tensor]) -> int:
    """Bytes of all weights, and of their gradients."""
    return sum(tensor.numel() * tensor.element_size() for tensor in weights)


def reading(corpus: StoreCorpus, values: dict[str, Any]) -> StoreCorpus:
    """A corpus with the rows that the values of a checkpoint name."""
    return corpus.with_pools(values["share"], tuple(Pool(*pool) for pool in values["pools"]))


def store_corpus(corpus: Corpus) -> StoreCorpus | None:
    read = corpus.base if isinstance(corpus, OtherText) else corpus
    return read if isinstance(read, StoreCorpus) else None
