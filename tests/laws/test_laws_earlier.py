"""The loss at the end of a run by earlier runs: planted curves whose ends are known, and what widens the interval."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from shoestring.laws.curve import ANNEALING, Path
from shoestring.laws.earlier import Normal, Setting, Shape, by_earlier, by_falling, combined, shape_of

Floats = NDArray[np.float64]
SETTING = Setting(parameters=1e5, rate=3e-3, rows=8)


class Run:
    """A run of a planted law: ln loss is a bent curve in ln S with a plateau, less a gain of the decay."""

    def __init__(self, steps: int, kind: str = "cosine", offset: float = 0.0, setting: Setting = SETTING):
        self.steps = np.arange(1.0, steps + 1)
        left = 1 - self.steps / steps
        shape = {"cosine": 0.5 - 0.5 * np.cos(math.pi * left), "linear": left, "constant": np.ones(steps)}[kind]
        self.path = Path(self.steps, setting.rate * np.minimum(self.steps / 20, 1) * shape)
        eta = self.path.rates / self.path.rates.max()
        place = np.log(np.cumsum(eta) * setting.rows)
        falls = 0.25 * np.logaddexp(0, 3 * (place - math.log(100 * 8))) / 3  # it leaves its plateau at about step 100
        came_down = self.path.at(self.steps).fallen
        self.losses = np.exp(1.1 + offset - falls - ANNEALING[0] * came_down)
        self.setting = setting

    def shape(self, share: float = 1.0) -> Shape:
        places = np.array([each for each in np.arange(0.1, 1.01, 0.1) if each <= share + 1e-9]) * len(self.steps)
        found = shape_of(
            places, self.losses[places.astype(int) - 1], self.path, self.setting.parameters, self.setting.rows
        )
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
    assert found.mean == pytest.approx(run.end, abs=0.02)


def test_a_shorter_run_is_continued_with_a_wider_interval() -> None:
    run = Run(800)
    near, far = by(run, Run(700)), by(run, Run(300))
    assert far.deviation > 1.5 * near.deviation
    assert abs(far.mean - run.end) < 1.645 * far.deviation


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


def test_other_settings_and_runs_that_disagree_widen_the_interval() -> None:
    run, same = Run(600), Run(700)
    known = by(run, same).deviation
    for change in ({"parameters": 1e6}, {"rate": 3e-2}, {"rows": 64}):
        assert by(run, Run(700, setting=SETTING._replace(**change))).deviation > 1.2 * known
    above, below = Run(700, offset=0.2), Run(700, offset=-0.2)
    assert by(run, above, below).deviation > 2 * known


def test_a_run_that_agrees_so_far_counts_more() -> None:
    run = Run(600)
    found = by(run, Run(700), Run(700, offset=0.5), share=0.5)
    assert abs(found.mean - run.end) < 0.1


def test_more_parameters_are_expected_to_have_a_lower_loss() -> None:
    higher, _ = SETTING.apart(SETTING._replace(parameters=2e5))
    lower, spread = SETTING.apart(SETTING._replace(parameters=5e4))
    assert higher == pytest.approx(-lower) and higher > 0
    assert spread > SETTING.apart(SETTING)[1]


@pytest.mark.parametrize("slope", [0.05, 0.2, 0.45])
def test_without_earlier_runs_the_interval_holds_usual_falls(slope: float) -> None:
    steps = np.arange(1.0, 801)
    path = Path(steps, np.full(800, 1e-3))
    losses = 5 * steps**-slope
    places = np.array([80.0, 160.0])
    shape = shape_of(places, losses[[79, 159]], path, 1e5, 8)
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
    assert shape_of(steps, losses, Path(steps, np.zeros(10)), 1e5, 8) is None
    assert shape_of(steps, 0 * losses, path, 1e5, 8) is None
    assert shape_of(steps, math.nan * losses, path, 1e5, 8) is None
    assert shape_of(steps, losses, path, math.nan, 8) is None and shape_of(steps, losses, path, 1e5, 0) is None
    losses[3] = math.inf
    found = shape_of(steps, losses, path, 1e5, 8)
    assert found is not None and len(found.places) == 9
    assert Normal.of(-1.0, 0.0, 1.0) is None and Normal.of(1.0, 1.0, 1.0) is None
