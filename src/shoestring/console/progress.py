"""The line of progress of a run, as long as there is room for it, and the curve of its loss in one line of text."""

from __future__ import annotations

import math

from shoestring.core.results import Forecast
from shoestring.core.units import Count, Seconds, counted, rate
from shoestring.runs.reporter import TrainingProgress

_LEVELS = "▁▂▃▄▅▆▇█"
_PLACES = 12


class Sparkline:
    """The losses of a run so far as twelve characters; where there are more, neighbours are put together."""

    def __init__(self) -> None:
        self._sums: list[tuple[float, int]] = []
        self._each, self._done = 1, 0

    def add(self, done: int, loss: float) -> None:
        """The loss after `done` steps; fewer than before are those of another run."""
        if done < self._done:
            self._sums, self._each = [], 1
        self._done = done
        if not math.isfinite(loss):
            return
        if not self._sums or self._sums[-1][1] >= self._each:
            if len(self._sums) == 2 * _PLACES:
                pairs = zip(self._sums[::2], self._sums[1::2])
                self._sums = [(one + other, n + m) for (one, n), (other, m) in pairs]
                self._each *= 2
            self._sums.append((0.0, 0))
        total, count = self._sums[-1]
        self._sums[-1] = total + loss, count + 1

    def line(self) -> str:
        """Nothing for fewer than two losses."""
        means = [total / count for total, count in self._sums][-2 * _PLACES :]
        if len(means) < 2:
            return ""
        if len(means) > _PLACES:
            means = [sum(means[place : place + 2]) / len(means[place : place + 2]) for place in range(0, len(means), 2)]
        low, high = min(means), max(means)
        scale = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
        return "".join(_LEVELS[round((mean - low) * scale)] for mean in means)


def _by(expected: Forecast) -> str:
    return f" by {counted(expected.runs, 'earlier run')}" if expected.runs else ""


def progress_line(progress: TrainingProgress, curve: str = "", room: float = math.inf) -> str:
    """How far a run is, its loss, speed and time left; what matters least is left out where there is no room."""
    budget, expected, left = progress.budget_left, progress.forecast, progress.seconds_left
    losses = f"loss {progress.loss:.3f}"
    parts = {  # in the order in which they are shown
        "count": f"{progress.unit} {Count(progress.done).short()}/{Count(progress.total).short()}",
        "curve": f"{losses} {curve}" if curve else losses,
        "forecast": ""
        if expected is None
        else f"held out at the end about {expected.loss:.2f} ({expected.low:.2f}–{expected.high:.2f})" + _by(expected),
        "speed": rate(progress.tokens_per_second, "positions/s"),
        "left": "" if left is None else f"time left {Seconds(left).short()}",
        "budget": "" if budget is None else f"budget left {Seconds(max(0.0, budget)).short()}",
    }
    shorter = {  # in the order in which they give way
        "budget": "",
        "forecast": "" if expected is None else f"end {expected.loss:.2f}",
        "left": "" if left is None else f"{Seconds(left).short()} left",
        "speed": "",
        "curve": losses,
    }
    for name, text in shorter.items():
        if len(_joined(parts)) <= room:
            break
        parts[name] = text
    return _joined(parts)


def _joined(parts: dict[str, str]) -> str:
    return " · ".join(part for part in parts.values() if part)
