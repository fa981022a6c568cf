"""The records that stages hand to each other: machine, cost, density, profile, plan, evaluation, outcome.

Units are in the names: seconds, bytes, tokens. A *row* is one packed sequence, a *document* one entry of the corpus, a
*step* one optimizer update with the effective batch. None means that nobody measured it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from shoestring.core.recipe import fingerprint
from shoestring.core.records import Record
from shoestring.core.schema import encode


@dataclass(frozen=True, kw_only=True)
class Machine(Record):
    """Where something ran. Two machines with the same fingerprint may share a profile."""

    SCHEMA: ClassVar[str] = "shoestring.machine/1"

    device: str
    """"cpu" or "cuda"."""
    device_name: str
    threads: int
    memory_bytes: int | None
    """Of the device; of the host for a CPU."""
    system: str
    python: str
    versions: dict[str, str]

    @property
    def fingerprint(self) -> str:
        return fingerprint(encode(self))


@dataclass(frozen=True, kw_only=True)
class Cost(Record):
    """What a model costs, counted, not measured.

    FLOPs are those of matrix products alone, two for a multiply and add; attention counts every pair of positions (no
    discount for the causal mask); a lookup costs nothing; the backward pass is twice the forward pass.
    """

    SCHEMA: ClassVar[str] = "shoestring.cost/1"

    parameters: dict[str, int]
    """By group: each parameter is in exactly one."""
    forward_flops_per_token: float

    @property
    def total_parameters(self) -> int:
        return sum(self.parameters.values())

    @property
    def train_flops_per_token(self) -> float:
        return 3 * self.forward_flops_per_token


START_SECONDS = 2.7
"""About what it takes to start several processes that prepare a corpus, with what they load: 2.4 seen for two, 3.0 for
sixteen."""


@dataclass(frozen=True, kw_only=True)
class Density(Record):
    """How much a corpus holds per document and per byte, from a sample of it."""

    SCHEMA: ClassVar[str] = "shoestring.density/1"

    documents: int
    text_bytes: int
    tokens: int
    """End-of-document tokens included."""
    seconds: float
    """To prepare the sample: by all passes over it, and as many processes as there are cores."""
    total_documents: int | None
    """In the whole corpus; None where it has no end, or nobody knows where that is."""
    total_documents_error: float | None = None
    """Standard errors; 0 where the whole corpus was read, and an interval of 95 % is ± 1.96 of them."""
    tokens_per_gb_error: float | None = None
    entries_per_gb_error: float | None = None
    alone_seconds: float | None = None
    """To prepare the sample by one process, which need not be started; None: there is no more than one."""

    def ways(self) -> list[tuple[float, float]]:
        """How documents are prepared, whichever is faster: seconds before the first of them, and of each."""
        if self.alone_seconds is None:
            return [(0.0, self.seconds / self.documents)]
        return [(0.0, self.alone_seconds / self.documents), (START_SECONDS, self.seconds / self.documents)]

    def seconds_for(self, documents: float) -> float:
        """To prepare so many."""
        return min(start + documents * each for start, each in self.ways())

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
    """Median of one forward and backward pass."""
    slowest_seconds: float
    peak_bytes: int | None
    """Of a run with so many rows at a time: of its passes, updates, scoring and saving."""
    fastest_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryLaw:
    """The peak of a device as a line in the rows at a time: fixed_bytes + row_bytes · rows, contexts included."""

    fixed_bytes: int
    row_bytes: float
    limit_bytes: int | None
    """What could be used: the memory that was free before anything was built. None where nobody knows."""
    margin_bytes: int
    """Of the limit, what is left unused on purpose."""
    largest: int | None
    """Rows that fit within limit less margin, by a trial that ran; None where nothing near it was tried."""
    verified: int | None
    """Rows of the largest trial that ran to its end; None where none did."""
    trials: int
    out_of_memory: int
    """Of the trials, those that did not fit."""
    trial_seconds: float
    """Of all trials, compiling left out."""

    def predict(self, batch: int) -> float:
        """The peak at `batch` rows, bytes."""
        return self.fixed_bytes + self.row_bytes * batch


@dataclass(frozen=True, kw_only=True)
class Profile(Record):
    """What this machine does with this workload: measured, or worked out where nothing was measured."""

    SCHEMA: ClassVar[str] = "shoestring.profile/2"

    machine: Machine
    workload: str
    """Fingerprint of what was measured."""
    length: int
    points: tuple[Point, ...]
    setup_seconds: float
    """From the start of a process to the first full-speed step."""
    update_seconds: float
    validate_seconds_per_row: float
    checkpoint_seconds: float
    """That a run goes on later for saving; most of the writing is done beside its passes."""
    checkpoint_bytes: int
    available_bytes: int | None
    """Memory that was free before anything was built."""
    stopped: str
    """Why no larger batch was tried."""
    cost: Cost
    density: Density | None = None
    memory: MemoryLaw | None = None
    """Of a training step."""
    validation_memory: MemoryLaw | None = None
    """Of a scoring pass beside the weights and the optimizer's state of training."""
    compile_seconds: float | None = None
    """The first pass at a batch that was not compiled yet, less what a steady one takes."""
    warmup_seconds: float | None = None
    """From then until passes are steady: recording, filling of caches."""
    write_seconds: float | None = None
    """From the beginning of a checkpoint until it is on disk, which the last one of a run waits for."""
    date: str | None = None
    """Of the measurement, as 2026-11-15."""
    devices: int = 1
    """How many measured at the same time, each in a process of its own; of theirs the least favourable is kept."""
    real: bool = False
    """On rows of the recipe's own, read as in training; otherwise on random ones."""
    thorough: bool = False
    """Whether the largest batch that fits was looked for."""
    estimated: bool = False
    """Nothing was measured: the numbers follow from FLOPs and bytes, or from another model's measurement."""

    @property
    def how(self) -> str:
        """How its numbers were got, for people."""
        return "estimated" if self.estimated else "measured"

    def elsewhere(self, machine: Machine) -> str | None:
        """For people, that another machine than this was measured, or other versions; None where it was this one."""
        if self.machine.fingerprint == machine.fingerprint:
            return None
        return f"measured on another machine or other versions ({self.machine.device_name})"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a plan for people: what, how much, and how it was got."""

    quantity: str
    value: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan(Record):
    """Every number of a run before it starts."""

    SCHEMA: ClassVar[str] = "shoestring.plan/1"

    binding: str
    """The budget that limits the run."""
    recipe: str | None = None
    """Fingerprint of the recipe it was made for."""
    steps: int | None = None
    tokens: int | None = None
    samples: int | None = None
    effective_batch: int | None = None
    per_device: int | None = None
    accumulate: int | None = None
    devices: int | None = None
    epochs: float | None = None
    entries: int | None = None
    every_entry: bool = False
    """The corpus is read to its end; `entries` may then be an estimate."""
    gigabytes: float | None = None
    flops: float | None = None
    seconds: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds by what they are spent on; they add up to `seconds`."""
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    disk_bytes: int | None = None
    peak_bytes: int | None = None
    evaluations: int | None = None
    most_steps: int | None = None
    """That a machine faster than planned may take in the time; None where it is not the time that limits the run."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """(low, high) of those fields above that are not known exactly: about 95 % of runs are expected between them."""
    correction: float | None = None
    """What the measured seconds of a step were multiplied by, learned from runs before; None where there were none."""
    measured_on: str | None = None
    """Fingerprint of the machine whose profile it was made from; None where there was none, or nobody noted it."""
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evaluation(Record):
    """Scores on held-out rows, in nats a token."""

    SCHEMA: ClassVar[str] = "shoestring.evaluation/1"

    step: int
    rows: int
    tokens: int
    loss: float
    perplexity: float
    bits_per_byte: float | None
    loss_by_position: tuple[float | None, ...]
    """None where no row has a prediction."""
    strategies: dict[str, float]
    """The loss of each strategy on the same tokens."""
    strategies_by_position: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """The same by position, for rows whose strategies learn within a row."""
    entropy_rate: float | None = None
    """Of the source: what the best predictor loses in the long run. None where nobody knows."""
    entropy_rate_error: float | None = None
    """Its standard error."""
    accuracy: float | None = None
    """Share of the rows whose class was found; None where tokens are predicted."""
    macro_f1: float | None = None
    """The mean over the classes of each one's F1."""
    majority_accuracy: float | None = None
    """Of always taking the class that is the most frequent in training."""
    majority_macro_f1: float | None = None


@dataclass(frozen=True, kw_only=True)
class StateRow:
    """One state of an HMM, for people."""

    state: int
    share: float
    """Of the time, in the long run."""
    words: str
    """The most likely, with their probabilities."""
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
    """What happened, beside what was planned. Its presence as DONE says that the run is finished."""

    SCHEMA: ClassVar[str] = "shoestring.outcome/1"

    steps: int
    tokens: int
    seconds: float
    """Wall clock over all segments of the run, from the start of each process to its end or last sign of life."""
    segments: int
    tokens_per_second: float
    """While training, evaluation and saving left out."""
    disk_bytes: int
    """Token store and checkpoints, at the fullest moment of the last session."""
    peak_bytes: int | None
    loss: float
    shortened: str | None
    """Why the run was made shorter than its plan, if it was."""
    lengthened: str | None = None
    """Why it was made longer, if it was: time would have been left."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A fitted value and its interval of 95 %; None where it has none."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """How compute C is best divided, by minima that were found: N = params_factor · C^params_exponent, D likewise."""

    approach: int
    """1: the envelope of loss curves; 2: parabolas at equal FLOPs."""
    params_factor: Estimate
    params_exponent: Estimate
    tokens_factor: Estimate
    tokens_exponent: Estimate
    optima: tuple[tuple[float, float, float], ...]
    """The minima: (FLOPs, parameters, tokens) of each."""
    left_out: tuple[str, ...] = ()
    """What has no minimum, and why."""


@dataclass(frozen=True, kw_only=True)
class Law(Record):
    """A scaling law: loss(N, D) = E + A / N^alpha + B / D^beta, and how compute is best divided by it."""

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
    """The least and the most; beyond them the law is extrapolated."""
    tokens: tuple[float, float]
    flops: tuple[float, float]
    penalty: str
    coefficients: dict[str, Estimate] = field(default_factory=dict)
    """E, A, B, alpha, beta, and a_opt = beta / (alpha + beta); empty where the surface was not fitted."""
    objective: float | None = None
    """Sum of the penalties of the log residuals."""
    starts: int | None = None
    failed_starts: int | None = None
    """Starts that ended above the best minimum, or were given up on the way."""
    boundary: tuple[str, ...] = ()
    """Coefficients that ended at the edge of what is allowed."""
    resamples: int = 0
    failed_resamples: int = 0
    heldout_error: float | None = None
    """Mean relative error on the points of most compute, by a fit to the others."""
    heldout_points: int | None = None
    allocations: tuple[Allocation, ...] = ()
    samples: tuple[tuple[float, ...], ...] = ()
    """Some of the resampled fits, (E, A, B, alpha, beta) each: the interval of everything that follows from them."""
    notes: tuple[str, ...] = ()
