"""The time of training passes on a known card: FLOPs divided by its peak and by the share of it that was reached."""

from __future__ import annotations

from dataclasses import dataclass

from shoestring.core.recipe import Recipe
from shoestring.cost.cards import find_card
from shoestring.cost.networks import layer_matrices, network_work


@dataclass(frozen=True, kw_only=True)
class Range:
    """A number that is only estimated."""

    low: float
    expected: float
    high: float


UTILISATION = Range(low=0.340, expected=0.489, high=0.539)
"""Of a vendor's bf16 peak, reached by our training: the least, the median and the most of results/train-h200.json.

Those are models of 45 to 190 M parameters on one H200, with batches that fill it. On other cards, and for models that
are much smaller or larger, nobody measured it.
"""


def training_flops(recipe: Recipe, vocabulary: int) -> float:
    """Of a pass over one row, and of what the backward pass computes again."""
    model = recipe.model
    work = network_work(model, vocabulary, recipe.data.length, recipe.data.masked)
    again = 0.0
    if recipe.train.recompute == "full":
        again = 2.0 * (sum(layer_matrices(model).values()) * work.processed + work.prefix_products)
        again += 4.0 * work.width * work.pairs
    elif recipe.train.recompute == "selective":
        again = 2.0 * layer_matrices(model)["mlp"] * work.processed
    return 3 * work.forward_flops + again


def estimate_seconds(recipe: Recipe, vocabulary: int, card: str, rows: int, share: Range = UTILISATION) -> Range | None:
    """Of a forward and backward pass over so many rows on a card, by its name as torch reports it.

    `low` is the least time, at the highest `share` of the peak. None: the card is unknown, or has no products of the
    precision that the recipe asks for. The update of the weights and the start of a run are not in it.
    """
    found = find_card(card)
    if found is None or found.bf16_flops is None or recipe.train.precision == "fp32":
        return None
    at_peak = rows * training_flops(recipe, vocabulary) / found.bf16_flops
    return Range(low=at_peak / share.high, expected=at_peak / share.expected, high=at_peak / share.low)
