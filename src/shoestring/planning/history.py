"""The errors of past plans, and the correction that the next plan learns from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoestring.core.records import Line, Plan
from shoestring.core.results import Outcome

DRIFT = 0.05
"""Relative standard deviation of a run's speed from its measurement, assumed without past runs."""


FEWEST_STEPS = 20
"""Of a network's run that later plans learn from."""


@dataclass(frozen=True, kw_only=True)
class Past:
    """A finished run beside its plan."""

    name: str
    machine: str | None
    """Fingerprint of the machine that it ran on; None: not recorded."""
    measured_on: str | None
    """Fingerprint of the machine that its plan was made for; None: not recorded."""
    kind: str | None
    """What was trained; None: not recorded."""
    plan: Plan
    outcome: Outcome

    @property
    def teaches(self) -> tuple[str, str] | None:
        """Machine and kind of the plans that learn from it; None if it did not run where it was measured."""
        if self.machine is None or self.kind is None or self.machine != self.measured_on:
            return None
        return self.machine, self.kind

    @property
    def step_ratio(self) -> float | None:
        """Actual / measured seconds per step, without the correction of the plan itself."""
        planned, actual = self.plan.tokens_per_second, self.outcome.tokens_per_second
        if not planned or not actual:
            return None
        return planned * (self.plan.correction or 1.0) / actual


@dataclass(frozen=True, kw_only=True)
class Correction:
    """The factor for measured seconds per step, and its uncertainty."""

    factor: float = 1.0
    spread: float = DRIFT
    """Relative standard deviation of a run's seconds."""
    runs: int = 0
    left_out: tuple[str, ...] = ()
    """Runs that were not used, with the reason."""

    def lines(self) -> list[Line]:
        """The line for the plan; none without runs."""
        without = f"; left out: {'; '.join(self.left_out)}" if self.left_out else ""
        if not self.runs:
            reason = f"no run to learn from{without}"
            return [Line(quantity="correction", value="none", reason=reason)] if without else []
        runs = "1 finished run" if self.runs == 1 else f"{self.runs} finished runs"
        reason = f"actual ÷ measured seconds per step, {runs} here and one as measured; ± {self.spread:.0%}{without}"
        return [Line(quantity="correction", value=f"× {self.factor:.3f}", reason=reason)]


NO_HISTORY = Correction()


def learn(past: Sequence[Past], machine: str, kind: str, left_out: Sequence[str] = ()) -> Correction:
    """The geometric mean of actual / measured seconds per step over the runs of one kind on this machine.

    One run that took as long as measured is added, so that a single odd run cannot double the next plan. Runs that were
    measured on another machine do not count: they compare machines. Nor do runs of few steps, as one that only shows
    that a recipe works: their first steps are slow.
    """
    long = [run for run in past if run.kind == "hmm" or (run.outcome.steps or FEWEST_STEPS) >= FEWEST_STEPS]
    ratios = [run.step_ratio for run in long if run.teaches == (machine, kind)]
    logs = [math.log(ratio) for ratio in ratios if ratio is not None]
    mean = sum(logs) / (len(logs) + 1)
    spread = math.sqrt((DRIFT**2 + sum((log - mean) ** 2 for log in logs)) / (len(logs) + 1))
    return Correction(factor=math.exp(mean), spread=spread, runs=len(logs), left_out=tuple(left_out))


def errors(run: Past) -> dict[str, float | None]:
    """Actual / planned - 1 of each quantity, and actual / expected - 1 of the held-out loss; None: unknown.

    The time of a run that was interrupted, shortened or lengthened says nothing about its plan.
    """
    plan, outcome = run.plan, run.outcome
    undisturbed = outcome.segments == 1 and outcome.shortened is None and outcome.lengthened is None
    ratio = run.step_ratio
    return {
        "tokens": _error(plan.tokens, outcome.tokens),
        "seconds": _error(plan.seconds, outcome.seconds) if undisturbed else None,
        "step": None if ratio is None else ratio / (plan.correction or 1.0) - 1,
        "memory": _error(plan.peak_bytes, outcome.peak_bytes),
        "disk": _error(plan.disk_bytes, outcome.disk_bytes),
        "loss": None if outcome.forecast is None else _error(outcome.forecast.loss, outcome.loss),
    }


def _error(planned: float | None, actual: float | None) -> float | None:
    return None if not planned or actual is None else actual / planned - 1


def history_table(past: Sequence[Past]) -> list[tuple[str, ...]]:
    """A row per run, with whether its time was within the interval, and a last row with the mean absolute errors."""
    found = [errors(run) for run in past]
    rows = [(run.name, *map(_percent, each.values()), _held(run), _loss_held(run)) for run, each in zip(past, found)]
    if len(rows) > 1:
        columns = [[abs(error) for each in found if (error := each[name]) is not None] for name in found[0]]
        means = [_percent(sum(column) / len(column) if column else None).lstrip("+") for column in columns]
        rows.append(("mean absolute error", *means, "", ""))
    return rows


HISTORY_HEAD = ("run", "positions", "seconds", "time per step", "memory", "disk", "loss", "time held", "loss held")
"""A time or loss is held where it was within its interval."""


def _held(run: Past) -> str:
    """Whether the time was within the interval of the plan."""
    ends = run.plan.intervals.get("seconds")
    if ends is None or errors(run)["seconds"] is None:
        return "unknown"
    return "yes" if ends[0] <= run.outcome.seconds <= ends[1] else "no"


def _loss_held(run: Past) -> str:
    """Whether the held-out loss was within the interval that was first expected, after a fifth of the run or more."""
    expected = run.outcome.forecast
    if expected is None:
        return "unknown"
    return "yes" if expected.low <= run.outcome.loss <= expected.high else "no"


def _percent(error: float | None) -> str:
    return "unknown" if error is None else f"{error:+.1%}".replace("-0.0%", "+0.0%")
