"""The records that commands exchange: machine, cost, density, profile, plan, evaluation, outcome, law.

Units are in the names: seconds, bytes, tokens. A *row* is one packed sequence, a *document* one entry of the corpus, a
*step* one optimizer update with the effective batch. A *position* is a place of a row that the model processes, padding
included: speed and FLOPs count positions, and so do the `tokens` of plans, outcomes and metrics. A *prediction* is a
token that contributes to the loss: losses, and the D of a scaling law, count predictions. None: not measured.
"""

from __future__ import annotations

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
    prompt_tokens: int = 0
    """Of the tokens, those of prompts, which are not predicted."""

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
    loading_seconds: float = 0.0
    """Of the set-up, until the libraries are loaded; a process that has loaded them does not need it."""
    sum_seconds: float | None = None
    """Of a sum of all gradients over `sum_workers` processes; None: not measured."""
    sum_workers: int | None = None
    sharing: int | None = None
    """Workers that share one GPU and its memory; None: each has a GPU of its own."""
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
    scored: int | None = None
    """Rows of an evaluation, at most."""
    loss: float | None = None
    """Held-out loss to expect, by finished runs on the same data; None: there are none."""
    most_steps: int | None = None
    """If the time limits the run, the most steps that the other budgets allow; None: any number."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """(low, high) of the fields that are uncertain; about 95 % of runs are expected between them,
    and 90 % of losses."""
    correction: float | None = None
    """Factor for the measured seconds per step, learned from past runs; None: there were none."""
    measured_on: str | None = None
    """Fingerprint of the machine of its profile; None: no profile, or not recorded."""
    estimated: bool = False
    """Whether no pass was timed for it; the first steps of the run make it final."""
    lines: tuple[Line, ...] = ()

    def is_final_of(self, other: Plan) -> bool:
        """Whether the first steps made this plan of the other one."""
        same = ("recipe", "effective_batch", "per_device", "devices", "entries", "share")
        limited = self.binding in (other.binding, "time")  # by the time, if the steps are slower than was counted
        return other.estimated and limited and all(getattr(self, name) == getattr(other, name) for name in same)

    def contradictions(self) -> list[str]:
        lines = negatives(self, signed=("intervals",))
        if self.parts:
            lines += differs("seconds", self.seconds, sum(self.parts.values()), "the sum of its parts", 1e-6)
        for name, ends in self.intervals.items():
            lines += descending(f"intervals.{name}", ends)
        return lines
