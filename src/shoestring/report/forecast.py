"""The held-out loss that a run will end with, from its curve and earlier runs; and what its law says of another run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from shoestring.core.results import Forecast, Verdict
from shoestring.core.units import Seconds
from shoestring.track.curve import Curve, HeldoutLine

if TYPE_CHECKING:
    from shoestring.laws.curve import Expected, Fit, Path
    from shoestring.laws.earlier import Normal, Shape

RECORDED_AT = (0.2, 0.3, 0.4, 0.5, 0.7)
"""Shares of a run: its outcome records the forecast after the first of them at which something was known."""
FIRST_AT = 0.1
"""Share of a run before which there is no forecast."""
_GAPS = 3
"""Evaluations that the difference of held-out and training loss is taken from."""
_LEAST_SPREAD = 0.003
"""Relative standard deviation of that difference, at least."""
_LEAST_GAIN = 0.01
"""Share of the loss that more steps must gain to be worth a sentence."""
_LEAST_SHARE, _SHOWN_SHARE = 0.5, 0.3
"""What twice the steps would give, and what a run will end with, is said if the lower end of its interval is at least
this share of the upper end: of a curve that has just begun to fall nothing is known."""
_DOUBT = 0.08
"""Relative standard deviation of the law's answer at which twice as much is assumed; it grows with its square. Early in
a small run the law is further off than it says (results/log.md)."""
_DECAYED, _GAINLESS, _STEEP, _STEEPEST = 0.2, 0.2, 0.07, 0.5
"""A rate is too low if it came down to the first share of its peak, gained by that less than the second share of what
twice the sum of the rates would gain, and the loss falls by the third share of itself per unit of ln S. One that falls
by the fourth share is just leaving a plateau, which says nothing of the rate."""


class Beside(NamedTuple):
    """The finished runs on the same data that a run is compared with, and what its own setting is."""

    parameters: float = 1.0
    rows: float = 1.0
    """Of a step."""
    shapes: Mapping[str, Shape] = {}
    """By name."""


ALONE = Beside()


def recorded_forecast(curve: Curve, beside: Beside = ALONE) -> Forecast | None:
    """What a finished run expected first, given the learning rates that followed; None: never anything."""
    path, steps = taken_path(curve), _last_step(curve)
    if path is None:
        return None
    parts = (curve.until(share * steps) for share in RECORDED_AT)
    found = (forecast(known, path, beside) for known in parts if known.turn is None)
    return next((expected for expected in found if expected is not None), None)


def taken_path(curve: Curve) -> Path | None:
    """The learning rates of a run as they were; None where there are none, as in an HMM's fit."""
    import numpy as np

    from shoestring.laws.curve import Path

    lines = [(line.step, line.lr) for line in curve.training if line.lr is not None]
    if not lines:
        return None
    steps, rates = zip(*lines)
    return Path(np.array(steps, float), np.array(rates, float))


def forecast(curve: Curve, path: Path, beside: Beside = ALONE) -> Forecast | None:
    """The held-out loss at the end of the path, from the curve so far; None: too little is known.

    It is by the runs beside this one. Without them, it is by how losses usually fall and by the law of its own curve,
    each by how little it leaves open.
    """
    from shoestring.laws.earlier import by_earlier

    shape = heldout_shape(curve, path, beside.parameters, beside.rows)
    if shape is None:
        return None
    by_others = by_earlier(shape, path, list(beside.shapes.values()))
    found = (by_others or _by_itself(curve, path, shape)).expected
    if found.low < _SHOWN_SHARE * found.high:
        return None
    last, runs = curve.training[-1].step, 0 if by_others is None else len(beside.shapes)
    return Forecast(step=last, loss=found.loss, low=found.low, high=found.high, runs=runs)


def _by_itself(curve: Curve, path: Path, shape: Shape) -> Normal:
    from shoestring.laws.earlier import Normal, by_falling, combined

    law = rough_forecast(curve, path)
    by_law = None if law is None else Normal.of(law.low, law.loss, law.high)
    if by_law is None:
        return by_falling(shape, path)
    doubted = by_law.deviation * (1 + (by_law.deviation / _DOUBT) ** 2)
    return combined([by_falling(shape, path), Normal(by_law.mean, doubted)])


def heldout_shape(curve: Curve, path: Path, parameters: float, rows: float) -> Shape | None:
    """A curve as a shape, by which runs are compared; None: it has no held-out losses."""
    import numpy as np

    from shoestring.laws.earlier import Lines, shape_of

    if not curve.heldout or not curve.training:
        return None
    heldout, training = (
        Lines(np.array([line.step for line in lines], float), np.array([line.loss for line in lines], float))
        for lines in (curve.heldout, curve.training)
    )
    return shape_of(heldout, training, path, parameters, rows)


def rough_forecast(curve: Curve, path: Path) -> Forecast | None:
    """As `forecast`, however wide its interval; it serves to compare runs at the same place. None: no law fits."""
    fit, end = _fit(curve, path), float(path.steps[-1])
    if fit is None or not curve.heldout:
        return None
    found = _heldout(fit, curve, path, path, end)
    return Forecast(step=curve.training[-1].step, loss=found.loss, low=found.low, high=found.high)


def _fit(curve: Curve, path: Path) -> Fit | None:
    import numpy as np

    from shoestring.laws.curve import fit_curve

    lines = [line for line in curve.training if line.lr is not None]
    return fit_curve(np.array([line.step for line in lines], float), np.array([line.loss for line in lines]), path)


def _heldout(fit: Fit, curve: Curve, known: Path, path: Path, step: float) -> Expected:
    """The held-out loss after a step of `path`: the training loss by the law, and its distance from the held-out loss
    in the last evaluations, which is taken to go on as it changed there, or not at all."""
    last = curve.heldout[-_GAPS:]
    gaps = [line.loss - fit.center(known, line.step) for line in last]
    shift = gaps[-1] if len(gaps) == 1 else sum(gaps) / len(gaps)
    spread = _LEAST_SPREAD * last[-1].loss
    if len(gaps) > 1:
        ahead = math.log(max(1.0, step / last[-1].step)) / math.log(last[-1].step / last[0].step)
        shift, drift = gaps[-1] / 2 + shift / 2, (gaps[-1] - gaps[0]) * ahead
        shift, spread = shift + drift / 2, math.hypot(spread, drift / 2, (max(gaps) - min(gaps)) / 2)
    return fit.predict(path, step, shift, spread)


def _last_step(curve: Curve) -> int:
    return curve.training[-1].step if curve.training else 0


def verdicts_by_law(curve: Curve, step_seconds: float | None = None) -> list[Verdict]:
    """Whether a finished run was still falling, and whether its learning rate was too low.

    Nothing of a run that overfitted.
    """
    if curve.turn is not None:
        return []
    path = taken_path(curve)
    fit = None if path is None else _fit(curve, path)
    if path is None or fit is None or not curve.heldout or curve.best != curve.heldout[-1]:
        return []
    found = [_falling(fit, curve, path, curve.heldout[-1], step_seconds), _too_low(fit, path)]
    return [verdict for verdict in found if verdict is not None]


def _falling(fit: Fit, curve: Curve, path: Path, last: HeldoutLine, step_seconds: float | None) -> Verdict | None:
    steps = _last_step(curve)
    found = _heldout(fit, curve, path, path.stretched(2.0), 2.0 * steps)
    if found.high >= last.loss or found.loss > (1 - _LEAST_GAIN) * last.loss:
        return None
    if found.low < _LEAST_SHARE * found.high:
        return None
    took = "" if step_seconds is None else f", {Seconds(steps * step_seconds).short()} more,"
    text = (
        f"Still falling: twice the steps{took} would give about {found.loss:.3f} "
        f"({found.low:.3f} to {found.high:.3f}, 90 %)."
    )
    return Verdict(kind="still_falling", text=text)


def _too_low(fit: Fit, path: Path) -> Verdict | None:
    """Whether the loss depended on the sum of the rates alone.

    At a rate that is high enough the loss falls faster while the rate comes down, because the noise of the steps comes
    down too. Where nothing is gained by that, there is no such noise, and larger steps would have gone further.
    """
    peak = float(path.rates.max())
    if path.rates[-1] > _DECAYED * peak:
        return None
    now, slope, gained = fit.mean
    _, slope_error, gained_error = fit.error
    steep = _STEEP * now < slope < _STEEPEST * now and slope > 4 * slope_error
    if not steep or gained + gained_error > _GAINLESS * slope * math.log(2):
        return None
    text = (
        f"Learning rate too low: the loss followed the sum of the rates, and gained nothing when they came down. "
        f"Try train.lr = {2 * peak:.1g} to {4 * peak:.1g}."
    )
    return Verdict(kind="lr_too_low", text=text)
