"""The virtual clock against small cases that were played by hand, and against a clock that ticks."""

from __future__ import annotations

import random

import pytest

from shoestring.core.errors import UserError
from shoestring.core.parallel import Parallel
from shoestring.planning.simulate import Cluster, Work, difference_bytes, play, table

TWO = Cluster(workers=2, slow=0.5, factor=3.0)
WORK = Work(steps=2, share_seconds=1.0, update_seconds=0.0, weight_bytes=4)


def test_sync_and_local_wait_for_the_slow_worker() -> None:
    assert play("sync", WORK, TWO, Parallel()).seconds == 6.0
    assert play("local", WORK, TWO, Parallel(strategy="local", sync_every=2)).seconds == 6.0


def test_sending_takes_its_time() -> None:
    slow = TWO._replace(bandwidth=8.0)  # four bytes take 4 s, and so does their sum over two workers
    sync, local = (play(name, WORK, slow, Parallel(sync_every=2)) for name in ("sync", "local"))
    assert (sync.seconds, sync.sent_bytes) == (6 + 2 * 4, 2 * 4)
    assert (local.seconds, local.sent_bytes) == (6 + 4, 4)
    quantised = play("local", WORK, slow, Parallel(strategy="local", sync_every=2, difference_bits=8))
    assert quantised.sent_bytes == difference_bytes(1, 8) == 1 + 4 / 256


def test_async_by_hand() -> None:
    # fast: 0–1 (stale 0), 1–2 (stale 0), 2–3; slow: 0–3, applied first as its weights are older (stale 2, then 1)
    found = play("async", WORK, TWO, Parallel())
    assert (found.seconds, found.staleness_mean, found.staleness_max) == (3.0, 3 / 4, 2)


def test_async_with_a_bound_by_hand() -> None:
    # fast: 0–1 (stale 0), 1–2, then held until 3; slow: 0–3 (stale 1), then the fast one (stale 1); slow: 3–6 (stale 1)
    found = play("async", WORK, TWO, Parallel(strategy="async", max_staleness=1))
    assert (found.seconds, found.staleness_mean, found.staleness_max) == (6.0, 3 / 4, 1)


def test_gradients_are_applied_one_after_the_other() -> None:
    busy = WORK._replace(update_seconds=10.0)
    # both arrive at 1; applied at 11 and 21; their second ones arrive at 12 and 22, and are applied at 31 and 41
    assert play("async", busy, Cluster(workers=2), Parallel()).seconds == 41.0


def ticked(work: Work, cluster: Cluster, most: int | None) -> tuple[float, int, int]:
    """The same with a clock that ticks in whole seconds: seconds, sum of staleness, largest."""
    shares, todo, applied = work.steps * cluster.workers, work.steps * cluster.workers, 0
    left: dict[int, float] = {}
    read: dict[int, int] = {}
    arrived: dict[int, int] = {}
    serving: tuple[int, int] | None = None
    now = total = worst = 0
    for worker in range(cluster.workers):
        if todo:
            todo, left[worker], read[worker] = todo - 1, cluster.factors[worker] * work.share_seconds, 0
    while True:
        while True:
            if serving is not None and serving[1] == now:
                worker, serving = serving[0], None
                applied += 1
                del read[worker]
                if applied == shares:
                    return float(now), total, worst
                if todo:
                    todo, left[worker], read[worker] = todo - 1, cluster.factors[worker] * work.share_seconds, applied
            if serving is None and arrived:
                worker = min(arrived, key=lambda each: (read[each], arrived[each], each))
                others = sorted(read[each] for each in read if each != worker)
                if most is None or all(applied + 1 + i - v <= most for i, v in enumerate(others)):
                    del arrived[worker]
                    total, worst = total + applied - read[worker], max(worst, applied - read[worker])
                    serving = worker, now + int(work.update_seconds)
                    continue
            break
        now += 1
        for worker in list(left):
            left[worker] -= 1
            if left[worker] == 0:
                del left[worker]
                arrived[worker] = now


@pytest.mark.parametrize("seed", range(30))
def test_a_clock_that_ticks_agrees(seed: int) -> None:
    drawn = random.Random(seed)
    cluster = Cluster(drawn.randint(1, 5), drawn.choice([0.0, 0.3, 0.6]), drawn.choice([2.0, 3.0]))
    work = Work(drawn.randint(1, 6), drawn.randint(2, 9), drawn.randint(1, 3), 4)
    most = drawn.choice([None, cluster.workers - 1, cluster.workers + 1])
    found = play("async", work, cluster, Parallel(strategy="async", max_staleness=most))
    seconds, total, worst = ticked(work, cluster, most)
    assert (found.seconds, found.staleness_max) == (seconds, worst)
    assert found.staleness_mean == pytest.approx(total / (work.steps * cluster.workers))


def test_a_cluster_is_read() -> None:
    assert Cluster.parse("workers=64,slow=0.1:3x,bandwidth=1Gb") == Cluster(64, 0.1, 3.0, 1e9)
    assert Cluster.parse("workers=4,step=200ms") == Cluster(4, step=0.2)
    assert sum(factor == 3.0 for factor in Cluster.parse("workers=64,slow=0.1:3x").factors) == 7
    for wrong in (
        "",
        "workers=0",
        "workers=2,slow=3x",
        "workers=2,slow=2:3x",
        "workers=2,slow=0.5:0x",
        "workers=2,bandwidth=fast",
        "workers=2,step=soon",
        "workers=2,step=0s",
        "w=2",
    ):
        with pytest.raises(UserError, match="--simulate"):
            Cluster.parse(wrong)


def test_the_table_says_why() -> None:
    rows = table(Work(100, 1.0, 0.0, 4), TWO._replace(bandwidth=32.0), Parallel(), alone=200.0)
    assert [row.strategy for _, row in rows] == ["sync", "local", "async"]
    assert rows[0][1].why == "waiting for slow workers 50%, sending 25%"
    assert rows[0][1].speed_up == "0.50×"
