"""The loss at the end of a run by earlier runs: planted curves whose ends are known, and what widens the interval."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from shoestring.laws import earlier as method
from shoestring.laws.curve import ANNEALING, Path
from shoestring.laws.earlier import Lines, Normal, Setting, Shape, by_earlier, by_falling, combined, shape_of

Floats = NDArray[np.float64]
NOTHING = Lines(np.empty(0), np.empty(0))
SETTING = Setting(parameters=1e5, rate=3e-3, rows=8)


class Run:
    """A run of a planted law: ln loss is a bent curve in ln S with a plateau, less a gain of the decay."""

    def __init__(
        self,
        steps: int,
        kind: str = "cosine",
        offset: float = 0.0,
        setting: Setting = SETTING,
        gain: float = ANNEALING[0],
        noise: float = 0.0,
    ):
        self.steps = np.arange(1.0, steps + 1)
        left = 1 - self.steps / steps
        shape = {"cosine": 0.5 - 0.5 * np.cos(math.pi * left), "linear": left, "constant": np.ones(steps)}[kind]
        self.path = Path(self.steps, setting.rate * np.minimum(self.steps / 20, 1) * shape)
        eta = self.path.rates / self.path.rates.max()
        place = np.log(np.cumsum(eta) * setting.rows)
        falls = 0.25 * np.logaddexp(0, 3 * (place - math.log(100 * 8))) / 3  # it leaves its plateau at about step 100
        came_down = self.path.at(self.steps).fallen
        self.losses = np.exp(1.1 + offset - falls - gain * came_down)
        self.training = 0.9 * self.losses * np.exp(noise * np.random.default_rng(steps).normal(size=steps))
        self.setting = setting

    def shape(self, share: float = 1.0) -> Shape:
        places = np.array([each for each in np.arange(0.1, 1.01, 0.1) if each <= share + 1e-9]) * len(self.steps)
        heldout, known = Lines(places, self.losses[places.astype(int) - 1]), int(share * len(self.steps))
        training = Lines(self.steps[:known], self.training[:known])
        found = shape_of(heldout, training, self.path, self.setting.parameters, self.setting.rows)
        assert found is not None
        return found

    @property
    def end(self) -> float:
        return float(np.log(self.losses[-1]))


def by(run: Run, *earlier: Run, share: float = 0.2) -> Normal:
    found = by_earlier(run.shape(share), run.path, [each.shape() for each in earlier])
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("before", ["cosine", "constant"])
def test_a_longer_run_tells_the_end_of_a_shorter_one_of_another_schedule(kind: str, before: str) -> None:
    """After a fifth the shorter one is on its plateau."""
    run, earlier = Run(500, kind), Run(1000, before)
    assert run.losses[99] > 0.9 * run.losses[40], "it has hardly begun to fall"
    found = by(run, earlier)
    assert abs(found.mean - run.end) < min(0.05, 1.645 * found.deviation), "what a decay gains is not known by one run"


def test_a_shorter_run_is_continued_with_a_wider_interval() -> None:
    run = Run(800)
    near, far = by(run, Run(700)), by(run, Run(300))
    assert far.deviation > 1.5 * near.deviation
    assert abs(far.mean - run.end) < 1.645 * far.deviation


def test_runs_that_ended_long_before_this_place_say_nothing() -> None:
    run, short = Run(800).shape(0.5), Run(300).shape()
    assert by_earlier(run, Run(800).path, [short]) is None
    long = Run(900).shape()
    assert by_earlier(run, Run(800).path, [short, long]) == by_earlier(run, Run(800).path, [long])


def test_the_rows_of_a_step_count() -> None:
    """Half the rows and twice the steps are the same rows in all."""
    run = Run(1000, setting=SETTING._replace(rows=4))
    assert by(run, Run(500)).mean == pytest.approx(run.end, abs=0.02)


def test_intervals_hold_where_runs_differ_by_what_is_assumed() -> None:
    random, held, errors = np.random.default_rng(3), [], []
    for _ in range(60):
        run, *earlier = (
            Run(int(random.integers(300, 1000)), str(random.choice(["cosine", "linear"])), 0.03 * random.normal())
            for _ in range(4)
        )
        found = by(run, *earlier)
        held.append(abs(found.mean - run.end) <= 1.645 * found.deviation)
        errors.append(abs(found.mean - run.end))
    assert np.mean(held) >= 0.85 and np.median(errors) <= 0.03


def test_other_settings_widen_the_interval() -> None:
    run, same = Run(600), Run(700)
    known = by(run, same).deviation
    for change in ({"parameters": 1e6}, {"rate": 3e-2}, {"rows": 64}):
        assert by(run, Run(700, setting=SETTING._replace(**change))).deviation > 1.1 * known
    nearer, farther = (SETTING.apart(SETTING._replace(rate=rate)) for rate in (2e-3, 1e-3))
    assert SETTING.apart(SETTING) == 0 < nearer < farther


def test_runs_that_differ_widen_the_interval() -> None:
    """Runs of one setting that end far apart say less than runs that end together."""
    run = Run(600)
    known = by(run, Run(700), Run(750), Run(800)).deviation
    apart = by(run, Run(700), Run(750, offset=0.3), Run(800, offset=-0.3)).deviation
    assert apart > 1.5 * known


@pytest.mark.parametrize("gain", [0.0, 0.2])
def test_what_the_decay_gains_is_learned_from_earlier_runs(gain: float) -> None:
    run = Run(600, gain=gain)
    found = by(run, Run(500, gain=gain), Run(600, gain=gain), Run(800, gain=gain))
    assert found.mean == pytest.approx(run.end, abs=0.015)
    assert found.mean == pytest.approx(by(Run(600), Run(500), Run(600), Run(800)).mean + ANNEALING[0] - gain, abs=0.02)


def test_a_distance_so_far_remains_and_training_losses_show_it() -> None:
    """A run that is 5 % below the others so far ends below them; with few evaluations its training losses say so."""
    earlier = [Run(500, noise=0.03), Run(600, noise=0.03), Run(700, noise=0.03)]
    run = Run(600, offset=-0.05, noise=0.03)
    assert by(run, *earlier).mean == pytest.approx(run.end, abs=0.02)


def test_the_answer_is_that_of_sums_of_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle: every part of a curve as a sum of independent variables, the processes by 4,000 small increments."""
    monkeypatch.setattr(method, "SCALES", (1.0,))
    run, others = Run(600), [Run(500, offset=0.1), Run(700, "linear", -0.05, SETTING._replace(rate=1e-2))]
    shapes, end = [run.shape(0.2), *(each.shape() for each in others)], run.path.at(run.path.steps[-1:])
    now, last = shapes[0].places[-1], math.log(end.sums[0] * SETTING.rows)
    points = [
        (number, place, fallen, loss, error)
        for number, each in enumerate(shapes)
        for place, loss, fallen, error in zip(each.places, each.losses, each.fallen, each.errors)
        if now - method.BEFORE <= place <= last + method.BEYOND
    ]
    points.append((0, last, float(end.fallen[0]), 0.0, 0.0))
    runs, away, fallen, losses, errors = (np.array(column) for column in zip(*points))
    away = away - now
    grid = np.linspace(-method.BEFORE, 4.0, 4000)
    small = grid[1] - grid[0]
    logs = np.log(np.array([each.setting for each in shapes])) / method.NEAR
    alike = np.exp(-0.5 * ((logs[:, None] - logs[None]) ** 2).sum(-1))
    root = np.linalg.cholesky(alike + 1e-12 * np.eye(len(shapes)))
    one, own = np.ones_like(away), np.eye(len(shapes))[runs.astype(int)]
    by_setting = root[runs.astype(int)]
    between = np.where(grid > 0, (grid <= away[:, None]) * 1.0, (grid > away[:, None]) * 1.0) * math.sqrt(small)
    bends = np.maximum(away[:, None] - grid, 0.0) * math.sqrt(small)
    since = np.maximum(away[:, None] - np.arange(-15.0, 4.0, 0.01), 0.0) / method.PASSES  # white noise, filtered twice
    passing = 2 * since * np.exp(-since) * math.sqrt(0.01 / method.PASSES)
    parts = [
        method.LEVEL * one[:, None],
        method.SLOPE[1] * away[:, None],
        method.BENDS[0] * bends,
        method.DECAY[1] * fallen[:, None],
        method.APART[0] * by_setting,
        method.PASSING[0] * np.einsum("pr,pk->prk", by_setting, passing).reshape(len(away), -1),
        method.DECAY_APART * by_setting * fallen[:, None],
        method.APART[1] * own,
        method.PASSING[1] * np.einsum("pr,pk->prk", own, passing).reshape(len(away), -1),
        method.GROWTH * own * away[:, None],
        *(method.WANDER * own[:, [number]] * between for number in range(len(shapes))),
        *(method.BENDS[1] * own[:, [number]] * bends for number in range(len(shapes))),
    ]
    covariance = np.sum([part @ part.T for part in parts], axis=0)
    known = covariance[:-1, :-1] + np.diag(errors[:-1] ** 2 + method.MISFIT**2)
    expected = method.SLOPE[0] * away - method.DECAY[0] * fallen
    weights = np.linalg.solve(known, covariance[:-1, -1])
    found = by(run, *others)
    assert found.mean == pytest.approx(expected[-1] + weights @ (losses - expected)[:-1], abs=1e-3)
    assert found.deviation**2 == pytest.approx(covariance[-1, -1] - weights @ covariance[:-1, -1], rel=0.01)


@pytest.mark.parametrize("slope", [0.05, 0.2, 0.45])
def test_without_earlier_runs_the_interval_holds_usual_falls(slope: float) -> None:
    steps = np.arange(1.0, 801)
    path = Path(steps, np.full(800, 1e-3))
    losses = 5 * steps**-slope
    places = np.array([80.0, 160.0])
    shape = shape_of(Lines(places, losses[[79, 159]]), NOTHING, path, 1e5, 8)
    assert shape is not None
    found = by_falling(shape, path).expected
    assert found.low < losses[-1] < found.high
    assert by_earlier(shape, path, []) is None


def test_the_narrower_of_two_counts_more() -> None:
    """Precisions add up: 1/0.1² + 1/0.2² = 125."""
    found = combined([Normal(1.0, 0.1), Normal(2.0, 0.2)])
    assert found.mean == pytest.approx(1.2) and found.deviation == pytest.approx(125**-0.5)
    expected = Normal(0.0, 0.1).expected
    assert expected.loss == 1 and expected.high == pytest.approx(1 / expected.low) == pytest.approx(1.1788, abs=1e-3)
    assert Normal.of(0.9, 1.0, 1.1) == Normal(0.0, pytest.approx(0.1 / 1.645))


def test_what_has_no_logarithm_is_left_out() -> None:
    steps = np.arange(1.0, 11)
    path, losses = Path(steps, np.full(10, 1e-3)), np.full(10, 2.0)
    lines = Lines(steps, losses)
    assert shape_of(lines, lines, Path(steps, np.zeros(10)), 1e5, 8) is None
    assert shape_of(NOTHING, lines, path, 1e5, 8) is None
    assert shape_of(Lines(steps, 0 * losses), lines, path, 1e5, 8) is None
    assert shape_of(Lines(steps, math.nan * losses), lines, path, 1e5, 8) is None
    assert shape_of(lines, lines, path, math.nan, 8) is None and shape_of(lines, lines, path, 1e5, 0) is None
    losses[3] = math.inf
    found = shape_of(lines, NOTHING, path, 1e5, 8)
    assert found is not None and len(found.places) == 9
    assert Normal.of(-1.0, 0.0, 1.0) is None and Normal.of(1.0, 1.0, 1.0) is None


def test_training_losses_are_moved_to_the_held_out_ones() -> None:
    """They are a constant share of them here, so the shape is the curve of the held-out losses."""
    run = Run(800, "constant")
    shape = run.shape()
    losses = np.interp(shape.places, np.log(run.path.at(run.steps).sums * SETTING.rows), np.log(run.losses))
    assert len(shape.places) > 15 and (np.diff(shape.places) >= 0).all()
    late = shape.places > math.log(50 * SETTING.rows)
    assert np.abs(shape.losses - losses)[late].max() < 0.01
