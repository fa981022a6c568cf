"""The plain forward and backward passes: the oracle of the E-step, and of what the filter says of a whole row.

Shapes: N sequences, L positions, H states. Tables of states by position are (L, N, H).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoestring.hmm.inference import _or_zero, _prepare, check_tokens, filter_rows
from shoestring.hmm.parameters import Parameters


class Forward(NamedTuple):
    """The filter.

    Beyond the end of a row `alpha` repeats its last value and `scale` is 1. After a token of probability zero, `alpha`
    continues as if that token had not been seen.
    """

    alpha: Tensor
    """(L, N, H): p(state | tokens up to and with this one); sums to 1."""
    scale: Tensor
    """(L, N): p(token, and that the chain did not stop before it | tokens before); 0 in an impossible row."""
    ending: Tensor
    """(N,): p(stop after the last token | all tokens); 1 for a model without end probabilities."""
    log_likelihood: Tensor
    """(N,) in float64: the sum of the logarithms of `scale` and `ending`."""
    impossible: Tensor


class Backward(NamedTuple):
    beta: Tensor
    """(L, N, H): p(later tokens | state) / p(later tokens | tokens so far); alpha · beta is the posterior."""


class Smoothed(NamedTuple):
    posterior: Tensor
    """(N, L, H): p(state | all tokens); sums to 1, or is 0 beyond a row's end and everywhere in an impossible row."""
    log_likelihood: Tensor
    impossible: Tensor


def forward(parameters: Parameters, tokens: Tensor, lengths: Tensor | None = None) -> Forward:
    """The scaled forward pass; keeps L × N × H numbers."""
    check_tokens(tokens, parameters.symbols, lengths)
    rows, positions = tokens.shape
    alpha = parameters.emission.new_empty(positions, rows, parameters.states)
    scale = parameters.emission.new_empty(positions, rows)
    for t, step in enumerate(filter_rows(parameters, tokens, lengths)):
        alpha[t], scale[t] = step.alpha, step.scale
    ending = scale.new_ones(rows)
    if parameters.end is not None and positions:
        ending = _or_zero(alpha[-1] @ parameters.end)
    log_likelihood = scale.double().log().sum(0) + ending.double().log()
    return Forward(alpha, scale, ending, log_likelihood, log_likelihood.isneginf())


def backward(parameters: Parameters, tokens: Tensor, filtered: Forward, lengths: Tensor | None = None) -> Backward:
    """The backward pass in the scale of `filtered`, the forward pass over the same tokens."""
    tokens, inside = _prepare(parameters, tokens, lengths)
    positions = tokens.shape[1]
    emit, back = parameters.emission.t(), parameters.moves().t().contiguous()
    ends = torch.ones_like(parameters.start) if parameters.end is None else parameters.end
    # A state that the past rules out may explain the future so much better than the others that its beta overflows. Its
    # posterior is zero all the same, so any finite number will do; see `_ceiling`.
    ceiling = _ceiling(parameters.dtype)
    last = (ends * _inverse(filtered.ending)[:, None]).clamp_max(ceiling)  # N H
    inverse = _inverse(filtered.scale)  # L N
    beta = torch.zeros_like(filtered.alpha)
    for t in reversed(range(positions)):
        follows = inside[t + 1] if t + 1 < positions else torch.zeros_like(inside[t])
        later = torch.zeros_like(last)
        if t + 1 < positions:
            weight = emit[tokens[:, t + 1]] * beta[t + 1] * inverse[t + 1][:, None]
            later = weight.clamp_max(ceiling) @ back
        beta[t] = torch.where(follows[:, None], later, last) * inside[t][:, None]
    return Backward(beta)


def log_likelihood(parameters: Parameters, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
    """(N,): log p(tokens), with the end if the model has one, in float64; -inf for an impossible row."""
    return forward(parameters, tokens, lengths).log_likelihood


def smooth(parameters: Parameters, tokens: Tensor, lengths: Tensor | None = None) -> Smoothed:
    """The distribution of every state given the whole row."""
    filtered = forward(parameters, tokens, lengths)
    posterior = filtered.alpha * backward(parameters, tokens, filtered, lengths).beta
    posterior *= _inverse(posterior.sum(-1, keepdim=True))
    posterior.masked_fill_(filtered.impossible[:, None], 0)
    return Smoothed(posterior.transpose(0, 1), filtered.log_likelihood, filtered.impossible)


def _inverse(values: Tensor) -> Tensor:
    """1 / values, and 0 where that would be infinite."""
    return torch.where(values < torch.finfo(values.dtype).tiny, 0, 1 / values)


def _ceiling(dtype: torch.dtype) -> float:
    """The most that beta may be: far above what a state of any weight has, and far below what overflows a sum.

    A state whose alpha underflowed adds less than ceiling × tiny to a posterior: 1e-9 in float32, 1e-76 in float64.
    """
    return float(torch.finfo(dtype).max ** 0.75)
