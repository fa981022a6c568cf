"""What a run reports to a person. The terminal implements it; `Reporter` itself prints nothing."""

from __future__ import annotations

from dataclasses import dataclass

from shoestring.core.records import Plan, Profile
from shoestring.core.results import Evaluation, Forecast


@dataclass(frozen=True, kw_only=True)
class TrainingProgress:
    """The progress of training, for a display."""

    done: int
    total: int
    loss: float
    tokens_per_second: float
    seconds_left: float | None
    """Until the last step, at the current speed; None: no speed is known yet."""
    budget_left: float | None
    """Until the time budget ends; None where time is not limited."""
    unit: str = "step"
    forecast: Forecast | None = None
    """Of the held-out loss at the end; None: not known yet."""


class Reporter:
    """Prints nothing. A subclass overrides what it shows."""

    def say(self, text: str) -> None: ...

    def measured(self, profile: Profile) -> None: ...

    def planned(self, plan: Plan) -> None: ...

    def settled(self, plan: Plan) -> None:
        """The first steps made the plan final."""

    def preparing(self, documents: int, total: int | None) -> None: ...

    def training(self, progress: TrainingProgress) -> None: ...

    def trained(self) -> None: ...

    def evaluated(self, evaluation: Evaluation) -> None: ...
