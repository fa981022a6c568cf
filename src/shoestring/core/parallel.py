"""The section `[parallel]` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from shoestring.core.schema import Between
from shoestring.core.specs import MOST_STEPS

Strategy = Literal["sync", "local", "async"]
SYNC_EVERY, OUTER_LR, OUTER_MOMENTUM = 100, 1.0, 0.0
"""Of local steps, where the recipe names none: the plain mean. DiLoCo's 0.7 and 0.9 ended higher where a run has
tens of averages (docs/how-to/strategies.md)."""
MOST_APART = 4
"""Averages that are spaced by the learning rate are at most so many times `sync_every` apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallel:
    """The work of several workers; without this section each has a copy of the model, and all take every step."""

    shard: Annotated[bool, "divide weights, gradients and optimizer state over the devices (FSDP)"] = False
    workers: Annotated[
        int | None,
        Between(1, 1024),
        "processes that share the work on this machine; default: 1. Under torchrun: as many as it started",
    ] = None
    strategy: Annotated[
        Strategy | None,
        "how workers share what they learn: sync, in every step (default); local, each takes steps of its own and they "
        "average now and then (local SGD, DiLoCo); async, each applies its gradients to shared weights without waiting",
    ] = None
    sync_every: Annotated[
        int | None, Between(1, MOST_STEPS), "local: steps between two averages of a weight; default: 100"
    ] = None
    sync_spacing: Annotated[
        Literal["steps", "lr"] | None,
        "local: averages are equally many steps apart (steps, the default), or closer where the learning rate is "
        "higher (lr): as many in all, spaced by its square, at most 4 × sync_every apart",
    ] = None
    outer_lr: Annotated[
        float | None, Between(0, 10, open_low=True), "local: rate of the outer Nesterov update; default: 1"
    ] = None
    outer_momentum: Annotated[
        float | None,
        Between(0, 1, open_high=True),
        "local: momentum of the outer update; default: 0, the plain mean of the weights",
    ] = None
    difference_bits: Annotated[Literal[4, 8, 32] | None, "local: bits of a number that is sent; default: 32"] = None
    parts: Annotated[
        int | None, Between(1, 10**4), "local: parts of the model that are averaged in turn (streaming); default: 1"
    ] = None
    batch_moments: Annotated[
        bool | None,
        "local: AdamW's steps are as long as if its second moments were those of the whole batch, not of the worker's "
        "share; the noise of a share is measured between its two halves; default: true",
    ] = None

    max_staleness: Annotated[
        int | None,
        Between(0, 10**9),
        "async: most updates between the reading of weights and the update with their gradient; default: no limit",
    ] = None

    delay_compensation: Annotated[
        float | None,
        Between(0, 10**6),
        "async: λ of g + λ g² (w − w_read), which corrects a stale gradient g to first order (arXiv 1609.08326); "
        "default: none",
    ] = None

    @property
    def shares(self) -> Strategy:
        """The strategy."""
        return self.strategy or "sync"

    @property
    def every(self) -> int:
        """Steps between two averages of a weight, in the mean."""
        return self.sync_every or SYNC_EVERY

    @property
    def most_apart(self) -> int:
        """The most steps between two averages of a weight."""
        return self.every if self.sync_spacing != "lr" else MOST_APART * self.every
