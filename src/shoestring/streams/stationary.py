"""The stationary distribution of a chain, the same to the last bit on every machine."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import DataError


def stationary(transition: NDArray[np.float64]) -> NDArray[np.float64]:
    """p with p = p A, by Grassmann, Taksar and Heyman's elimination: it never subtracts, so no digit is lost.

    Sums are exactly rounded and products are computed one by one, so that no library can order them differently.
    Transient states have probability 0. A chain with several closed classes has no single p, and raises DataError.
    """
    recurrent = _recurrent(transition > 0)
    p = np.zeros(len(transition))
    p[recurrent] = _irreducible(transition[np.ix_(recurrent, recurrent)])
    return p


def _irreducible(transition: NDArray[np.float64]) -> NDArray[np.float64]:
    a = transition.copy()
    for n in range(len(a) - 1, 0, -1):  # the chain watched only in states 0 to n - 1
        a[:n, n] /= math.fsum(a[n, :n].tolist())
        a[:n, :n] += a[:n, n, None] * a[n, None, :n]
    p = np.ones(len(a))
    for n in range(1, len(a)):
        p[n] = math.fsum((p[:n] * a[:n, n]).tolist())
    return p / math.fsum(p.tolist())


def _recurrent(moves: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The states of the only closed class of the chain."""
    reached = moves | np.eye(len(moves), dtype=bool)
    while True:
        further = (reached.astype(np.float32) @ reached.astype(np.float32)) > 0
        if (further == reached).all():
            break
        reached = further
    recurrent = np.flatnonzero((reached <= reached.T).all(axis=1))  # all states that s leads to lead back to s
    classes = {tuple(np.flatnonzero(reached[s])) for s in recurrent}
    if len(classes) > 1:
        raise DataError(
            f"the chain ends in one of {len(classes)} classes that it cannot leave, so it has no single stationary "
            f"distribution; start it from the model's start"
        )
    return np.array(next(iter(classes)), dtype=np.int64)
