"""Devices that measured at the same time: none of them can do better than the worst."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoestring.core.errors import Fault
from shoestring.core.records import Cost, Machine, MemoryModel, Point, Profile
from shoestring.probe.agreement import agree

LAW = MemoryModel(
    fixed_bytes=100,
    row_bytes=10.0,
    limit_bytes=1000,
    margin_bytes=5,
    largest=89,
    verified=89,
    trials=4,
    out_of_memory=0,
    trial_seconds=2.0,
)
ONE = Profile(
    machine=Machine(device="cpu", device_name="", threads=1, memory_bytes=None, system="", python="", versions={}),
    workload="w",
    length=8,
    points=tuple(
        Point(batch=b, seconds=0.1 * b, slowest_seconds=0.2 * b, peak_bytes=100 + 10 * b, fastest_seconds=0.05 * b)
        for b in (1, 2, 4)
    ),
    setup_seconds=3.0,
    update_seconds=0.1,
    validate_seconds_per_row=0.01,
    checkpoint_seconds=0.5,
    checkpoint_bytes=10,
    available_bytes=1000,
    stopped="the whole",
    cost=Cost(parameters={"all": 1}, forward_flops_per_token=1.0),
    memory=LAW,
    compile_seconds=7.0,
    thorough=True,
)
TWO = replace(
    ONE,
    points=(
        Point(batch=1, seconds=0.3, slowest_seconds=0.1, peak_bytes=90, fastest_seconds=0.01),
        Point(batch=2, seconds=0.1, slowest_seconds=0.9, peak_bytes=190, fastest_seconds=0.2),
    ),
    setup_seconds=2.0,
    update_seconds=0.4,
    available_bytes=700,
    stopped="memory",
    memory=replace(
        LAW, fixed_bytes=150, row_bytes=9.0, limit_bytes=700, margin_bytes=4, largest=55, verified=60, out_of_memory=1
    ),
    compile_seconds=None,
)


@pytest.mark.parametrize("order", [(ONE, TWO), (TWO, ONE)])
def test_the_longest_times_the_least_memory_and_what_all_have_measured(order: tuple[Profile, ...]) -> None:
    both = agree(order)
    assert [point.batch for point in both.points] == [1, 2]
    first, second = both.points
    assert (first.seconds, first.slowest_seconds, first.fastest_seconds, first.peak_bytes) == (0.3, 0.2, 0.05, 110)
    assert (second.seconds, second.slowest_seconds, second.peak_bytes) == (0.2, 0.9, 190)
    assert (both.setup_seconds, both.update_seconds, both.available_bytes) == (3.0, 0.4, 700)
    assert both.stopped == "memory"
    assert both.compile_seconds is None, "one of them does not know"
    assert both.memory == MemoryModel(
        fixed_bytes=150,
        row_bytes=10.0,
        limit_bytes=700,
        margin_bytes=4,
        largest=55,
        verified=60,
        trials=4,
        out_of_memory=1,
        trial_seconds=2.0,
    )
    assert both.devices == 2


def test_one_without_a_law_leaves_none() -> None:
    assert agree([ONE, replace(ONE, memory=None)]).memory is None


def test_alone_nothing_changes() -> None:
    assert agree([ONE]) == ONE


def test_devices_that_share_no_batch_cannot_agree() -> None:
    with pytest.raises(Fault, match=r"no measured batch in common \(1, 2, 4; 8\)"):
        agree([ONE, replace(ONE, points=(replace(ONE.points[0], batch=8),))])


def test_a_batch_between_two_that_a_device_measured_is_known_to_it() -> None:
    """One device has room for 4 rows, and the other for 3 of them: neither measured what the other did."""
    points = {point.batch: point for point in ONE.points}
    wide = replace(ONE, points=(points[1], points[4]))
    narrow = replace(ONE, points=(points[1], replace(points[4], batch=3, seconds=0.9)))
    found = agree([wide, narrow])
    assert [point.batch for point in found.points] == [1, 3]
    assert found.points[1].seconds == 0.9
    assert found.points[1].peak_bytes == 140
