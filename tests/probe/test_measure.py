"""Measuring a workload whose bytes and seconds are known."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest

from shoestring.core.facts import Point
from shoestring.probe.child import listen
from shoestring.probe.measure import candidate_batches, measure, predicted_bytes


class Made:
    """A workload that sleeps and claims memory as it is told."""

    def __init__(self, seconds: Callable[[int], float], most: int = 10**9):
        self._seconds, self._most, self.tried = seconds, most, set()
        self._peak = 0

    def accumulate(self, batch: int) -> None:
        self.tried.add(batch)
        if batch > self._most:
            raise MemoryError
        self._peak = 1000 + 100 * batch
        time.sleep(self._seconds(batch))

    def update(self) -> None: ...

    def validate(self, batch: int) -> None: ...

    def checkpoint(self) -> int:
        return 77

    def reset_peak(self) -> None: ...

    def peak_bytes(self) -> int:
        return self._peak


def _found(
    work: Made, batches: list[int], limit: int | None = None, seconds: float = 1.0
) -> tuple[list[Point], str, dict]:
    points, rest = [], {}
    for finding in measure(work, batches, limit, seconds):
        if "point" in finding:
            points.append(finding["point"])
        rest |= finding
    return points, rest["stopped"], rest


def test_every_batch_is_measured_up_to_the_effective_one() -> None:
    points, stopped, rest = _found(Made(lambda _: 0.002), [1, 2, 4])
    assert [point.batch for point in points] == [1, 2, 4]
    assert [point.peak_bytes for point in points] == [1100, 1200, 1400]
    assert "effective batch" in stopped
    assert rest["checkpoint_bytes"] == 77


def test_a_batch_that_would_not_fit_is_never_tried() -> None:
    work = Made(lambda _: 0.001)
    _, stopped, _ = _found(work, [1, 2, 4, 8, 16], limit=2000)
    assert 8 in work.tried  # 1,800 of 2,000 bytes
    assert 16 not in work.tried
    assert "would need 2.6 kB of 2 kB" in stopped


def test_running_out_of_memory_ends_the_search_and_keeps_what_was_found() -> None:
    points, stopped, rest = _found(Made(lambda _: 0.001, most=3), [1, 2, 4, 8])
    assert [point.batch for point in points] == [1, 2]
    assert stopped == "batch 4 ran out of memory"
    assert "update_seconds" in rest


def test_a_batch_that_is_slower_by_the_row_ends_the_search() -> None:
    points, stopped, _ = _found(Made(lambda batch: 0.004 if batch < 4 else 0.06), [1, 2, 4, 8])
    assert [point.batch for point in points] == [1, 2, 4]
    assert "longer at batch 4" in stopped


def test_a_pass_that_is_longer_than_measuring_may_take_is_not_tried() -> None:
    work = Made(lambda batch: 0.01 * batch)
    _, stopped, _ = _found(work, [1, 2, 4, 64], seconds=0.1)
    assert 64 not in work.tried
    assert "batch 64 would take" in stopped


@pytest.mark.parametrize(("batch", "expected"), [(1, [1]), (16, [1, 2, 4, 8, 16]), (12, [1, 2, 4, 6, 12]), (7, [1, 7])])
def test_candidates_divide_the_effective_batch(batch: int, expected: list[int]) -> None:
    assert candidate_batches(batch) == expected


def test_the_peak_is_predicted_by_the_line_through_the_last_two() -> None:
    points = [Point(batch=b, seconds=1.0, slowest_seconds=1.0, peak_bytes=50 + 10 * b) for b in (1, 2, 4)]
    assert predicted_bytes(points, 100) == 1050
    assert predicted_bytes(points[:1], 100) is None


def test_a_child_that_dies_leaves_what_it_told() -> None:
    code = "from shoestring.probe.child import tell; import os; tell({'a': 1}); os.kill(os.getpid(), 9)"
    findings, trouble = listen([sys.executable, "-c", code], 60)
    assert findings == [{"a": 1}]
    assert trouble is not None
    assert "signal 9" in trouble
