"""The records that commands exchange: machine, cost, density, profile, plan, evaluation, outcome, law.

Units are in the names: seconds, bytes, tokens. A *row* is one packed sequence, a *document* one entry of the corpus, a
*step* one optimizer update with the effective batch. A *position* is a place of a row that the model processes, padding
included: speed and FLOPs count positions, and so do the `tokens` of plans, outcomes and metrics. A *prediction* is a
token that contributes to the loss: losses, and the D of a scaling law, count predictions. None: not measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from shoestring.core.consistency import descending, differs, negatives
from shoestring.core.recipe import fingerprint
from shoestring.core.schema import Record, encode


@dataclass(frozen=True, kw_only=True)
class Machine(Record):
    """The machine of a run. Machines with the same fingerprint share profiles."""

    SCHEMA: ClassVar[str] = "shoestring.machine/1"

    device: str
    """"cpu" or "cuda"."""
    device_name: str
    threads: int
    memory_bytes: int | None
    """Of the device; for a CPU, of the host, or the least limit that the process had."""
    system: str
    python: str
    versions: dict[str, str]

    @property
    def fingerprint(self) -> str:
        return fingerprint(encode(self))


@dataclass(frozen=True, kw_only=True)
class Cost(Record):
    """The cost of a model, counted, not measured.

    FLOPs are those of matrix products, two per multiply-add. Attention counts every pair of positions, with no discount
    for the causal mask. A lookup costs nothing. The backward pass costs two forward passes.
    """

    SCHEMA: ClassVar[str] = "shoestring.cost/1"

    parameters: dict[str, int]
    """By group; each parameter is in exactly one."""
    forward_flops_per_token: float

    def contradictions(self) -> list[str]:
        return negatives(self)

    @property
    def total_parameters(self) -> int:
        return sum(self.parameters.values())

    @property
    def train_flops_per_token(self) -> float:
        return 3 * self.forward_flops_per_token


START_SECONDS = 2.7
"""Time to start several processes that prepare a corpus, with their imports: 2.4 measured for two, 3.0 for sixteen."""


@dataclass(frozen=True, kw_only=True)
class Density(Record):
    """The density of a corpus, per document and per byte, from a sample."""

    SCHEMA: ClassVar[str] = "shoestring.density/1"

    documents: int
    text_bytes: int
    tokens: int
    """End-of-document tokens included."""
    seconds: float
    """To prepare the sample in all its passes, with one process per core."""
    total_documents: int | None
    """In the whole corpus; None: endless or unknown."""
    total_documents_error: float | None = None
    """Standard error; 0 where the whole corpus was read."""
    tokens_per_gb_error: float | None = None
    entries_per_gb_error: float | None = None
    alone_seconds: float | None = None
    """To prepare the sample in this process alone; None: there is no other."""
    row_specials: int = 0
    """Special tokens around the text of each row, which hold none of it."""
    corpus: str | None = None
    """Fingerprint of what was sampled (`Recipe.corpus`); None: not recorded."""

    def contradictions(self) -> list[str]:
        lines = negatives(self)
        if self.documents < 1 or self.text_bytes < 1:
            lines.append(f"documents = {self.documents}, text_bytes = {self.text_bytes}: a sample has at least one")
        return lines

    def methods(self) -> list[tuple[float, float]]:
        """(start-up seconds, seconds per document) of this process alone, and of several processes."""
        if self.alone_seconds is None:
            return [(0.0, self.seconds / self.documents)]
        return [(0.0, self.alone_seconds / self.documents), (START_SECONDS, self.seconds / self.documents)]

    def seconds_for(self, documents: float) -> float:
        """Seconds to prepare `documents` by the faster method."""
        return min(start + documents * each for start, each in self.methods())

    @property
    def tokens_per_document(self) -> float:
        return self.tokens / self.documents

    @property
    def tokens_per_gb(self) -> float:
        return self.tokens / self.text_bytes * 1e9

    @property
    def entries_per_gb(self) -> float:
        return self.documents / self.text_bytes * 1e9


@dataclass(frozen=True, kw_only=True)
class Point:
    """One batch size, measured."""

    batch: int
    seconds: float
    """Median of one forward–backward pass."""
    slowest_seconds: float
    peak_bytes: int | None
    """Of a run with this micro-batch: passes, updates, scoring and saving."""
    fastest_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """The peak of a device by micro-batch: fixed_bytes + row_bytes · rows, contexts included."""

    fixed_bytes: int
    row_bytes: float
    limit_bytes: int | None
    """Memory that was free before anything was built; None: unknown."""
    margin_bytes: int
    """The part of the limit that is left unused."""
    largest: int | None
    """Most rows that fit within limit - margin, by a trial; None: nothing near it was tried."""
    verified: int | None
    """Rows of the largest trial that succeeded; None: none did."""
    trials: int
    out_of_memory: int
    """Trials that did not fit."""
    trial_seconds: float
    """Of all trials, without compilation."""

    def predict(self, batch: int) -> float:
        """The peak in bytes at `batch` rows."""
        return self.fixed_bytes + self.row_bytes * batch


@dataclass(frozen=True, kw_only=True)
class Profile(Record):
    """The performance of a machine on a workload, measured or estimated."""

    SCHEMA: ClassVar[str] = "shoestring.profile/2"

    machine: Machine
    workload: str
    """Fingerprint of what was measured."""
    length: int
    points: tuple[Point, ...]
    setup_seconds: float
    """From the start of the process to the first step at full speed."""
    update_seconds: float
    validate_seconds_per_row: float
    checkpoint_seconds: float
    """Delay of a run per checkpoint; most of the writing overlaps with passes."""
    checkpoint_bytes: int
    available_bytes: int | None
    """Memory that was free before anything was built."""
    stopped: str
    """The reason why no larger batch was tried."""
    cost: Cost
    density: Density | None = None
    memory: MemoryModel | None = None
    """Of a training step."""
    validation_memory: MemoryModel | None = None
    """Of a scoring pass, beside the weights and optimizer state of training."""
    compile_seconds: float | None = None
    """Extra time of the first pass at a batch that was not compiled yet."""
    warmup_seconds: float | None = None
    """From then until passes are steady: recording of graphs, filling of caches."""
    write_seconds: float | None = None
    """From the start of a checkpoint until it is on disk; the end of a run waits for it."""
    date: str | None = None
    """Of the measurement, as 2026-11-15."""
    devices: int = 1
    """Devices that measured at the same time, one process each; the least favourable values are kept."""
    real: bool = False
    """Measured on the recipe's own rows, read as in training; otherwise on random ones."""
    thorough: bool = False
    """Whether the largest batch that fits was searched."""
    busy: str | None = None
    """What disturbed the measurement, for people; such a profile is not kept for other runs."""
    estimated: bool = False
    """Not measured, but computed from FLOPs and bytes, or from the measurement of another model."""

    def contradictions(self) -> list[str]:
        lines = negatives(self, signed=("memory", "validation_memory"))
        for index, point in enumerate(self.points):
            if point.batch < 1:
                lines.append(f"points[{index}].batch = {point.batch!r}: must be at least 1")
            if not (point.fastest_seconds or 0.0) <= point.seconds <= point.slowest_seconds:
                lines.append(f"points[{index}].seconds = {point.seconds!r}: not between the fastest and the slowest")
        return lines

    @property
    def how(self) -> str:
        """The origin of its numbers, for people."""
        return "estimated" if self.estimated else "measured"

    def elsewhere(self, machine: Machine) -> str | None:
        """A note for people if another machine or other versions were measured; None otherwise."""
        if self.machine.fingerprint == machine.fingerprint:
            return None
        return f"measured on another machine or other versions ({self.machine.device_name})"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a plan for people."""

    quantity: str
    value: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan(Record):
    """Every number of a run, before it starts."""

    SCHEMA: ClassVar[str] = "shoestring.plan/1"

    binding: str
    """The budget that limits the run."""
    recipe: str | None = None
    """Fingerprint of its recipe."""
    steps: int | None = None
    tokens: int | None = None
    """Positions: rows × data.length."""
    predictions: int | None = None
    """Expected; None: unknown before the rows are packed."""
    samples: int | None = None
    effective_batch: int | None = None
    per_device: int | None = None
    accumulate: int | None = None
    devices: int | None = None
    epochs: float | None = None
    entries: int | None = None
    every_entry: bool = False
    """Whether the corpus is read to its end; `entries` may then be an estimate."""
    share: float | None = None
    """Of the corpus that is read, drawn over all of it; `entries` is then an estimate. None: all, or a number."""
    gigabytes: float | None = None
    wanted_entries: int | None = None
    """Entries that the budget reads in one epoch, however many there are; None: no text, or its end is the budget."""
    wanted_gigabytes: float | None = None
    flops: float | None = None
    seconds: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds by purpose; they add up to `seconds`."""
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    """Positions per second."""
    overall_tokens_per_second: float | None = None
    """The same with evaluations and checkpoints."""
    disk_bytes: int | None = None
    peak_bytes: int | None = None
    evaluations: int | None = None
    most_steps: int | None = None
    """If the time limits the run, the most steps that the other budgets allow; None: any number."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """(low, high) of the fields that are uncertain; about 95 % of runs are expected between them."""
    correction: float | None = None
    """Factor for the measured seconds per step, learned from past runs; None: there were none."""
    measured_on: str | None = None
    """Fingerprint of the machine of its profile; None: no profile, or not recorded."""
    lines: tuple[Line, ...] = ()

    def contradictions(self) -> list[str]:
        lines = negatives(self, signed=("intervals",))
        if self.parts:
            lines += differs("seconds", self.seconds, sum(self.parts.values()), "the sum of its parts", 1e-6)
        for name, ends in self.intervals.items():
            lines += descending(f"intervals.{name}", ends)
        return lines


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


@dataclass(frozen=True, kw_only=True)
class Evaluation(Record):
    """Scores on held-out rows, in nats per prediction.

    A standard error is that of rows drawn at random, with the model as it is; predictions of one row depend on each
    other. None: there are fewer than two rows, or an older version wrote the record.
    """

    SCHEMA: ClassVar[str] = "shoestring.evaluation/2"

    step: int
    rows: int
    tokens: int
    loss: float
    perplexity: float
    bits_per_byte: float | None
    loss_by_position: tuple[float | None, ...]
    """None at positions without a prediction."""
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

    def contradictions(self) -> list[str]:
        lines = negatives(self)
        lines += differs("perplexity", self.perplexity, math.exp(min(abs(self.loss), 700.0)), "exp(loss)", 1e-4)
        for name in ("accuracy", "macro_f1", "majority_accuracy", "majority_macro_f1"):
            if (getattr(self, name) or 0.0) > 1.0:
                lines.append(f"{name} = {getattr(self, name)!r}: must be at most 1")
        if self.confusion:
            lines += differs("rows", self.rows, sum(map(sum, self.confusion)), "the sum of the confusion matrix")
        return lines


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
    shortened: str | None
    """The reason why the run was made shorter than planned, if it was."""
    lengthened: str | None = None
    """The reason why it was made longer, if it was."""
    skipped: int = 0
    """Steps whose update was left out, because the gradient overflowed in fp16."""
    predictions: int | None = None
    """Counted in training; None: part of the run was written by a version that did not count."""
    timeline: dict[str, float] = field(default_factory=dict)
    """Those seconds by what they were spent on; they add up."""

    def contradictions(self) -> list[str]:
        lines = negatives(self)
        if self.predictions is not None and self.predictions > self.tokens:
            lines.append(f"predictions = {self.predictions!r}: there are only {self.tokens!r} positions (tokens)")
        if self.skipped > self.steps:
            lines.append(f"skipped = {self.skipped!r}: there are only {self.steps!r} steps")
        if self.timeline:
            lines += differs("seconds", self.seconds, sum(self.timeline.values()), "the sum of the timeline", 1e-3)
        return lines


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A fitted value and its 95 % interval, if it has one."""

    value: float
    low: float | None = None
    high: float | None = None
    identified: bool = True
    """False where the data allow any value: there is no interval."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """The best division of compute C, through minima: N = params_factor · C^params_exponent, and D likewise."""

    approach: int
    """1: the envelope of loss curves; 2: parabolas at equal FLOPs; 0: minima that were given as a table."""
    params_factor: Estimate
    params_exponent: Estimate
    tokens_factor: Estimate
    tokens_exponent: Estimate
    optima: tuple[tuple[float, float, float], ...]
    """The minima: (FLOPs, parameters, tokens) of each."""
    left_out: tuple[str, ...] = ()
    """What has no minimum, with the reason."""
    fixed: bool = False
    """Whether the exponents were given, and only the factors fitted."""
    samples: tuple[tuple[float, ...], ...] = ()
    """Some of the resampled (params_factor, params_exponent, tokens_factor, tokens_exponent)."""


@dataclass(frozen=True, kw_only=True)
class Law(Record):
    """A scaling law, loss(N, D) = E + A / N^alpha + B / D^beta, and the best division of compute."""

    SCHEMA: ClassVar[str] = "shoestring.law/1"

    source: str
    """What it was fitted to, for people."""
    count: str
    """What N, D and C count."""
    flops_per_product: float
    """C = this · N · D."""
    counting: str = "total"
    """Parameters that N counts: "total", or "no-embeddings"."""
    points: int
    params: tuple[float, float]
    """Least and most; beyond them the law extrapolates."""
    tokens: tuple[float, float]
    flops: tuple[float, float]
    penalty: str
    coefficients: dict[str, Estimate] = field(default_factory=dict)
    """E, A, B, alpha, beta, and a_opt = beta / (alpha + beta); empty: the surface was not fitted."""
    objective: float | None = None
    """Sum of the penalties of the log residuals."""
    starts: int | None = None
    failed_starts: int | None = None
    """Starts that ended above the best minimum, or were not pursued."""
    boundary: tuple[str, ...] = ()
    """Coefficients that ended at a bound."""
    resamples: int = 0
    """Resampled fits, or laws at the edge."""
    failed_resamples: int = 0
    heldout_error: float | None = None
    """Mean relative error of a fit to the other points on those of most compute."""
    heldout_points: int | None = None
    heldout_distance: float | None = None
    """ln of the factor by which they were outside the fitted points, on average."""
    groups: int | None = None
    """Runs that the points are of, where one run has several; noise is by run."""
    apart: float | None = None
    """Standard deviation of ln D about its line in ln N: small where parameters and tokens move together."""
    delta: float | None = None
    """Of Huber's penalty; None: 0.001."""
    allocations: tuple[Allocation, ...] = ()
    samples: tuple[tuple[float, ...], ...] = ()
    """Laws (E, A, B, alpha, beta) that the points allow, from which intervals of other quantities follow."""
    edge: bool = False
    """Whether `samples` are at the edge of the 95 % region, so that an interval is the range over them; else resamples,
    of which it is the middle."""
    notes: tuple[str, ...] = ()

    def contradictions(self) -> list[str]:
        lines = [] if self.points >= 1 else [f"points = {self.points!r}: must be at least 1"]
        for name in ("params", "tokens", "flops"):
            lines += descending(name, getattr(self, name)) + negatives(getattr(self, name), name)
        for name, found in self.coefficients.items():
            lines += descending(f"coefficients.{name}", (found.low, found.high))
        known = {name: found.value for name, found in self.coefficients.items()}
        if {"a_opt", "alpha", "beta"} <= set(known) and known["alpha"] + known["beta"]:
            share = known["beta"] / (known["alpha"] + known["beta"])
            lines += differs("coefficients.a_opt", known["a_opt"], share, "beta / (alpha + beta)", 1e-6)
        return lines
