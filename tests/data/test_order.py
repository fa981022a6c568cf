"""The order of rows: a bijection that looks random, whatever the batch, the world and the place in the run."""

import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core.seeds import derive
from shoestring.data.pack.order import Pool, RowIndex, permute, step_rows

checked = settings(max_examples=50, deadline=None)
SEEDS = st.integers(0, 2**63 - 1)


def order(n: int, key: int) -> list[int]:
    return permute(np.arange(n), n, key).tolist()


def epochs_of(seed: int, n: int, epochs: int) -> list[list[int]]:
    """The order of each epoch, taken one row a step."""
    return [[int(step_rows(seed, n, e * n + i, 1).rows[0]) for i in range(n)] for e in range(epochs)]


def chi_square(counts: list[int], cells: int) -> float:
    """Deviations from the expected value of chi-square, in its standard deviations."""
    expected = sum(counts) / cells
    found = sum((c - expected) ** 2 for c in counts) / expected + (cells - len(counts)) * expected
    return (found - (cells - 1)) / (2 * (cells - 1)) ** 0.5


@pytest.mark.parametrize("key", [0, 1, 2**63 - 1])
def test_every_small_size_is_permuted(key: int) -> None:
    for n in range(1, 301):
        assert sorted(order(n, key)) == list(range(n)), n


@pytest.mark.parametrize("n", [2**16 - 1, 2**16, 2**16 + 1, 100_003, 2**18 + 1])
def test_large_sizes_are_permuted(n: int) -> None:
    assert (np.bincount(permute(np.arange(n), n, 7), minlength=n) == 1).all()


@pytest.mark.parametrize("n", [10**9, 2**40 + 1, 2**61])
def test_places_of_huge_sizes_go_to_distinct_rows(n: int) -> None:
    places = np.concatenate([np.arange(5_000), np.arange(n - 5_000, n)])
    rows = permute(places, n, 3)
    assert len(set(rows.tolist())) == len(places)
    assert rows.min() >= 0
    assert rows.max() < n


@checked
@given(st.integers(1, 200), SEEDS, st.data())
def test_a_place_goes_to_the_same_row_alone_or_among_others(n: int, key: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    whole = order(n, key)
    assert permute(np.array(places, dtype=np.int64), n, key).tolist() == [whole[place] for place in places]


def test_permute_leaves_its_argument_alone() -> None:
    places = np.arange(50)
    permute(places, 50, 1)
    assert places.tolist() == list(range(50))


def test_keys_give_other_orders() -> None:
    assert len({tuple(order(50, key)) for key in range(200)}) == 200


@pytest.mark.parametrize("n", [3, 5, 16, 24, 97])
def test_a_row_lands_everywhere_equally_often(n: int) -> None:
    places = np.array([0, n // 2, n - 1])
    keys = np.random.default_rng(0).integers(0, 2**63, size=max(600, 10 * n))
    landed = np.array([permute(places, n, int(key)) for key in keys])
    for column in landed.T:
        assert chi_square(list(Counter(column.tolist()).values()), n) < 6


def test_all_orders_of_four_rows_are_equally_likely() -> None:
    keys = np.random.default_rng(1).integers(0, 2**63, size=2_400)
    counts = Counter(tuple(order(4, int(key))) for key in keys)
    assert len(counts) == 24
    assert chi_square(list(counts.values()), 24) < 6


def test_neighbours_are_scattered() -> None:
    n = 10_000
    rows = np.array(order(n, 5))
    distance = np.abs(np.diff(rows)).mean()
    assert distance == pytest.approx(n / 3, rel=0.05), "the mean distance of two random rows is a third of all"
    assert abs(np.corrcoef(rows, np.arange(n))[0, 1]) < 0.05


@checked
@given(SEEDS, st.integers(1, 40), st.integers(1, 70))
def test_every_epoch_visits_each_row_once_also_where_a_batch_crosses_its_end(seed: int, n: int, batch: int) -> None:
    steps = -(-3 * n // batch)
    found = [step_rows(seed, n, step, batch) for step in range(steps)]
    rows, epochs = np.concatenate([index.rows for index in found]), np.concatenate([index.epochs for index in found])
    assert epochs.tolist() == [place // n for place in range(steps * batch)]
    for epoch in range(3):
        assert sorted(rows[epoch * n : (epoch + 1) * n].tolist()) == list(range(n))


@checked
@given(SEEDS, st.integers(1, 40), st.integers(1, 15), st.integers(1, 15))
def test_the_order_does_not_depend_on_the_batch(seed: int, n: int, one: int, other: int) -> None:
    total = one * other
    by_one = np.concatenate([step_rows(seed, n, step, one) for step in range(total // one)], axis=1)
    by_other = np.concatenate([step_rows(seed, n, step, other) for step in range(total // other)], axis=1)
    assert by_one.tolist() == by_other.tolist()


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [tuple(rows) for seed in range(5) for rows in epochs_of(seed, 30, 5)]
    assert len(set(orders)) == 25


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_smallest_sources_are_read_whole_each_epoch(n: int) -> None:
    assert all(sorted(rows) == list(range(n)) for rows in epochs_of(11, n, 6))
    assert step_rows(11, n, 0, 4 * n).rows.tolist() == [row for rows in epochs_of(11, n, 4) for row in rows]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 8, 12, 24])
def test_ranks_share_a_step_without_loss_or_overlap(world: int) -> None:
    for step in range(5):
        index = step_rows(3, 30, step, 24)  # some steps cross the end of an epoch
        parts = [index.share(rank, world) for rank in range(world)]
        assert {len(part.rows) for part in parts} == {24 // world}
        assert np.concatenate(parts, axis=1).tolist() == [index.epochs.tolist(), index.rows.tolist()]


def test_rows_by_number_are_those_of_the_first_epoch() -> None:
    index = RowIndex.first(np.array([4, 0, 4]))
    assert (index.epochs.tolist(), index.rows.tolist()) == ([0, 0, 0], [4, 0, 4])


def read_by(world: int, micro: int, seed: int, n: int, steps: range, batch: int) -> list[list[int]]:
    """The global batches of some steps, put together from what each rank reads, so many rows at a time."""
    found = []
    for step in steps:
        ranks = [step_rows(seed, n, step, batch).share(rank, world).rows for rank in range(world)]
        pieces = [[rows[at : at + micro] for at in range(0, len(rows), micro)] for rows in ranks]
        assert all(len(piece) <= micro for rank in pieces for piece in rank)
        found.append([int(row) for rank in pieces for piece in rank for row in piece])
    return found


@pytest.mark.parametrize("world", range(1, 9))
def test_three_epochs_are_the_same_for_any_world_and_micro_batch(world: int) -> None:
    batch = 840  # divides over 1 to 8 ranks
    n = 1_000
    steps = range(-(-3 * n // batch))
    expected = [step_rows(9, n, step, batch).rows.tolist() for step in steps]
    for micro in (5, batch // world):
        assert read_by(world, micro, 9, n, steps, batch) == expected
    rows = [row for step in expected for row in step]
    for epoch in range(3):
        assert sorted(rows[epoch * n : (epoch + 1) * n]) == list(range(n)), "no loss and no repeat"


@settings(max_examples=12, deadline=None)
@given(
    SEEDS,
    st.integers(10, 60),
    st.sampled_from([24, 48]),
    st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 6, 8]), st.integers(1, 24)), min_size=3, max_size=3),
    st.tuples(st.integers(0, 8), st.integers(0, 8)),
)
def test_a_run_that_was_resumed_twice_on_other_worlds_reads_the_same(
    seed: int, n: int, batch: int, worlds: list[tuple[int, int]], cuts: tuple[int, int]
) -> None:
    first, second = sorted(cuts)
    steps = max(-(-3 * n // batch), second + 1)
    segments = [range(first), range(first, second), range(second, steps)]
    found = []
    for (world, micro), segment in zip(worlds, segments):
        found += read_by(world, micro, seed, n, segment, batch)
    assert found == read_by(1, batch, seed, n, range(steps), batch)


@pytest.mark.parametrize(("batch", "world"), [(24, 5), (24, 48), (1, 2)])
def test_a_batch_that_does_not_divide_over_the_ranks_is_refused(batch: int, world: int) -> None:
    with pytest.raises(ValueError, match=f"{batch} rows do not divide over {world} ranks"):
        step_rows(0, 100, 0, batch).share(0, world)


@pytest.mark.parametrize("n", [10**8, 10**9 + 7, 10**12])
def test_any_place_of_a_long_run_is_reached_without_a_list_of_rows(n: int) -> None:
    step_rows(0, n, 0, 64)
    tracemalloc.start()
    try:
        last, later = step_rows(0, n, n // 64 - 1, 64).rows, step_rows(0, n, 10 * n // 64, 64).rows
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000
    for rows in (last, later):
        assert len(set(rows.tolist())) == 64
        assert rows.min() >= 0
        assert rows.max() < n


@checked
@given(seed=SEEDS, n=st.integers(1, 60), step=st.integers(0, 50), batch=st.integers(1, 40))
def test_rows_of_a_run_that_gets_no_more_are_permutations_of_each_epoch(
    seed: int, n: int, step: int, batch: int
) -> None:
    positions = range(step * batch, (step + 1) * batch)
    expected = [(p // n, int(permute(np.array([p % n]), n, derive(seed, "order", p // n))[0])) for p in positions]
    for rows in (n, [Pool(0, n)]):
        found = step_rows(seed, rows, step, batch)
        assert list(zip(found.epochs.tolist(), found.rows.tolist())) == expected


@st.composite
def growths(draw: st.DrawFn) -> list[Pool]:
    pools = [Pool(0, draw(st.integers(1, 30)))]
    for _ in range(draw(st.integers(0, 4))):
        last = pools[-1]
        pools.append(Pool(last.position + draw(st.integers(0, 80)), last.rows + draw(st.integers(1, 40))))
    return pools


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, pools=growths(), batch=st.integers(20, 60))
def test_a_run_that_gets_rows_reads_what_is_fresh_before_it_repeats(seed: int, pools: list[Pool], batch: int) -> None:
    """Counted row by row: from each pool on, fresh rows come first, then all, each equally often."""
    end = pools[-1].position + 3 * pools[-1].rows
    steps = [step_rows(seed, pools, step, batch) for step in range(-(-end // batch))]
    epochs, rows = (np.concatenate(part)[:end].tolist() for part in zip(*steps, strict=True))
    assert len(set(zip(epochs, rows))) == end, "a row is hidden or shifted in another way each time"
    assert epochs == sorted(epochs)
    read: set[int] = set()
    for pool, until in zip(pools, [*(pool.position for pool in pools[1:]), end], strict=True):
        there = rows[pool.position : until]
        fresh = set(range(pool.rows)) - read
        first, later = there[: len(fresh)], there[len(fresh) :]
        assert len(set(first)) == len(first) and set(first) <= fresh
        for at in range(0, len(later), pool.rows):
            some = later[at : at + pool.rows]
            assert len(set(some)) == len(some) and max(some) < pool.rows
        read |= set(there)
    assert read == set(range(pools[-1].rows))


@checked
@given(seed=SEEDS, pools=growths())
def test_rows_that_were_read_do_not_change_when_there_are_more(seed: int, pools: list[Pool]) -> None:
    position = pools[-1].position + 7
    more = [*pools, Pool(position, pools[-1].rows + 5)]
    before, after = (step_rows(seed, some, 0, position) for some in (pools, more))
    assert [part.tolist() for part in before] == [part.tolist() for part in after]


def test_old_and_new_rows_are_mixed() -> None:
    """1,000 old rows of which 500 were read, and 1,500 new ones: three quarters of the next ones are new."""
    found = step_rows(0, [Pool(0, 1_000), Pool(500, 2_500)], 1, 500).rows
    assert abs((found >= 1_000).mean() - 0.75) < 0.08  # four standard deviations
