"""What takes the steps of one run: the interface that the session knows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from shoestring.core.clock import Clock
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.results import Evaluation, Grown, Sharing
from shoestring.core.run_folder import RunFolder
from shoestring.parallel.process_group import ProcessGroup
from shoestring.runs.sample_texts import Sample
from shoestring.track import LineFile
from shoestring.training.checkpoint import Saveable, State
from shoestring.training.hooks import Wanted
from shoestring.training.loop import AnyHook, PendingStep, Requests
from shoestring.training.schedule import Schedule, Warmup

T = TypeVar("T")


class Trainee(ABC):
    """A worker of the loop that can be saved, scored and shown."""

    recipe: Recipe
    plan: Plan
    group: ProcessGroup
    looks_ahead: bool = False
    data: str
    """Fingerprint of its rows."""
    data_bytes: int = 0
    """Size of its rows on disk."""
    per_device: int
    """Micro-batch, in rows."""
    scored_rows: int
    """Held-out rows per scoring pass."""
    planned_steps: int
    most_steps: float | None = None
    """The most steps that a faster machine may take in the time; None: no more than planned."""
    decays: bool = True
    """Whether a changed schedule changes a learning rate."""
    tokens_per_step: float
    unit: str = "step"
    """Of the progress that is shown."""
    step_unit: str = "step"
    waits_for_disk: bool = False
    """Whether a checkpoint must be on disk before the next step, as a process that writes to it may leave."""
    steps_to_agree: int = 4
    """So many steps pass until all processes know of a request."""

    @property
    def settling(self) -> bool:
        """Whether its steps will soon be faster than now, as its layers are being compiled."""
        return False

    @property
    def unrecorded(self) -> str | None:
        """Why its steps could not be recorded as CUDA graphs."""
        return None

    @property
    @abstractmethod
    def saveable(self) -> Saveable:
        """What its checkpoints hold, besides `saved_values`."""

    @abstractmethod
    def build(self, fresh: bool, say: Callable[[str], object] = lambda _: None) -> None:
        """Make the model on its device; `fresh` where no checkpoint will replace its first weights."""

    def warm_up(self) -> None:
        """Do what the first step would have to wait for, while rows are prepared."""
        return

    def open_rows(self) -> None:
        """Open the rows, which were prepared meanwhile; `data` is known from then on."""
        return

    def warmup(self) -> Warmup | None:
        """The warm-up of the planned steps; None: there is no learning rate."""
        return None

    @abstractmethod
    def begin(self, step: int, schedule: Schedule, requests: Requests) -> PendingStep: ...

    def meets(self, step: int, schedule: Schedule) -> bool:  # noqa: ARG002
        """Whether it exchanges weights with others after this step."""
        return False

    def together(self, act: Callable[[], T]) -> T:
        """The result of `act`, which all processes call together; again by those that are left, if one may leave."""
        return act()

    @abstractmethod
    def halve(self) -> int: ...

    @abstractmethod
    def hooks(self, metrics: LineFile, timings: LineFile, clock: Clock) -> Sequence[AnyHook]:
        """The hooks that write what was learned."""

    @abstractmethod
    def evaluates(self, state: State) -> Wanted:
        """The steps after `state` that are followed by `score`."""

    def repeats(self, state: State) -> bool:  # noqa: ARG002
        """Whether it has begun to read what it has read before; nothing else can be learned by heart."""
        return True

    @abstractmethod
    def score(self) -> dict[str, float]:
        """Scores on the held-out rows during training: "heldout_loss" and others."""

    @abstractmethod
    def evaluate(self, state: State) -> Evaluation:
        """Scores on the held-out rows, beside the baselines."""

    @property
    def writes(self) -> bool:
        """Whether `samples` gives any text."""
        return False

    def samples(self, tokens: int) -> list[Sample]:  # noqa: ARG002
        """Texts of so many tokens after fixed prompts, with the weights as they are; no change of state."""
        return []

    def keep_scores(self, step: int) -> None:  # noqa: ARG002
        """Keep the scores of the weights as they are, those of the best step so far, for `evaluate` at the end."""
        return

    def counted_loss(self) -> float | None:
        """The held-out loss of predictions by how often tokens occur, computed in a moment; None: no such baseline."""
        return None

    def baseline_seconds(self) -> float | None:
        """About how long the baselines of `evaluate` take on this machine; None: as planned."""
        return None

    def saved_values(self) -> dict[str, Any]:
        """What it needs to continue, besides tensors."""
        return {}

    def put_values(self, values: dict[str, Any]) -> None:  # noqa: ARG002
        """Restore what `saved_values` returned, after the tensors."""
        return

    def continue_rows(self) -> None:
        """Open the rows that a run had that was restored, if it got more since it began; the first process prepares
        what is missing of them."""
        return

    def more_rows(self, steps: int) -> float | None:  # noqa: ARG002
        """The share of the corpus that so many steps need to read each row once; None: what it has is enough, or all.

        Raises an error where there is no room for it.
        """
        return None

    def get_rows(self, share: float, step: int) -> int:  # noqa: ARG002
        """Read this share of the corpus, which was prepared meanwhile, from a step on; returns how many rows it has.

        Where it cannot be opened, all processes raise an error, and continue with the rows that they have.
        """
        raise AssertionError("more_rows asked for no share")

    def write_inputs(self, folder: RunFolder) -> None:  # noqa: ARG002
        """Write what the run must keep of its data, before the first step."""
        return

    def write_results(self, folder: RunFolder) -> int:  # noqa: ARG002
        """Write what the run delivers besides its checkpoints, after `evaluate`; returns the bytes."""
        return 0

    def label(self, state: State) -> int:
        """The number of a step in the metrics."""
        return state.step

    def steps_taken(self, state: State) -> int:
        return state.step

    def tokens_seen(self, state: State) -> int:
        return round(state.step * self.tokens_per_step)

    def predictions_made(self, state: State) -> int | None:
        """Tokens that contributed to the loss; None: unknown."""
        return state.predictions

    def grown(self) -> Grown | None:
        """The batch at the end, if it may grow."""
        return None

    def sharing(self, state: State) -> Sharing | None:  # noqa: ARG002
        """How its workers shared what they learned; None: there is one, or it is not counted."""
        return None

    def close(self) -> None:
        """End what it has started."""
        return

    def progress(self, state: State) -> tuple[int, int]:
        """How many units are done, and how many there are."""
        return state.step, state.schedule.total
