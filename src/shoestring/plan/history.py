"""How good past plans were, and what the next plan learns from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoestring.core.facts import Line, Outcome, Plan

DRIFT = 0.05
"""Share by which a run's speed differs from what was measured before it, where no run says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Past:
    """A finished run beside its plan."""

    name: str
    machine: str | None
    """Fingerprint of where it ran; None where nobody noted it."""
    measured_on: str | None
    """Fingerprint of the machine that its plan was made for; None where nobody noted it."""
    kind: str | None
    """What was trained; None where nobody noted it."""
    plan: Plan
    outcome: Outcome

    @property
    def teaches(self) -> tuple[str, str] | None:
        """Machine and kind of the plans that learn from it; None where it ran elsewhere than it was measured."""
        if self.machine is None or self.kind is None or self.machine != self.measured_on:
            return None
        return self.machine, self.kind

    @property
    def step_ratio(self) -> float | None:
        """Seconds of a step, actual by measured: what the plan itself corrected before is taken out."""
        planned, actual = self.plan.tokens_per_second, self.outcome.tokens_per_second
        if not planned or not actual:
            return None
        return planned * (self.plan.correction or 1.0) / actual


@dataclass(frozen=True, kw_only=True)
class Correction:
    """What measured seconds of a step are multiplied by, and how far runs lie apart."""

    factor: float = 1.0
    spread: float = DRIFT
    """Standard deviation of a run's seconds, as a share."""
    runs: int = 0
    left_out: tuple[str, ...] = ()
    """Runs that teach nothing, with why."""

    def lines(self) -> list[Line]:
        """For the plan; none where there is nothing to say."""
        without = f"; left out: {'; '.join(self.left_out)}" if self.left_out else ""
        if not self.runs:
            reason = f"no run to learn from{without}"
            return [Line(quantity="correction", value="none", reason=reason)] if without else []
        runs = "1 finished run" if self.runs == 1 else f"{self.runs} finished runs"
        reason = f"actual ÷ measured seconds of a step, {runs} here and one as measured; ± {self.spread:.0%}{without}"
        return [Line(quantity="correction", value=f"× {self.factor:.3f}", reason=reason)]


NO_HISTORY = Correction()


def learn(past: Sequence[Past], machine: str, kind: str, left_out: Sequence[str] = ()) -> Correction:
    """The geometric mean of actual by measured step seconds over runs of one kind on this machine, with one run more as
    measured.

    That one keeps a single odd run from doubling the next plan. A run that was measured on another machine says how far
    apart the two are, and not how far a step is from its measurement; the passes of an HMM say nothing of a network's.
    """
    ratios = [run.step_ratio for run in past if run.teaches == (machine, kind)]
    logs = [math.log(ratio) for ratio in ratios if ratio is not None]
    mean = sum(logs) / (len(logs) + 1)
    spread = math.sqrt((DRIFT**2 + sum((log - mean) ** 2 for log in logs)) / (len(logs) + 1))
    return Correction(factor=math.exp(mean), spread=spread, runs=len(logs), left_out=tuple(left_out))


def errors(run: Past) -> dict[str, float | None]:
    """Actual by planned, less one, of each quantity; None where one of the two is not known.

    The time of a run that was cut, moved between sessions, or made shorter or longer, is no error of its plan.
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
    }


def _error(planned: float | None, actual: float | None) -> float | None:
    return None if not planned or actual is None else actual / planned - 1


def history_table(past: Sequence[Past]) -> list[tuple[str, ...]]:
    """A line for each run, and the mean absolute error of each column below; the time's own interval beside it."""
    rows = []
    every: dict[str, list[float]] = {}
    for run in past:
        found = errors(run)
        for name, error in found.items():
            if error is not None:
                every.setdefault(name, []).append(abs(error))
        rows.append((run.name, *(_percent(error) for error in found.values()), _held(run)))
    if len(rows) > 1:
        means = [sum(every[name]) / len(every[name]) if name in every else None for name in errors(past[0])]
        rows.append(("mean size of the error", *(_percent(mean).lstrip("+") for mean in means), ""))
    return rows


HISTORY_HEAD = ("run", "tokens", "seconds", "a step", "memory", "disk", "within its interval")


def _held(run: Past) -> str:
    """Whether the time came out within the interval that the plan gave."""
    ends = run.plan.intervals.get("seconds")
    if ends is None or errors(run)["seconds"] is None:
        return "unknown"
    return "yes" if ends[0] <= run.outcome.seconds <= ends[1] else "no"


def _percent(error: float | None) -> str:
    return "unknown" if error is None else f"{error:+.1%}".replace("-0.0%", "+0.0%")
