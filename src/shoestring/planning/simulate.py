"""A virtual clock that plays the strategies of `[parallel]` on workers that are not here.

All workers compute alike, but for slow ones, which always take longer by a factor. An all-reduce of B bytes over n
workers takes 2 (n − 1) / n · B / bandwidth (a ring), and nobody computes meanwhile. Without a bandwidth it takes what
was measured, for as many workers, or nothing.

- sync: every step waits for the slowest worker, then sums the gradients.
- local: the same, but once in `sync_every` steps. All workers take as many steps, so a worker that is always slow holds
  the others up at every average; only chance evens out.
- async: a worker takes the next share as soon as its gradient is applied. One place applies gradients, one after the
  other; it receives each, and sends the weights back.
"""

from __future__ import annotations

import heapq
import math
import re
from typing import NamedTuple

from shoestring.core.environment import parse_slow
from shoestring.core.errors import UserError
from shoestring.core.parallel import Parallel, Strategy
from shoestring.core.units import Bytes, Seconds

MOST_WORKERS, MOST_SHARES = 100_000, 5_000_000
_BLOCK = 256
"""Numbers that share a scale of 4 bytes, as in `parallel.quantised`."""
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?)(k|M|G|T)?b(?:/s|ps)?")
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class Cluster(NamedTuple):
    """Workers, and what connects them."""

    workers: int
    slow: float = 0.0
    """Share of the workers that are slow; at least one if it is not 0."""
    factor: float = 1.0
    """By which those take longer."""
    bandwidth: float | None = None
    """Bits per second of each worker; None: nothing is lost to communication."""
    step: float | None = None
    """Seconds of the passes over all rows of a step; None: as measured."""

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """From "workers=64,slow=0.1:3x,bandwidth=1Gb"; raises UserError with what is wrong."""
        given = dict(part.partition("=")[::2] for part in text.split(",") if part)
        if unknown := [name for name in given if name not in ("workers", "slow", "bandwidth", "step")]:
            raise UserError(f"--simulate {text}: unknown {unknown[0]!r}; give workers, slow, bandwidth or step")
        workers = given.get("workers", "")
        if not (workers.isascii() and workers.isdecimal() and len(workers) < 9 and 1 <= int(workers) <= MOST_WORKERS):
            raise UserError(f"--simulate {text}: workers must be a whole number from 1 to {MOST_WORKERS:,}")
        share, factor = 0.0, 1.0
        if "slow" in given:
            share, factor = parse_slow(given["slow"], f"--simulate {text}: slow")
            if share > 1:
                raise UserError(f"--simulate {text}: slow has a share of the workers, at most 1, before the colon")
        bandwidth = _BANDWIDTH.fullmatch(given.get("bandwidth", "1b"))
        if bandwidth is None or float(bandwidth[1]) <= 0:
            raise UserError(f"--simulate {text}: bandwidth must be bits per second, such as 1Gb or 100Mb")
        bits = float(bandwidth[1]) * _FACTORS[bandwidth[2] or ""] if "bandwidth" in given else None
        return cls(int(workers), share, factor, bits, _step_of(given.get("step"), text))

    @property
    def factors(self) -> list[float]:
        """Of each worker."""
        slow = min(self.workers, math.ceil(self.slow * self.workers))
        return [self.factor] * slow + [1.0] * (self.workers - slow)

    def transfer(self, size: float) -> float:
        """Seconds to send so many bytes."""
        return 0.0 if self.bandwidth is None else 8 * size / self.bandwidth

    def all_reduce(self, size: float) -> float:
        """Seconds of a sum over all workers."""
        return 2 * (self.workers - 1) / self.workers * self.transfer(size)


def _step_of(given: str | None, text: str) -> float | None:
    try:
        step = None if given is None else float(Seconds.parse(given))
    except ValueError as cause:
        raise UserError(f"--simulate {text}: step: {cause}") from cause
    if step is not None and step <= 0:
        raise UserError(f"--simulate {text}: step must be a time above 0, such as 200ms")
    return step


class Work(NamedTuple):
    """A run, as its workers see it."""

    steps: int
    share_seconds: float
    """Of the passes over one worker's rows of a step."""
    update_seconds: float
    weight_bytes: int
    sum_seconds: float | None = None
    """Of a sum of all gradients over the workers, as measured; for a cluster without a bandwidth."""


class Played(NamedTuple):
    """What a strategy came to."""

    strategy: Strategy
    seconds: float
    sent_bytes: float
    """That each worker sent."""
    staleness_mean: float | None = None
    staleness_max: int | None = None


def difference_bytes(weights: int, bits: int) -> float:
    """Bytes of the differences of so many weights, with their scales."""
    return weights * 4 if bits == 32 else weights * (bits / 8 + 4 / _BLOCK)


def play(strategy: Strategy, work: Work, cluster: Cluster, parallel: Parallel) -> Played:
    """The whole run with a strategy."""
    if strategy == "async":
        return _play_async(work, cluster, parallel.max_staleness)
    ring, step = 2 * (cluster.workers - 1) / cluster.workers, work.share_seconds + work.update_seconds
    compute = work.steps * step * max(cluster.factors)
    count, size = work.steps, float(work.weight_bytes)
    if strategy == "local":
        count = math.ceil(work.steps / parallel.every)
        size = difference_bytes(work.weight_bytes // 4, parallel.difference_bits or 32)
    if cluster.bandwidth is None and work.sum_seconds is not None:
        sending = work.sum_seconds * size / work.weight_bytes
    else:
        sending = cluster.all_reduce(size)
    return Played(strategy, compute + count * sending, ring * count * size)


def _play_async(work: Work, cluster: Cluster, most: int | None) -> Played:
    """Gradients as they arrive: the time when each is done, and the updates that came between."""
    shares = work.steps * cluster.workers
    if shares > MOST_SHARES:
        raise UserError(f"--simulate: {shares:,} gradients are too many to play; take fewer workers or steps")
    service = work.update_seconds + 2 * cluster.transfer(work.weight_bytes)
    seconds = [factor * work.share_seconds for factor in cluster.factors]
    arrivals = [(each, worker) for worker, each in enumerate(seconds[:shares])]
    heapq.heapify(arrivals)
    read = dict.fromkeys(range(len(arrivals)), 0)
    queue: list[tuple[int, float, int]] = []  # the oldest weights first
    begun, applied, free, stale, worst = len(arrivals), 0, 0.0, 0, 0
    while applied < shares:
        blocked = bool(queue) and not _in_time(applied, read, queue[0][2], most)
        while arrivals and (not queue or blocked or arrivals[0][0] <= free):
            arrived, worker = heapq.heappop(arrivals)
            heapq.heappush(queue, (read[worker], arrived, worker))
            if blocked:
                free, blocked = max(free, arrived), False
        if not _in_time(applied, read, queue[0][2], most):
            continue
        version, arrived, worker = heapq.heappop(queue)
        free = max(free, arrived) + service
        stale, worst = stale + applied - version, max(worst, applied - version)
        applied += 1
        del read[worker]
        if begun < shares:
            begun, read[worker] = begun + 1, applied
            heapq.heappush(arrivals, (free + seconds[worker], worker))
    sent = work.steps * work.weight_bytes if cluster.bandwidth is not None else 0
    return Played("async", free, sent, stale / shares, worst)


def _in_time(applied: int, read: dict[int, int], worker: int, most: int | None) -> bool:
    """Whether all others can still be applied with at most `most` updates between, in the order of what they read."""
    if most is None:
        return True
    others = sorted(version for each, version in read.items() if each != worker)
    return all(applied + 1 + place - version <= most for place, version in enumerate(others))


class Row(NamedTuple):
    """A line of the table."""

    strategy: str
    seconds: str
    speed_up: str
    sent: str
    why: str


def table(work: Work, cluster: Cluster, parallel: Parallel, alone: float) -> list[tuple[Played, Row]]:
    """All strategies, beside the seconds of one worker `alone` that takes all rows."""
    found = []
    for strategy in ("sync", "local", "async"):
        played = play(strategy, work, cluster, parallel)
        why = _why(played, work, cluster)
        sent = Bytes(round(played.sent_bytes)).short()
        speed_up = f"{alone / played.seconds:.2f}×"
        found.append((played, Row(strategy, Seconds(played.seconds).short(), speed_up, sent, why)))
    return found


def _why(played: Played, work: Work, cluster: Cluster) -> str:
    if played.strategy == "async":
        mean, most = played.staleness_mean or 0.0, played.staleness_max
        applying = work.update_seconds + 2 * cluster.transfer(work.weight_bytes)
        return (
            f"gradients are stale by {mean:.1f} updates, at most {most}; each is applied in {Seconds(applying).short()}"
        )
    step = work.share_seconds + work.update_seconds
    compute, best = work.steps * step * max(cluster.factors), work.steps * step
    shares = {"waiting for slow workers": compute - best, "sending": played.seconds - compute}
    lost = [f"{name} {seconds / played.seconds:.0%}" for name, seconds in shares.items() if seconds > 0]
    return ", ".join(lost) or "nothing is lost"
