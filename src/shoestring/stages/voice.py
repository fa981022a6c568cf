"""How stages speak to a person. The terminal implements it; `Voice` itself says nothing."""

from __future__ import annotations

from dataclasses import dataclass

from shoestring.core.facts import Evaluation, Plan, Profile


@dataclass(frozen=True, kw_only=True)
class Live:
    """Where training stands, for a progress display."""

    step: int
    total: int
    loss: float
    tokens_per_second: float
    seconds_left: float
    """Until the last step, at the pace of now."""
    budget_left: float | None
    """Until the time budget ends; None where time is not limited."""


class Voice:
    """Says nothing. A subclass overrides what it wants to show."""

    def say(self, text: str) -> None: ...

    def measured(self, profile: Profile) -> None: ...

    def planned(self, plan: Plan) -> None: ...

    def preparing(self, documents: int, total: int | None) -> None: ...

    def training(self, live: Live) -> None: ...

    def trained(self) -> None: ...

    def evaluated(self, evaluation: Evaluation) -> None: ...
