"""A network in training by workers that take steps of their own, and average now and then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from shoestring.core.clock import Clock
from shoestring.core.results import Evaluation, Sharing
from shoestring.core.train_section import Train
from shoestring.datasets.source import TokenSource
from shoestring.parallel.members import Members
from shoestring.runs.network_trainee import NetworkTrainee
from shoestring.track import LineFile
from shoestring.training.checkpoint import Saveable, State
from shoestring.training.local import Average, LocalModel, LocalSettings, LocalStepper
from shoestring.training.loop import AnyHook, PendingStep, Requests
from shoestring.training.schedule import Schedule

T = TypeVar("T")


class LocalTrainee(NetworkTrainee):
    """As `NetworkTrainee`; only the average of all workers is scored and saved."""

    waits_for_disk = True
    _members: Members
    _left: list[int]
    """Workers that ended in earlier sessions."""
    _timings: LineFile
    _clock: Clock
    _say: Callable[[str], object]
    _average: Average
    _model: LocalModel

    def build(self, fresh: bool, say: Callable[[str], object] = lambda _: None) -> None:
        super().build(fresh, say)
        assert self.recipe.parallel is not None, "it names the strategy"
        self._left, self._step, self._say, self._joined = [], 0, say, 0
        settings = LocalSettings.of(self.recipe.parallel)
        self._average = Average(self.learner.optimizer.masters, settings, self.group)
        self._model = LocalModel(self.learner, self._average)
        self._members = Members(self.group)
        self._workers, self.steps_to_agree = self.group.world, self.steps_to_agree + self.recipe.parallel.most_apart

    def together(self, act: Callable[[], T]) -> T:
        known = len(self._members.left)
        result = self._members.together(act)
        for number in self._members.left[known:]:
            self._timings.add(step=self._step, elapsed=self._clock.elapsed(), event="left", worker=number)
            self._say(f"step {self._step:,}: worker {number} ended; the other {self.group.world} go on")
        return result

    def begin(self, step: int, schedule: Schedule, requests: Requests) -> PendingStep:  # type: ignore[override]
        self._step = step
        return super().begin(step, schedule, requests)

    def hooks(self, metrics: LineFile, timings: LineFile, clock: Clock) -> Sequence[AnyHook]:
        self._timings, self._clock = timings, clock
        return super().hooks(metrics, timings, clock)

    def _make_stepper(self, source: TokenSource, train: Train, **rest: int) -> LocalStepper:
        return LocalStepper(self.learner, source, train, average=self._average, together=self.together, **rest)

    def meets(self, step: int, schedule: Schedule) -> bool:
        return self._stepper.meets(step, schedule)

    @property
    def saveable(self) -> Saveable:
        return self._model

    def score(self) -> dict[str, float]:
        with self._average.shown():
            return self.together(super().score)

    def evaluate(self, state: State) -> Evaluation:
        with self._average.shown():
            return self.together(partial(super().evaluate, state))

    def saved_values(self) -> dict[str, Any]:
        average = self._average
        counts: dict[str, Any] = {"workers": self._workers, "averages": average.count, "sent_bytes": average.sent_bytes}
        counts |= {"left": self._left + self._members.left, "present": self.group.world, "joined": self._joined}
        return super().saved_values() | {"sharing": counts}

    def put_values(self, values: dict[str, Any]) -> None:
        super().put_values(values)
        if self._average.count:  # a run that returns to its best weights has sent what it sent since
            return
        counts = values.get("sharing", {})
        self._workers = counts.get("workers", self._workers)
        self._left, present = list(counts.get("left", [])), counts.get("present", self.group.world)
        self._joined = counts.get("joined", 0) + max(0, self.group.world - present)
        if present != self.group.world:
            begin = "; those that are new begin with its optimizer" if self.group.world > present else ""
            self._say(f"{self.group.world} workers go on from the average of {present}{begin}")
        self._average.count = counts.get("averages", 0)
        self._average.sent_bytes = counts.get("sent_bytes", 0)

    def close(self) -> None:
        self._members.close()

    def sharing(self, state: State) -> Sharing:  # noqa: ARG002
        return Sharing(
            strategy="local",
            workers=self._workers,
            left=(*self._left, *self._members.left),
            joined=self._joined,
            synchronisations=self._average.count,
            sent_bytes=self._average.sent_bytes,
        )
