"""Whether two kinds of runs differ: runs of a kind differ in their seed alone, and all score the same rows.

The loss of run s of kind k on row r is taken as

    mean of k + row r + (row r for k) + (seed s of k) + rest.

The difference of the two means has no part of the rows themselves, since both kinds have the same ones: what is left of
them is how much more some rows like one kind. So its variance is that of the seeds, s² / S for each kind, and of these
preferences over the rows. The second contains a share of the rest, which the first contains too; it is taken out once,
by the two-way analysis of variance. Degrees of freedom are Welch's and Satterthwaite's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any, NamedTuple

from shoestring.core.results import Evaluation

MOST_SEEDS = 1000
"""Of each kind, that are thought of to settle a comparison."""
_SURE = 0.8416
"""The 80 % quantile of a normal variable: more seeds settle it in four of five cases."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The last evaluation of a run."""

    loss: float
    nats: tuple[float, ...] = ()
    """Of each row; empty: not known."""
    predictions: tuple[int, ...] = ()
    rows: str | None = None
    """Names the rows; runs with the same text have scored the same ones."""


def scored_of(evaluation: Evaluation) -> Scored:
    """What a comparison needs of an evaluation."""
    rows = evaluation.scored_rows if evaluation.nats_by_row else None
    return Scored(
        loss=evaluation.loss, nats=evaluation.nats_by_row, predictions=evaluation.predictions_by_row, rows=rows
    )


class Difference(NamedTuple):
    """The losses of two kinds of runs."""

    counts: tuple[int, int]
    """Runs of each."""
    means: tuple[float, float]
    seeds: tuple[float, float] | None
    """The variance of the loss over seeds of each kind; None: there is one run of either."""
    rows: int | None
    """How many rows all of them have scored; None: they have not scored the same ones."""
    row_variance: float
    """Of the difference, from the choice of the rows; 0 where they are not the same, as it is in the seeds then."""

    @property
    def effect(self) -> float:
        """How much higher the second mean is."""
        return self.means[1] - self.means[0]

    @property
    def half_width(self) -> float:
        """Of the 95 % interval of the effect."""
        return self._half_width(self.counts)

    def _half_width(self, counts: tuple[int, int]) -> float:
        error, freedom = self._error(counts)
        return t_95(freedom) * error

    def _error(self, counts: tuple[int, int]) -> tuple[float, float]:
        """The standard error of the effect with so many runs, and its degrees of freedom."""
        parts = [] if self.rows is None else [(self.row_variance, self.rows - 1)]
        if self.seeds is not None:
            parts += [(each / count, count - 1) for each, count in zip(self.seeds, counts)]
        total, spread = sum(part for part, _ in parts), sum(part**2 / freedom for part, freedom in parts)
        return math.sqrt(total), min(freedom for _, freedom in parts) if spread == 0 else total**2 / spread

    @property
    def different(self) -> bool:
        """Whether the means differ by more than chance makes them; equal kinds do in one of twenty comparisons."""
        return abs(self.effect) > self.half_width

    @property
    def more_seeds(self) -> int | None:
        """How many more runs of each kind would show the effect in four of five cases, if it is as large as it seems.

        None: the seeds are not known to vary, or not even `MOST_SEEDS` would.
        """
        if self.seeds is None or not self.effect:
            return None
        first = max(self.counts)
        low, high = first + 1, MOST_SEEDS + 1
        while low < high:  # more seeds never widen the interval
            middle = (low + high) // 2
            low, high = (low, middle) if self._settles(middle) else (middle + 1, high)
        return None if low > MOST_SEEDS else low - first

    def _settles(self, count: int) -> bool:
        error, freedom = self._error((count, count))
        sure = _SURE + (_SURE**3 + _SURE) / (4 * freedom)  # of Student's t, by Cornish and Fisher
        return abs(self.effect) > (t_95(freedom) + sure) * error

    def sentence(self, names: tuple[str, str]) -> str:
        """What is known of the difference, and what would settle it."""
        told = [f"{name} {mean:.4f}" + _seeds(count) for name, mean, count in zip(names, self.means, self.counts)]
        over = "" if self.rows is None else f" on the same {self.rows:,} rows"
        size = f"a difference of {self.effect:+.4f} ± {self.half_width:.4f} (95 %{over})"
        return f"{' and '.join(told)}: {size}. {self._verdict()}"

    def _verdict(self) -> str:
        if self.seeds is None:
            models = "These two models differ" if self.different else "These two models may be equally good"
            return f"{models}; what another seed changes is not known: give at least two runs of each"
        if self.different:
            return "They differ."
        if (more := self.more_seeds) is not None:
            return (
                f"That may be chance; about {more} more seeds of each would settle it, if it is as large as it seems."
            )
        if self.row_variance * t_95(max(1.0, (self.rows or 2) - 1)) ** 2 >= self.effect**2 > 0:
            return (
                "That may be chance, and of these rows: more of them (evaluate.rows) would tell, more seeds would not."
            )
        return f"That may be chance; {MOST_SEEDS:,} seeds of each would not settle it."


def difference_json(found: Difference) -> dict[str, Any]:
    """The object of a difference."""
    return {
        "runs": list(found.counts),
        "means": list(found.means),
        "effect": found.effect,
        "interval": [found.effect - found.half_width, found.effect + found.half_width],
        "rows": found.rows,
        "over_seeds": found.seeds is not None,
        "different": found.different,
        "more_seeds": None if found.different else found.more_seeds,
    }


def _seeds(count: int) -> str:
    return "" if count == 1 else f" over {count} seeds"


def difference(first: Sequence[Scored], second: Sequence[Scored]) -> Difference | None:
    """Compare two kinds of runs; None: one run of either, on other rows or on rows that were not recorded."""
    runs = (first, second)
    counts, means = (len(first), len(second)), (fmean(run.loss for run in first), fmean(run.loss for run in second))
    seeds = (_variance(first), _variance(second)) if min(counts) > 1 else None
    names = {run.rows for kind in runs for run in kind}
    if len(names) > 1 or None in names or len(first[0].nats) < 2:
        return None if seeds is None else Difference(counts, means, seeds, None, 0.0)
    return Difference(counts, means, seeds, len(first[0].nats), _row_variance(first, second))


def _variance(kind: Sequence[Scored]) -> float:
    return variance(run.loss for run in kind)


def _row_variance(first: Sequence[Scored], second: Sequence[Scored]) -> float:
    """The variance of the effect that the choice of rows makes, without what the seeds contain already."""
    mean_first, mean_second = _mean_rows(first), _mean_rows(second)
    own = _spread([b - a for a, b in zip(mean_first, mean_second)])
    rest = sum(_rest(kind, mean) for kind, mean in ((first, mean_first), (second, mean_second)))
    return max(0.0, own - rest)


def _parts(run: Scored) -> list[float]:
    """What each row adds to the loss of a run beyond its mean, so that rows of any length count as they should."""
    scale = len(run.nats) / sum(run.predictions)
    return [scale * (nats - run.loss * count) for nats, count in zip(run.nats, run.predictions)]


def _mean_rows(kind: Sequence[Scored]) -> list[float]:
    return [fmean(values) for values in zip(*map(_parts, kind))]


def _spread(values: Sequence[float]) -> float:
    """The variance of the mean of values over rows."""
    return variance(values) / len(values)


def _rest(kind: Sequence[Scored], mean: Sequence[float]) -> float:
    """What is neither of a seed nor of a row, in the mean over the runs of a kind; 0 for one run."""
    if len(kind) < 2:
        return 0.0
    squares = sum((value - middle) ** 2 for run in kind for value, middle in zip(_parts(run), mean))
    rows = len(mean)
    return squares / ((len(kind) - 1) * (rows - 1)) / len(kind) / rows


_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""The 97.5 % quantile of Student's t for 1 to 30 degrees of freedom."""


def t_95(freedom: float) -> float:
    """The same for any number from 1 on: between two of the table its logarithm is nearly linear in 1 / freedom."""
    if freedom >= len(_T_95):
        return 1.96 + 2.5 / freedom
    low = max(1, int(freedom))
    if low == len(_T_95):
        return _T_95[-1]
    share = (1 / low - 1 / max(1.0, freedom)) / (1 / low - 1 / (low + 1))
    return float(_T_95[low - 1] ** (1 - share) * _T_95[low] ** share)
