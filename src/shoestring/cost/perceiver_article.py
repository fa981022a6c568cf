"""How the article "Training compute-optimal Perceiver AR language models" counts, and its later correction.

    https://krasserm.github.io/2023/01/23/scaling-perceiver-ar/

FLOPs are those of training for one latent, which is a predicted token. The first count takes from Kaplan et al. that of
attention only queries with keys are counted, and adds 4 D for an embedded position and the logits. The correction
leaves embeddings and logits out, and counts softmax and the values as Chinchilla's appendix F does. Compute is that of
the self-attention part alone, which is a plain decoder's; what the prefix adds is told apart.

D channels, L layers (hybrid one included), V vocabulary, S positions, N latents, M = S - N positions of the prefix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shoestring.core.recipe import Model
from shoestring.cost.networks import parameters
from shoestring.cost.shapes import hidden_channels, latents_of

Count = Literal["first", "corrected"]
ROWS = 80
"""Rows of a batch in the article's experiments."""


@dataclass(frozen=True, kw_only=True)
class ArticleCost:
    """A model by the article's accounting; FLOPs are of training, for one latent."""

    parameters: int
    """Every one."""
    cross_parameters: int
    """Of them the learned positions of the prefix."""
    self_flops: int
    """As of a decoder that sees the latents alone: what the article's compute is made of."""
    cross_flops: int
    """Besides, for the prefix."""
    latents: int

    @property
    def self_parameters(self) -> int:
        return self.parameters - self.cross_parameters

    @property
    def approximate_flops(self) -> int:
        """6 N of the self-attention part."""
        return 6 * self.self_parameters


def article_cost(model: Model, vocabulary: int, length: int, count: Count = "first") -> ArticleCost:
    """A Perceiver AR of family "perceiver_ar" by the article's accounting, for rows of `length` positions.

    Its formulas are for an MLP of 4 D and a tied output.
    """
    d, layers, n = model.width, model.layers, latents_of(model)
    assert model.family == "perceiver_ar" and hidden_channels(model) == 4 * d and model.tied, "the article's network"
    m, kept = length - n, 1 - model.prefix_dropout
    if count == "first":
        of_self = 4 * d + layers * (24 * d * d + 2 * d * n) + 2 * d * vocabulary
        of_cross = 4 * d * m / n + (4 * d * d + 2 * d * n) * m / n * kept
    else:
        weights = 3 * model.heads  # FLOPs of softmax for one query and key
        of_self = layers * (24 * d * d + (4 * d + weights) * n)
        of_cross = (4 * d * d * m / n + (4 * d + weights) * m) * kept
    return ArticleCost(
        parameters=sum(parameters(model, vocabulary, length).values()),
        cross_parameters=d * m,
        self_flops=3 * of_self,
        cross_flops=3 * int(of_cross),
        latents=n,
    )


@dataclass(frozen=True, kw_only=True)
class IsoFlop:
    """How long to train a model so that it takes as much compute as another."""

    cost: ArticleCost
    tokens: float
    """D_iso: latents."""
    steps: int
    """Batches that hold so many, the last one whole."""


def reference_flops(reference: ArticleCost, steps: int, rows: int = ROWS) -> int:
    """C_ref: the compute of a run of so many steps, its self-attention part."""
    return reference.self_flops * rows * reference.latents * steps


def iso_flop_pairs(
    reference: ArticleCost, steps: int, others: Sequence[ArticleCost], rows: int = ROWS
) -> list[IsoFlop]:
    """For each of the others: the tokens and steps that take the compute of `steps` of the reference."""
    flops = reference_flops(reference, steps, rows)
    found = []
    for other in others:
        tokens = flops / other.self_flops
        found.append(IsoFlop(cost=other, tokens=tokens, steps=math.ceil(tokens / other.latents / rows)))
    return found
