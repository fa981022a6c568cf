"""A pointer into a text: a position may take its next token from those that followed earlier positions like it.

The network predicts y after position t with probability

    p(y) = (e^r_t softmax(logits_t)_y + sum of e^s_tj over the j < t that were followed by y) / Z_t

where s_tj = q_t · k_j / √C and r_t, the weight of the vocabulary, are read from the last hidden state (a pointer
sentinel mixture, Merity et al. 2016). The loss needs two numbers beside the cross entropy of the logits, which are made
here: `odds`, the logarithm of the right tokens' weight beside e^r, and `total`, that of Z / e^r.

Shapes: R rows, T positions, D width, C channels of queries and keys, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from shoestring.models.layers.blocks import wide
from shoestring.models.layers.cross_entropy import Copies
from shoestring.models.layers.past import Read

FIRST_WEIGHT = 10.0
"""r of all positions at first: as much as some 20,000 positions before."""
SCORES_BYTES = {"cpu": 2 << 20}
"""Bytes of scores that are made at once, by type of device: on a CPU what fits a cache."""
MORE_SCORES_BYTES = 64 << 20
"""On all other devices."""
MOST_LOG = 80.0
"""Logarithm of the largest factor of a share in float32: a share that needs a larger one is 0 there."""
NONE = -1
"""What followed the last position of a row is not known."""


class Pointer(nn.Module):
    """A matrix whose rows make queries and keys, and whose last row makes r with a bias."""

    def __init__(self, width: int, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * channels + 1, width))
        self.bias = nn.Parameter(torch.zeros(1))

    @torch.no_grad()
    def begin(self, deviation: float) -> None:
        """Set first weights, where those of the matrix were drawn with this deviation: scores have one of about 1."""
        self.weight.mul_(self.weight.shape[1] ** -0.5 / deviation)
        self.weight[-1].zero_()
        self.bias.fill_(FIRST_WEIGHT)

    def forward(
        self,
        hidden: Float[Tensor, "R T D"],
        ids: Int[Tensor, "R T"],
        targets: Int[Tensor, "R T"],
        documents: Int[Tensor, "R T"] | None = None,
    ) -> Copies:
        """What it knows of the targets; with the numbers of `documents` no other document is pointed into."""
        kept = torch.is_grad_enabled()
        return Copies(*_Weighed.apply(hidden, self.weight, self.bias, followers(ids), targets, documents, kept))

    def mixed(
        self,
        logits: Float[Tensor, "R T V"],
        hidden: Float[Tensor, "R T D"],
        ids: Int[Tensor, "R T"],
        documents: Int[Tensor, "R T"] | None = None,
    ) -> Float[Tensor, "R T V"]:
        """Logarithms of all probabilities, in place of logits."""
        with torch.autocast(hidden.device.type, enabled=False):
            q, k, rest = self.read(hidden)
            return mixture(logits, _scores(q, k, documents), rest, followers(ids))

    def mixed_last(
        self, logits: Float[Tensor, "R V"], hidden: Float[Tensor, "R T D"], read: Read
    ) -> Float[Tensor, "R V"]:
        """The same of the last position, whose keys and tokens, and those before, `read` has."""
        with torch.autocast(hidden.device.type, enabled=False):
            q, _, rest = self.read(hidden[:, -1:])
            keys, ids = read.all()
            scores = _scores(q, keys, None)
            return mixture(logits[:, None], scores, rest, followers(ids))[:, 0]

    def read(
        self, hidden: Float[Tensor, "R T D"]
    ) -> tuple[Float[Tensor, "R T C"], Float[Tensor, "R T C"], Float[Tensor, "R T"]]:
        """Queries, keys and r, in float32 at least."""
        return _read(hidden, self.weight, self.bias)


def followers(ids: Int[Tensor, "R T"]) -> Int[Tensor, "R T"]:
    """The token after each position, `NONE` after the last."""
    return F.pad(ids[:, 1:], (0, 1), value=NONE)


def mixture(
    logits: Float[Tensor, "R N V"],
    scores: Float[Tensor, "R N S"],
    rest: Float[Tensor, "R N"],
    followed: Int[Tensor, "R S"],
) -> Float[Tensor, "R N V"]:
    """Logarithms of the probabilities, by the logits and by what followed the positions that have scores."""
    all_of_them = torch.cat((scores, rest[..., None]), dim=2).logsumexp(2, keepdim=True)  # never of nothing
    at = followed.clamp_min(0)[:, None].expand(scores.shape)  # where none is known the score is minus infinity
    copied = scores.new_zeros(logits.shape).scatter_add_(2, at, (scores - all_of_them).exp())
    least = torch.finfo(copied.dtype).tiny  # the logarithm of 0 has no gradient
    of_logits = wide(logits).log_softmax(2) + rest[..., None] - all_of_them
    return torch.logaddexp(of_logits, copied.clamp_min(least).log())


def _read(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k = wide(F.linear(hidden, weight[:-1].to(hidden.dtype))).chunk(2, dim=-1)
    return q, k, wide(hidden) @ weight[-1].to(q.dtype) + bias.to(q.dtype)


def _scores(q: Tensor, k: Tensor, documents: Tensor | None) -> Tensor:
    """s of the last N positions as queries and all S as keys, R N S; minus infinity where nothing may be pointed at.

    A query sees the keys of earlier positions: the tokens after those are known.
    """
    n, keys = q.shape[1], k.shape[1]
    hidden = q.new_full((n, keys), -math.inf).triu(keys - n)  # and zeros before
    if documents is not None:
        hidden = hidden.masked_fill(documents[:, :, None] != documents[:, None, :], -math.inf)
    return torch.baddbmm(hidden, q, k.transpose(1, 2), alpha=1 / math.sqrt(k.shape[2]))


class _Weighed(torch.autograd.Function):
    """Odds and totals, of some rows at a time, whose scores fit a cache. Shares are kept for a backward pass alone."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        followed: Tensor,
        targets: Tensor,
        documents: Tensor | None,
        kept: bool,
    ) -> tuple[Tensor, Tensor]:
        r, t, _ = hidden.shape
        shares = wide(hidden.new_empty(0)).new_empty(r if kept else 0, t, t)
        odds, total, top = (shares.new_empty(r, t) for _ in range(3))
        with torch.autocast(hidden.device.type, enabled=False):
            for rows in _chunks(hidden):
                q, k, rest = _read(hidden[rows], weight, bias)
                s = _scores(q, k, None if documents is None else documents[rows])
                highest = torch.maximum(s.amax(2), rest)
                own = torch.exp(s.sub_(highest[..., None]), out=shares[rows] if kept else s)
                above = highest - rest
                right = followed[rows, None] == targets[rows, :, None]
                total[rows] = (own.sum(2) + (-above).exp()).log() + above
                odds[rows] = torch.where(right, own, 0.0).sum(2).log() + above
                top[rows] = above
        ctx.save_for_backward(hidden, weight, bias, followed, targets, shares, odds, total, top)
        return odds.flatten(), total.flatten()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_odds: Tensor, to_total: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, followed, targets, shares, odds, total, top = ctx.saved_tensors
        to_odds, to_total = to_odds.view(odds.shape), to_total.view(odds.shape)
        among_right = total - odds  # infinite where nothing is right, which has no gradient
        among_right = among_right.masked_fill_(among_right.isinf(), 0.0).clamp_max_(MOST_LOG).exp_()
        scale = (top - total).exp_() / math.sqrt(weight.shape[0] // 2)
        of_all, of_right = to_total * scale, (to_total + to_odds * among_right) * scale
        to_rest = to_total * torch.expm1(-total) - to_odds
        to_hidden, to_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=odds.dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            for rows in _chunks(hidden):
                q, k, _ = _read(hidden[rows], weight, bias)
                right = followed[rows, None] == targets[rows, :, None]
                to_s = torch.where(right, of_right[rows, :, None], of_all[rows, :, None]).mul_(shares[rows])
                product = torch.cat((to_s @ k, to_s.transpose(1, 2) @ q, to_rest[rows, :, None]), dim=2)
                to_hidden[rows] = product @ weight.to(product.dtype)
                to_weight += product.flatten(0, 1).T @ wide(hidden[rows]).flatten(0, 1)
        return to_hidden, to_weight.to(weight.dtype), to_rest.sum().to(bias.dtype)[None], None, None, None, None


def _chunks(hidden: Tensor) -> Iterator[slice]:
    """Rows whose scores are made at once."""
    rows, t = hidden.shape[:2]
    size = SCORES_BYTES.get(hidden.device.type, MORE_SCORES_BYTES)
    step = max(1, size // (4 * t * t))
    for first in range(0, rows, step):
        yield slice(first, first + step)
