"""Whether kinds of runs differ: against scipy, and on simulated rows and seeds whose effect is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoestring.core.errors import UserError
from shoestring.studies.effect import MOST_SEEDS, Difference, Scored, difference
from shoestring.studies.paired import compare_paired

Losses = NDArray[np.float64]


def run(rows: Losses, predictions: int = 8, name: str | None = "same") -> Scored:
    """A run with these mean losses of its rows."""
    return Scored(
        loss=float(rows.mean()),
        nats=tuple((rows * predictions).tolist()),
        predictions=(predictions,) * len(rows),
        rows=name,
    )


def kinds(
    random: np.random.Generator, seeds: int, rows: int = 60, effect: float = 0.0, seed: float = 0.1, own: float = 0.0
) -> tuple[list[Scored], list[Scored]]:
    """Two kinds of runs: rows differ by far more than they do, seeds by `seed`, and rows like one kind by `own`."""
    easy, found = random.normal(3, 1, rows), []
    for mean in (0.0, effect):
        likes = random.normal(0, own, rows)
        found.append(
            [run(easy + mean + likes + random.normal(0, seed) + random.normal(0, 0.2, rows)) for _ in range(seeds)]
        )
    return found[0], found[1]


def known(first: list[Scored], second: list[Scored]) -> Difference:
    found = difference(first, second)
    assert found is not None
    return found


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(2, 300), st.floats(-1, 1))
def test_one_run_of_each_is_scipys_paired_t_test(seed: int, rows: int, effect: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(seed)
    easy = random.normal(3, 1, rows)
    first, second = easy + random.normal(0, 0.1, rows), easy + effect + random.normal(0, 0.1, rows)
    found, exact = known([run(first)], [run(second)]), stats.ttest_rel(second, first)
    low, high = exact.confidence_interval(0.95)
    assert found.effect == pytest.approx((low + high) / 2)
    assert found.half_width == pytest.approx((high - low) / 2, rel=0.01)
    if abs(exact.pvalue - 0.05) > 2e-3:
        assert found.different == (exact.pvalue < 0.05)


@pytest.mark.filterwarnings("ignore:Precision loss")  # of scipy, where all losses of one are equal
@settings(deadline=None)
@given(st.lists(st.floats(1, 5), min_size=2, max_size=40), st.lists(st.floats(1, 5), min_size=2, max_size=40))
def test_seeds_on_other_rows_are_scipys_welch(first: list[float], second: list[float]) -> None:
    stats = pytest.importorskip("scipy.stats")
    found = known([Scored(loss=loss) for loss in first], [Scored(loss=loss) for loss in second])
    assert found.rows is None
    if found.half_width < 1e-6:
        return
    low, high = stats.ttest_ind(second, first, equal_var=False).confidence_interval(0.95)
    assert found.half_width == pytest.approx((high - low) / 2, rel=0.05)
    assert found.effect == pytest.approx((high + low) / 2, abs=1e-9)


@pytest.mark.parametrize(("seeds", "own", "seed"), [(2, 0.0, 0.1), (3, 0.0, 0.0), (3, 0.3, 0.02), (5, 0.2, 0.1)])
def test_equal_kinds_differ_in_at_most_one_of_twenty(seeds: int, own: float, seed: float) -> None:
    random = np.random.default_rng(seeds)
    trials, margin = 400, 2 * np.sqrt(0.05 * 0.95 / 400)
    wrong = sum(known(*kinds(random, seeds, rows=40, seed=seed, own=own)).different for _ in range(trials))
    assert wrong / trials <= 0.05 + margin


@pytest.mark.parametrize(("seeds", "own"), [(3, 0.0), (4, 0.3)])
def test_the_interval_holds_the_effect(seeds: int, own: float) -> None:
    random, held = np.random.default_rng(1), 0
    for _ in range(300):
        found = known(*kinds(random, seeds, rows=40, effect=0.2, own=own))
        held += abs(found.effect - 0.2) <= found.half_width
    assert 0.92 <= held / 300 <= 0.995


def test_rows_that_are_shared_do_not_hide_a_difference() -> None:
    first, second = kinds(np.random.default_rng(0), 3, effect=0.1, seed=0.01)
    paired = known(first, second)
    assert paired.different and paired.rows == 60 and paired.half_width < 0.1  # rows alone vary by 1 / √60 = 0.13


def test_as_many_more_seeds_as_it_says_settle_four_of_five() -> None:
    random = np.random.default_rng(3)
    first, second = kinds(random, 3, effect=0.1, seed=0.1)
    found = Difference((3, 3), (3.0, 3.1), (0.01, 0.01), 60, 0.0)
    assert not found.different and found.more_seeds is not None
    settled = sum(known(*kinds(random, 3 + found.more_seeds, effect=0.1, seed=0.1)).different for _ in range(200))
    assert 0.7 <= settled / 200 <= 0.9
    assert "more seeds of each would settle it" in found.sentence(("a", "b"))
    assert known(first, second).counts == (3, 3)


def test_what_seeds_cannot_settle_is_said() -> None:
    of_rows = Difference((3, 3), (3.0, 3.01), (1e-4, 1e-4), 60, 0.01)
    assert of_rows.more_seeds is None and "evaluate.rows" in of_rows.sentence(("a", "b"))
    tiny = Difference((3, 3), (3.0, 3.00001), (0.01, 0.01), None, 0.0)
    assert tiny.more_seeds is None and f"{MOST_SEEDS:,} seeds" in tiny.sentence(("a", "b"))
    one = Difference((1, 3), (3.0, 4.0), None, 60, 1e-6)
    assert one.different and "another seed" in one.sentence(("a", "b"))


def test_rows_of_unequal_length_count_by_their_predictions() -> None:
    random = np.random.default_rng(0)
    counts = random.integers(1, 30, 200)
    nats = [counts * random.normal(2 + k, 0.3, 200) for k in range(2)]
    runs = [
        Scored(loss=float(x.sum() / counts.sum()), nats=tuple(x.tolist()), predictions=tuple(counts.tolist()), rows="r")
        for x in nats
    ]
    found = known([runs[0]], [runs[1]])
    drawn = random.integers(0, 200, (4000, 200))
    effects = (nats[1] - nats[0])[drawn].sum(1) / counts[drawn].sum(1)
    assert found.half_width / 1.972 == pytest.approx(effects.std(), rel=0.05)  # the bootstrap over rows


def test_one_run_of_each_on_other_rows_is_not_compared(tmp_path: Path) -> None:
    rows = np.ones(3)
    assert difference([run(rows)], [run(rows, name="other")]) is None
    assert difference([run(rows, name=None)], [run(rows, name=None)]) is None
    with pytest.raises(UserError, match="not a run folder"):
        compare_paired([tmp_path])
