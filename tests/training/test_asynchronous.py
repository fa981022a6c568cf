"""Which gradient may be applied when: against all orders of small cases, and workers of random speed."""

from __future__ import annotations

import heapq
import itertools
import random

import pytest

from shoestring.training.asynchronous import add_counts, counts, may_apply


def test_a_gradient_may_be_applied_if_some_order_of_the_others_is_in_time() -> None:
    for applied, most in itertools.product((3, 4), range(4)):
        for others in itertools.product(range(applied + 1), repeat=3):
            in_time = any(
                all(applied + 1 + place - version <= most for place, version in enumerate(order))
                for order in itertools.permutations(others)
            )
            assert may_apply(applied, others, most) == in_time
    assert may_apply(10**6, [0, 0], None)


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("more", [0, 1, 4])
def test_no_gradient_is_too_stale_and_nobody_waits_for_ever(workers: int, more: int) -> None:
    most, drawn = workers - 1 + more, random.Random(workers * 10 + more)
    speed = [drawn.choice([1.0, 1.0, 7.0]) for _ in range(workers)]
    version, found = 0, []
    read, arrived = dict.fromkeys(range(workers), 0), set()
    events = [(drawn.random() * speed[worker], worker) for worker in range(workers)]
    heapq.heapify(events)
    while len(found) < 500:
        now, worker = heapq.heappop(events)
        arrived.add(worker)
        while arrived:
            oldest = min(arrived, key=lambda each: read[each])
            if not may_apply(version, [read[each] for each in read if each != oldest], most):
                break
            found.append(version - read[oldest])
            version += 1
            arrived.remove(oldest)
            read[oldest] = version
            heapq.heappush(events, (now + drawn.random() * speed[oldest], oldest))
        assert events, "somebody works"
    assert max(found) <= most


def test_counts_are_by_staleness() -> None:
    assert counts({0: 3, 2: 1}) == (3, 0, 1)
    assert counts({}) == ()
    assert add_counts((3, 0, 1), (1,)) == (4, 0, 1)
