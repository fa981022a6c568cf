"""The curves of a run by what they cost, thinned to what a screen can show."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from shoestring.board.growing import GrowingLines
from shoestring.core.results import Forecast
from shoestring.track.curve import Curve, HeldoutLine, TrainingLine

By = Literal["step", "tokens", "seconds", "flops"]
Numbers = NDArray[np.float64]


class Points(NamedTuple):
    """A curve, x ascending."""

    x: Numbers
    y: Numbers


class RunCurves:
    """What the metrics and timings of a run say so far; `read` takes in what was added since."""

    def __init__(self, metrics: Path, timings: Path):
        self._metrics, self._timings = GrowingLines(metrics), GrowingLines(timings)
        self._clear_metrics()
        self._clear_timings()

    def _clear_metrics(self) -> None:
        self._training = np.empty((0, 5))
        """Steps, losses, positions, learning rates and norms of the gradient; NaN: none."""
        self.heldout: list[HeldoutLine] = []
        self.total: int | None = None
        """Steps that the schedule was changed to."""
        self._events: list[Mapping[str, Any]] = []

    def _clear_timings(self) -> None:
        self._seconds = np.zeros((1, 3))
        """Steps, seconds of all sessions, positions per second."""
        self._before = self._elapsed = 0.0
        self.event: str | None = None
        """What the last session said last of itself, such as "stopped"; None: it has taken steps since."""
        self.forecast: Forecast | None = None
        self.counted: float | None = None
        """The held-out loss of counting tokens, once the run should be below it."""

    @property
    def damaged(self) -> int:
        """Lines that could not be read."""
        return self._metrics.damaged + self._timings.damaged

    def read(self) -> bool:
        """Whether anything was added."""
        again, lines = self._metrics.read()
        if again:
            self._clear_metrics()
        if lines:
            self._training = np.concatenate(
                (self._training, _columns(lines, ("step", "loss", "tokens", "lr", "grad_norm"), "loss"))
            )
            self._add_others([line for line in lines if "loss" not in line or len(line) > 6])
        anew, timings = self._timings.read()
        if anew:
            self._clear_timings()
        starts = [0, *(n for n, line in enumerate(timings) if line.get("event") == "start"), len(timings)]
        for first, last in itertools.pairwise(starts):
            self._add_session(timings[first:last])
        return again or anew or bool(lines or timings)

    def _add_others(self, lines: Sequence[Mapping[str, Any]]) -> None:
        for line in lines:
            if _is_number(line.get("heldout_loss")) and _is_number(line.get("step")):
                self.heldout.append(HeldoutLine(int(line["step"]), line["heldout_loss"], line.get("heldout_error")))
            if "event" in line:
                self._events.append(line)
                self.total = line.get("total", self.total)

    def _add_session(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Lines of one session; the first may say that it starts."""
        if lines and lines[0].get("event") == "start":
            self._before += self._elapsed
            self._elapsed = 0.0
        told = _columns(lines, ("step", "elapsed", "tokens_per_second"), "tokens_per_second")
        if len(told):
            told[:, 1] += self._before
            kept = self._seconds[:, 0] < told[0, 0]  # others are steps that were taken again
            self._seconds = np.concatenate((self._seconds[kept], told))
        for line in lines:
            if _is_number(elapsed := line.get("elapsed")):
                self._elapsed = max(self._elapsed, elapsed)
            if (event := line.get("event")) == "forecast":
                self.forecast = _forecast(line) or self.forecast
            elif event == "counted":
                self.counted = line["loss"] if _is_number(line.get("loss")) else self.counted
            elif event is not None or "tokens_per_second" in line:
                self.event = event

    @property
    def seconds(self) -> float:
        """Of all sessions, to their last lines."""
        return self._before + self._elapsed

    @property
    def step(self) -> int:
        """The last one in the metrics."""
        return int(max([*self._training[-1:, 0], *(line.step for line in self.heldout[-1:])], default=0))

    @property
    def best(self) -> HeldoutLine | None:
        return min(self.heldout, key=lambda line: line.loss, default=None)

    @property
    def tokens(self) -> float | None:
        """Positions of training."""
        known = self._training[np.isfinite(self._training[:, 2]), 2]
        return float(known[-1]) if len(known) else None

    @property
    def rate(self) -> float | None:
        """Positions per second, in the last line."""
        return float(self._seconds[-1, 2]) or None

    @property
    def curve(self) -> Curve:
        """For verdicts."""
        lines = (
            TrainingLine(int(step), loss, None if lr != lr else lr, None if norm != norm else norm)
            for step, loss, _, lr, norm in self._training.tolist()
        )
        return Curve(training=tuple(lines), heldout=tuple(self.heldout), turn=Curve.of(self._events).turn)

    def step_seconds(self) -> float | None:
        """Seconds per step over the last tenth of the lines, without regard to a slow one; None: unknown."""
        last = self._seconds[1:][-max(3, len(self._seconds) // 10) :]
        steps, seconds = np.diff(last[:, 0]), np.diff(last[:, 1])
        each = (seconds / np.maximum(steps, 1))[(steps > 0) & (seconds > 0)]
        return float(np.median(each)) if len(each) else None

    def points(self, by: By, flops_per_token: float | None, smooth: float = 0.0) -> dict[str, Points]:
        """Training and held-out losses; empty where x is not known. `smooth` is the share of the lines that a mean is
        taken over."""
        steps, losses = self._training[:, 0], self._training[:, 1]
        scored = np.array([(line.step, line.loss) for line in self.heldout], float).reshape(-1, 2)
        smoothed = _mean_around(losses, round(smooth * len(losses)))
        return {
            "training": Points(self._places(steps, by, flops_per_token), smoothed),
            "heldout": Points(self._places(scored[:, 0], by, flops_per_token), scored[:, 1]),
        }

    def _places(self, steps: Numbers, by: By, flops_per_token: float | None) -> Numbers:
        if by == "step":
            return steps
        known = self._seconds[:, :2] if by == "seconds" else self._training[:, [0, 2]]
        known = known[np.isfinite(known[:, 1])]
        if not len(known) or not known[-1, 0] or (by == "flops" and flops_per_token is None):
            return np.full(len(steps), np.nan)
        found: Numbers = np.interp(steps, np.append(0.0, known[:, 0]), np.append(0.0, known[:, 1]))
        return found * (flops_per_token or 1.0) if by == "flops" else found


def _columns(lines: Sequence[Mapping[str, Any]], names: Sequence[str], needed: str) -> Numbers:
    """The numbers of the lines that have the field `needed`; a line with anything else in its place is left out."""
    there = [line for line in lines if needed in line and line.get("event") is None]
    try:
        found = np.array([[line.get(name) for line in there] for name in names], float).T
    except (ValueError, TypeError):
        rows = [[line.get(name) for name in names] for line in there]
        found = np.array([row for row in rows if all(_is_number(value) or value is None for value in row)], float)
        found = found.reshape(-1, len(names))
    kept: Numbers = found[np.isfinite(found[:, :2]).all(axis=1)]
    return kept


def _forecast(line: Mapping[str, Any]) -> Forecast | None:
    values = [line.get(name) for name in ("step", "loss", "low", "high")]
    if not all(map(_is_number, values)):
        return None
    runs = line.get("runs")
    return Forecast(
        step=int(line["step"]), loss=line["loss"], low=line["low"], high=line["high"],
        runs=int(runs) if _is_number(runs) else 0,
    )  # fmt: skip


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _mean_around(values: Numbers, window: int) -> Numbers:
    """The mean of about `window` values around each one, of fewer at the ends."""
    half = window // 2
    if half < 1 or not len(values):
        return values
    sums = np.concatenate(([0.0], np.cumsum(values)))
    places = np.arange(len(values))
    reach = np.minimum(half, np.minimum(places, len(values) - 1 - places))  # the same to both sides
    first, last = places - reach, places + reach + 1
    found: Numbers = (sums[last] - sums[first]) / (last - first)
    return found


class Grid:
    """Places that all curves share: two in each of `buckets` equal parts of the x axis, or of its logarithm."""

    def __init__(self, low: float, high: float, buckets: int, log: bool):
        if log:
            low = max(low, high * 1e-12, 1e-300)
            self._edges = np.exp(np.linspace(math.log(low), math.log(max(high, low * 1.0000001)), buckets + 1))
        else:
            self._edges = np.linspace(low, max(high, low + 1e-12 * max(1.0, abs(low))), buckets + 1)
        quarters = np.diff(self._edges) / 4
        self.x = np.stack((self._edges[:-1] + quarters, self._edges[1:] - quarters), axis=1).ravel()

    def extremes(self, points: Points) -> Numbers:
        """The lowest and the highest value of each bucket, in the order in which the curve runs; NaN: no value."""
        found = np.full(len(self.x), np.nan)
        inside = (points.x >= self._edges[0]) & (points.x <= self._edges[-1]) & np.isfinite(points.y)
        x, y = points.x[inside], points.y[inside]
        if not len(x):
            return found
        buckets = np.clip(np.searchsorted(self._edges, x, side="right") - 1, 0, len(self._edges) - 2)
        starts = np.flatnonzero(np.diff(buckets, prepend=-1))
        low, high = np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)
        falls = y[starts] >= y[np.append(starts[1:], len(y)) - 1]
        place = 2 * buckets[starts]
        found[place] = np.where(falls, high, low)
        found[place + 1] = np.where(falls, low, high)
        return found


def span(curves: Sequence[Points], log: bool) -> tuple[float, float]:
    """The least and the largest x of all curves, above zero on a logarithmic axis."""
    known = [curve.x[np.isfinite(curve.x) & ((curve.x > 0) | (not log))] for curve in curves]
    ends = [end for x in known if len(x) for end in (x[0], x[-1])]
    return (float(min(ends)), float(max(ends))) if ends else (0.0, 1.0)


def as_json(values: Numbers) -> list[float | None]:
    return [None if value != value else value for value in np.round(values, 5).tolist()]
