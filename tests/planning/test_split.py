"""The split of the effective batch: always a product of whole numbers, and the fastest that fits."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoestring.core.errors import PlanError
from shoestring.core.records import Cost, Machine, Point, Profile
from shoestring.planning.split import choose_split


def point(batch: int, seconds: float, peak: int | None = None) -> Point:
    return Point(batch=batch, seconds=seconds, slowest_seconds=seconds * 1.1, peak_bytes=peak)


def profile(*points: Point, update: float = 0.01, available: int | None = None) -> Profile:
    machine = Machine(
        device="cpu", device_name="x", threads=2, memory_bytes=None, system="x", python="3.11", versions={}
    )
    return Profile(
        machine=machine,
        workload="w",
        length=128,
        points=points,
        setup_seconds=1.0,
        update_seconds=update,
        validate_seconds_per_row=0.001,
        checkpoint_seconds=0.1,
        checkpoint_bytes=1000,
        available_bytes=available,
        stopped="",
        cost=Cost(parameters={"all": 1000}, forward_flops_per_token=1e4),
    )


def test_the_fastest_row_wins() -> None:
    split = choose_split(profile(point(1, 1.0), point(2, 1.2), point(4, 3.0)), 8, None, None)
    assert (split.per_device, split.accumulate, split.devices) == (2, 4, 1)
    assert split.step_seconds == pytest.approx(4 * 1.2 + 0.01)


def test_a_smaller_batch_that_is_nearly_as_fast_is_taken() -> None:
    """Two percent are not worth twice the memory."""
    assert choose_split(profile(point(4, 4.0), point(8, 7.9)), 8, None, None).per_device == 4
    assert choose_split(profile(point(4, 4.0), point(8, 7.8)), 8, None, None).per_device == 8


def test_the_order_of_the_measurements_does_not_matter() -> None:
    points = [point(4, 4.0), point(8, 7.99), point(2, 3.0)]
    assert choose_split(profile(*points), 8, None, None)[:5] == choose_split(profile(*points[::-1]), 8, None, None)[:5]


def test_a_batch_that_does_not_divide_the_rows_is_never_taken() -> None:
    assert choose_split(profile(point(1, 1.0), point(5, 0.1)), 8, None, None).per_device == 1


def test_the_given_batch_is_taken_even_if_it_is_slow() -> None:
    split = choose_split(profile(point(1, 1.0), point(2, 0.1), point(4, 0.1)), 8, 1, None)
    assert (split.per_device, split.accumulate) == (1, 8)
    assert split.reason == "train.per_device: 1s per row"


@pytest.mark.parametrize(("batch", "given"), [(7, None), (8, 4)])
def test_where_no_measured_batch_serves_one_is_computed_from_those_measured(batch: int, given: int | None) -> None:
    split = choose_split(profile(point(2, 1.0), point(3, 1.0)), batch, given, None)
    assert split.per_device == (given or batch)
    assert "extrapolated from measured batches of 2, 3 rows" in split.reason


def test_a_given_batch_that_does_not_divide_the_rows_of_a_device_is_an_error_with_those_that_do() -> None:
    with pytest.raises(PlanError, match=r"train.per_device = 8: does not divide the 4 rows .* one of 1, 2, 4$"):
        choose_split(profile(point(4, 0.1), point(8, 0.1)), 8, 8, None, devices=2)


def test_an_estimate_without_a_faster_batch_takes_the_largest_that_fits() -> None:
    counted = replace(profile(*(point(rows, 0.1 * rows, 100 * rows) for rows in (1, 2, 4, 8))), estimated=True)
    assert choose_split(counted, 8, None, None).per_device == 8
    assert choose_split(counted, 8, None, None).reason == "the largest that fits, by counting: 100ms per row"
    assert choose_split(counted, 8, None, 500).per_device == 4
    assert choose_split(counted, 8, None, None, devices=4).per_device == 2
    scaled = replace(profile(point(4, 4.0), point(8, 7.9)), estimated=True)
    assert choose_split(scaled, 8, None, None).per_device == 4


def test_devices_share_the_batch_evenly() -> None:
    split = choose_split(profile(point(1, 1.0), point(4, 1.0)), 16, None, None, devices=2)
    assert (split.per_device, split.accumulate, split.devices) == (4, 2, 2)
    with pytest.raises(PlanError, match="15 rows does not divide over 2 devices"):
        choose_split(profile(point(1, 1.0)), 15, None, None, devices=2)


def test_the_memory_that_is_given_is_the_limit_to_the_byte() -> None:
    measured = profile(point(1, 1.0, 100), point(2, 1.0, 200), point(4, 1.0, 400), available=10**9)
    assert choose_split(measured, 4, None, 400).per_device == 4
    assert choose_split(measured, 4, None, 399).per_device == 2
    assert choose_split(measured, 4, None, 199).per_device == 1
    assert choose_split(measured, 4, None, 399).peak_bytes == 200


def test_without_a_given_limit_some_of_the_free_memory_is_left_alone() -> None:
    points = (point(1, 1.0, 100), point(2, 1.0, 950))
    assert choose_split(profile(*points, available=1000), 2, None, None).per_device == 1
    assert choose_split(profile(*points, available=2000), 2, None, None).per_device == 2
    assert choose_split(profile(*points, available=None), 2, None, None).per_device == 2


def test_a_peak_nobody_measured_is_taken_to_fit() -> None:
    assert choose_split(profile(point(1, 1.0), point(2, 1.0)), 2, None, 1).per_device == 2


@pytest.mark.parametrize("order", [1, -1])
def test_nothing_that_fits_the_memory_is_an_error_with_the_least_that_does(order: int) -> None:
    points = (point(1, 1.0, 2 * 10**9), point(2, 1.0, 3 * 10**9))[::order]
    with pytest.raises(PlanError, match=r"nothing fits the memory: a micro-batch of 1 needs 2 GB.*1 GB.*budget.memory"):
        choose_split(profile(*points), 2, None, 10**9)


batches = st.integers(1, 240)
measured = st.dictionaries(st.integers(1, 24), st.tuples(st.floats(1e-4, 1e3), st.none() | st.integers(1, 1000)))


@settings(deadline=None, max_examples=200)
@given(
    batch=batches,
    points=measured,
    update=st.floats(0, 10),
    given_batch=st.none() | st.integers(1, 24),
    memory=st.none() | st.integers(1, 1000),
    available=st.none() | st.integers(1, 1000),
    devices=st.integers(1, 3),
)
def test_the_split_is_what_trying_every_divisor_finds(
    batch: int,
    points: dict[int, tuple[float, int | None]],
    update: float,
    given_batch: int | None,
    memory: int | None,
    available: int | None,
    devices: int,
) -> None:
    limit = Fraction(memory) if memory is not None else None if available is None else Fraction(92 * available, 100)
    passes: dict[int, Fraction] = {}
    if batch % devices == 0:
        dividing = [rows for rows in points if batch // devices % rows == 0]
        assume(given_batch in dividing if given_batch and batch // devices % given_batch == 0 else dividing)
        for rows in range(1, batch // devices + 1):
            if (batch // devices) % rows or rows not in points or given_batch not in (None, rows):
                continue
            seconds, peak = points[rows]
            if limit is None or peak is None or peak <= limit:
                passes[rows] = Fraction(seconds) * (batch // devices // rows)
    near = {rows: total / min(passes.values()) for rows, total in passes.items()}
    assume(all(abs(ratio - Fraction(102, 100)) > Fraction(1, 10**9) for ratio in near.values()))
    made = profile(*(point(rows, *values) for rows, values in points.items()), update=update, available=available)
    if not passes:
        with pytest.raises(PlanError):
            choose_split(made, batch, given_batch, memory, devices)
        return
    best = min(rows for rows, ratio in near.items() if ratio <= Fraction(102, 100))
    split = choose_split(made, batch, given_batch, memory, devices)
    assert split.per_device == best
    assert split.per_device * split.accumulate * split.devices == batch
    assert split.step_seconds == pytest.approx(float(passes[best]) + update)
    assert split.peak_bytes == points[best][1]
