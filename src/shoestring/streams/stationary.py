"""The stationary distribution of a chain, the same to the last bit on every machine."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import DataError


def stationary(transition: NDArray[np.float64]) -> NDArray[np.float64]:
    """p with p = p A, by Grassmann, Taksar and Heyman's elimination: it never subtracts, so every digit is right.

    Sums are exactly rounded and products are taken one by one, so nothing depends on how a library orders them. States
    that the chain leaves for ever have probability 0; a chain that can end in different parts has no single p.
    """
    recurrent = _recurrent(transition > 0)
    p = np.zeros(len(transition))
    p[recurrent] = _irreducible(transition[np.ix_(recurrent, recurrent)])
    return p


def _irreducible(transition: NDArray[np.float64]) -> NDArray[np.float64]:
    a = transition.copy()
    for n in range(len(a) - 1, 0, -1):  # the chain as seen in states 0 to n - 1 alone
        a[:n, n] /= math.fsum(a[n, :n].tolist())
        a[:n, :n] += a[:n, n, None] * a[n, None, :n]
    p = np.ones(len(a))
    for n in range(1, len(a)):
        p[n] = math.fsum((p[:n] * a[:n, n]).tolist())
    return p / math.fsum(p.tolist())


def _recurrent(moves: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The states of the one part that the chain ends in."""
    reached = moves | np.eye(len(moves), dtype=bool)
    while True:
        further = (reached.astype(np.float32) @ reached.astype(np.float32)) > 0
        if (further == reached).all():
            break
        reached = further
    stays = np.array(
        [bool(reached[:, s][reached[s]].all()) for s in range(len(moves))]
    )  # whatever s leads to leads back
    parts = {tuple(np.flatnonzero(reached[s])) for s in np.flatnonzero(stays)}
    if len(parts) > 1:
        raise DataError(
            f"the chain ends in one of {len(parts)} parts that it cannot leave, so it has no stationary distribution "
            f"of its own; start it from the model's start"
        )
    return np.array(next(iter(parts)), dtype=np.int64)
