"""How far a tuned model is from its base: the least and the most likely ids of their predictions, and the divergence.

Pure functions of log-probabilities. Shapes: P prompts, V vocabulary, K ids that are compared.

Ids of equal probability are ranked by id, the lower one first, at both ends. Two models that were not trained at all on
some ids may give them equal probabilities; then a part of the overlap is of such ids.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


def least_likely(scores: Float[Tensor, "P V"], k: int) -> Int[Tensor, "P K"]:
    """The ids of the k lowest scores, the lowest first."""
    return scores.sort(dim=-1, stable=True).indices[:, :k]


def most_likely(scores: Float[Tensor, "P V"], k: int) -> Int[Tensor, "P K"]:
    """The ids of the k highest scores, the highest first."""
    return least_likely(-scores, k)


def shared(one: Int[Tensor, "P K"], other: Int[Tensor, "P K"], vocabulary: int) -> Float[Tensor, " P"]:
    """The share of ids that two lists of each prompt have in common; their order does not matter."""
    has = torch.zeros(len(one), vocabulary, dtype=torch.bool, device=one.device).scatter_(1, one, True)
    return has.gather(1, other).double().mean(dim=1)


def divergence(base: Float[Tensor, "P V"], tuned: Float[Tensor, "P V"]) -> Float[Tensor, " P"]:
    """KL(base ‖ tuned) of log-probabilities, in nats."""
    return torch.nn.functional.kl_div(tuned.double(), base.double(), reduction="none", log_target=True).sum(dim=1)


class BaseLists(NamedTuple):
    """What is compared of the base's predictions, made once."""

    log_p: Float[Tensor, "P V"]
    bottom: Int[Tensor, "P K"]
    top: Int[Tensor, "P K"]

    @classmethod
    def of(cls, log_p: Float[Tensor, "P V"], k: int) -> BaseLists:
        return cls(log_p, least_likely(log_p, k), most_likely(log_p, k))

    def compare(self, log_p: Float[Tensor, "P V"]) -> dict[str, float]:
        """Mean, least and most over the prompts of both overlaps and of the divergence, by the names of metrics."""
        (_, k), vocabulary = self.bottom.shape, log_p.shape[1]
        found = {
            "overlap": shared(self.bottom, least_likely(log_p, k), vocabulary),
            "overlap_top": shared(self.top, most_likely(log_p, k), vocabulary),
            "overlap_kl": divergence(self.log_p, log_p),
        }
        scores: dict[str, float] = {}
        for name, each in found.items():
            scores |= {name: float(each.mean()), f"{name}_min": float(each.min()), f"{name}_max": float(each.max())}
        return scores
