"""The record of a scaling law: its coefficients with their intervals, and what it was fitted to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from shoestring.core.consistency import descending, differs, negatives
from shoestring.core.schema import Record


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
    """Whether `samples` are at the edge of the 95 % region: an interval is then their range. Else they are resamples,
    and it is the middle 95 % of them."""
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
