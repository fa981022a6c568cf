"""How far a tuned model is from its base: the least and the most likely ids of their predictions, and the divergence.

Pure functions of log-probabilities. Shapes: P prompts, V vocabulary, K ids that are compared.

Ids of equal probability are ranked by id, the lower one first, at both ends. Two models that were not trained at all on
some ids may give them equal probabilities; then a part of the overlap is of such ids.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def least_likely(scores: Float[Tensor, "P V"], k: int) -> Int[Tensor, "P K"]:
    """The ids of the k lowest scores, the lowest first; all ids, where there are no more than k."""
    k = min(k, scores.shape[1])
    ids = among_least(scores, k).nonzero()[:, 1].view(-1, k)  # of each prompt in their order, which a stable sort keeps
    return ids.gather(1, scores.gather(1, ids).sort(dim=-1, stable=True).indices)


def among_least(scores: Float[Tensor, "P V"], k: int) -> Bool[Tensor, "P V"]:
    """Which ids have the k lowest scores, without sorting all of them."""
    last = scores.topk(k, largest=False, sorted=False).values.amax(dim=-1, keepdim=True)
    below, equal = scores < last, scores == last
    free = k - below.sum(dim=-1, keepdim=True)
    return below | (equal & (equal.cumsum(dim=-1, dtype=torch.int32) <= free))


def among_most(scores: Float[Tensor, "P V"], k: int) -> Bool[Tensor, "P V"]:
    """Which ids have the k highest scores."""
    return among_least(-scores, k)


def shared(one: Bool[Tensor, "P V"], other: Bool[Tensor, "P V"]) -> Float[Tensor, " P"]:
    """The share of the ids of one that are in the other, too; both have equally many."""
    return (one & other).sum(dim=1).double() / one.sum(dim=1)


def divergence(base: Float[Tensor, "P V"], tuned: Float[Tensor, "P V"]) -> Float[Tensor, " P"]:
    """KL(base ‖ tuned) of log-probabilities, in nats; prompt by prompt, as it is computed in float64."""
    return torch.stack(
        [F.kl_div(t.double(), b.double(), reduction="sum", log_target=True) for b, t in zip(base, tuned, strict=True)]
    )


class BaseLists(NamedTuple):
    """What is compared of the base's predictions, made once."""

    log_p: Float[Tensor, "P V"]
    bottom: Bool[Tensor, "P V"]
    top: Bool[Tensor, "P V"]
    k: int

    @classmethod
    def of(cls, log_p: Float[Tensor, "P V"], k: int) -> BaseLists:
        return cls(log_p, among_least(log_p, k), among_most(log_p, k), k)

    def to(self, device: torch.device) -> BaseLists:
        return BaseLists(self.log_p.to(device), self.bottom.to(device), self.top.to(device), self.k)

    def compare(self, log_p: Float[Tensor, "P V"]) -> dict[str, float]:
        """Mean, least and most over the prompts of both overlaps and of the divergence, by the names of metrics."""
        found = {
            "overlap": shared(self.bottom, among_least(log_p, self.k)),
            "overlap_top": shared(self.top, among_most(log_p, self.k)),
            "overlap_kl": divergence(self.log_p, log_p),
        }
        scores: dict[str, float] = {}
        for name, each in found.items():
            values = each.cpu()
            scores |= {
                name: float(values.mean()),
                f"{name}_min": float(values.min()),
                f"{name}_max": float(values.max()),
            }
        return scores
