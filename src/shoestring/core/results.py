"""The records of what a run came to: scores, the states of an HMM, the outcome. Words and units as in `records`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from shoestring.core.consistency import differs, negatives
from shoestring.core.schema import Record


@dataclass(frozen=True, kw_only=True)
class ClassScore:
    """How well one class is predicted."""

    label: int
    rows: int
    """Scored rows of this class."""
    precision: float | None
    """Of the rows predicted as this class, the share that belong to it; None: no row was."""
    recall: float | None
    """Share of its rows that were predicted as it; None: it has none."""
    f1: float | None


@dataclass(frozen=True, kw_only=True)
class TextScore:
    """The scores on one of several texts; as in `Evaluation`."""

    name: str
    text: str
    """Its source."""
    rows: int
    tokens: int
    loss: float
    loss_error: float | None
    perplexity: float
    bits_per_byte: float | None
    bits_per_byte_error: float | None
    accuracy: float | None
    accuracy_error: float | None
    macro_f1: float | None
    macro_f1_error: float | None
    perplexity_error: float | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluation(Record):
    """Scores on held-out rows, in nats per prediction.

    A standard error is that of rows drawn at random, with the model as it is; predictions of one row depend on each
    other. None: there are fewer than two rows, or an older version wrote the record.
    """

    SCHEMA: ClassVar[str] = "shoestring.evaluation/2"

    step: int
    rows: int
    """With `evaluate.context`, rows are joined until they predict as much as rows that do not overlap."""
    tokens: int
    loss: float
    perplexity: float
    bits_per_byte: float | None
    loss_by_position: tuple[float | None, ...]
    """None at positions without a prediction, or that are context."""
    baselines: dict[str, float]
    """The loss of each baseline on the same tokens."""
    baselines_by_position: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """The same by position, for baselines that learn within a row."""
    entropy_rate: float | None = None
    """Of the source: the loss of the best predictor in the long run; None: unknown."""
    entropy_rate_error: float | None = None
    """Its standard error."""
    accuracy: float | None = None
    """Share of the rows whose class was predicted; None where tokens are predicted."""
    macro_f1: float | None = None
    """Mean F1 over the classes."""
    majority_accuracy: float | None = None
    """Of always choosing the most frequent class in training."""
    majority_macro_f1: float | None = None
    text: str | None = None
    """The source that was scored; None: held-out rows of the training source."""
    loss_error: float | None = None
    """Standard error of the loss."""
    perplexity_error: float | None = None
    """By the delta method: perplexity × loss_error."""
    bits_per_byte_error: float | None = None
    accuracy_error: float | None = None
    macro_f1_error: float | None = None
    classes: tuple[ClassScore, ...] = ()
    """By class; empty where tokens are predicted."""
    confusion: tuple[tuple[int, ...], ...] = ()
    """Rows by true class, then by predicted class."""
    texts: tuple[TextScore, ...] = ()
    """Every named text of data.validation. The first is the one that the other fields are about, and that decides the
    best checkpoint."""
    nats_by_row: tuple[float, ...] = ()
    """The sum of the losses of each row; empty: an older version wrote the record."""
    predictions_by_row: tuple[int, ...] = ()
    scored_rows: str | None = None
    """Names the rows: two evaluations with the same text are of the same rows."""

    def contradictions(self) -> list[str]:
        lines = negatives(self)
        if self.nats_by_row:
            lines += differs("rows", self.rows, len(self.nats_by_row), "the length of nats_by_row")
            lines += differs("rows", self.rows, len(self.predictions_by_row), "the length of predictions_by_row")
        lines += differs("perplexity", self.perplexity, math.exp(min(abs(self.loss), 700.0)), "exp(loss)", 1e-4)
        for name in ("accuracy", "macro_f1", "majority_accuracy", "majority_macro_f1"):
            if (getattr(self, name) or 0.0) > 1.0:
                lines.append(f"{name} = {getattr(self, name)!r}: must be at most 1")
        if self.confusion:
            lines += differs("rows", self.rows, sum(map(sum, self.confusion)), "the sum of the confusion matrix")
        return lines


@dataclass(frozen=True, kw_only=True)
class GroupScore:
    """How often a model prefers the right choice, in one group of items."""

    name: str
    items: int
    accuracy: float
    accuracy_error: float | None
    oracle: float | None = None
    """Of the source of the items; None: unknown."""


@dataclass(frozen=True, kw_only=True)
class Preferences(Record):
    """How often a model prefers the right one of several texts, by likelihood.

    Of k texts that are equally likely each counts 1 / k: a tie of a pair counts half. Standard errors are those of
    items drawn at random; None: there is one.
    """

    SCHEMA: ClassVar[str] = "shoestring.preferences/1"

    kind: str
    """"pairs" or "choices"."""
    source: str
    step: int | None
    """Of the weights; None: the model of an HMM's run."""
    items: int
    accuracy: float
    accuracy_error: float | None
    accuracy_per_byte: float | None
    """With likelihoods per byte of the choice, which does not favour short ones; None for pairs."""
    accuracy_per_byte_error: float | None
    chance: float
    """Of a guess, for the items that were scored."""
    oracle: float | None
    """Of the source of the items, as far as any model can get; None: unknown."""
    ties: int
    skipped: int
    """Items with a word that the model does not have."""
    cut: int
    """Items that are longer than a row, and whose beginning was not read."""
    groups: tuple[GroupScore, ...] = ()
    oracle_error: float | None = None


@dataclass(frozen=True, kw_only=True)
class HarnessScore:
    """One number of lm-evaluation-harness."""

    task: str
    metric: str
    filter: str
    """What the harness did to answers before it judged them; "none"."""
    value: float
    error: float | None
    """Its standard error; None: the harness has none for this metric."""
    items: int | None


@dataclass(frozen=True, kw_only=True)
class HarnessScores(Record):
    """What a run reaches on tasks of lm-evaluation-harness."""

    SCHEMA: ClassVar[str] = "shoestring.harness/1"

    tasks: tuple[str, ...]
    """As they were given."""
    step: int | None
    """Of the weights."""
    version: str
    """Of the harness."""
    limit: int | None
    """Items of each task that were scored; None: all of them."""
    scores: tuple[HarnessScore, ...]


@dataclass(frozen=True, kw_only=True)
class StateRow:
    """One state of an HMM, for people."""

    state: int
    share: float
    """Of the time in the long run."""
    words: str
    """The most likely words, with their probabilities."""
    moves: str
    """The most likely next states, with their probabilities."""


@dataclass(frozen=True, kw_only=True)
class StateTable(Record):
    """What the states of an HMM mean, for people: the most visited first."""

    SCHEMA: ClassVar[str] = "shoestring.states/1"

    rows: tuple[StateRow, ...]
    sentences: tuple[str, ...]
    """Drawn from the model."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the numbers of a run say, in a plain sentence."""

    kind: str
    """One word for programs, such as overfitting."""
    text: str


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The held-out loss that a run is expected to end with."""

    step: int
    """After which it was made."""
    loss: float
    low: float
    """The ends of its 90 % interval."""
    high: float
    runs: int = 0
    """Number of earlier runs on the same data that it also goes by."""


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How the workers of a run shared what they learned."""

    strategy: str
    workers: int
    """When the run began."""
    left: tuple[int, ...] = ()
    """Numbers of the workers that ended before the run did."""
    joined: int = 0
    """Workers that were added when the run was resumed."""
    synchronisations: int | None = None
    """Updates that all workers made together: of every step, or averages."""
    sent_bytes: int | None = None
    """Gradients or differences that each worker gave to them; a ring sends 2 (n − 1) / n times as many bytes. None: not
    counted."""
    staleness: tuple[int, ...] = ()
    """Asynchronous steps: how many gradients were applied 0, 1, 2, … updates after their weights were read."""
    memory: str | None = None
    """Asynchronous steps: the kind of device whose memory the workers shared in the last session."""


@dataclass(frozen=True, kw_only=True)
class Grown:
    """The batch of a run that may grow (train.grow)."""

    rows: int
    """Of an update, at the end."""
    noise: float | None
    """The gradient noise scale in rows, as measured last; None: too few steps for it, or no gradient in the noise."""


@dataclass(frozen=True, kw_only=True)
class Outcome(Record):
    """The outcome of a run; its presence as DONE means that the run is finished."""

    SCHEMA: ClassVar[str] = "shoestring.outcome/1"

    steps: int
    tokens: int
    """Positions: rows × data.length."""
    seconds: float
    """Wall clock over all segments, from the start of each process to its end or last sign of life."""
    segments: int
    tokens_per_second: float
    """Positions per second during training, without evaluation and saving."""
    disk_bytes: int
    """Peak of token store and checkpoints in the last session."""
    peak_bytes: int | None
    loss: float
    """Held out, of the weights that the run delivers."""
    shortened: str | None
    """The reason why the run was made shorter than planned, if it was."""
    lengthened: str | None = None
    """The reason why it was made longer, if it was."""
    skipped: int = 0
    """Steps whose update was left out, because the gradient overflowed in fp16."""
    predictions: int | None = None
    """Counted in training; None: part of the run was written by a version that did not count."""
    delivered: int | None = None
    """The step (of an HMM: the epoch) whose weights are the result; None: the last one."""
    timeline: dict[str, float] = field(default_factory=dict)
    """Those seconds by what they were spent on; they add up."""
    verdicts: tuple[Verdict, ...] = ()
    forecast: Forecast | None = None
    """Of the held-out loss, the first one after a fifth of the steps, for the learning rates that followed and by the
    earlier runs that the run itself read; None: too little was known, or there is no learning rate."""
    sharing: Sharing | None = None
    """None: one process took all steps, or an older version wrote the record."""
    grown: Grown | None = None
    """None: the batch may not grow."""

    def contradictions(self) -> list[str]:
        lines = negatives(self)
        if self.predictions is not None and self.predictions > self.tokens:
            lines.append(f"predictions = {self.predictions!r}: there are only {self.tokens!r} positions (tokens)")
        if self.delivered is not None and self.delivered > self.steps:
            lines.append(f"delivered = {self.delivered!r}: there are only {self.steps!r} steps")
        if self.skipped > self.steps:
            lines.append(f"skipped = {self.skipped!r}: there are only {self.steps!r} steps")
        if self.timeline:
            lines += differs("seconds", self.seconds, sum(self.timeline.values()), "the sum of the timeline", 1e-3)
        return lines
