"""The time of training passes on a known GPU: FLOPs divided by its peak and by the utilisation reached; and that of an
update on any device."""

from __future__ import annotations

from shoestring.core.family import family_of, learned_of
from shoestring.core.recipe import Recipe
from shoestring.core.records import Cost
from shoestring.core.sections import Precision
from shoestring.core.units import Interval
from shoestring.cost.gpus import find_gpu
from shoestring.cost.transformer import Transformer

UTILISATION = Interval(low=0.340, expected=0.489, high=0.539)
"""Share of a vendor's bf16 peak that our training reached: least, median and most in results/train-h200.json.

These are models of 45 to 190 M parameters on one H200, with batches that fill it. Other GPUs, fp16, and much smaller or
larger models were not measured.
"""

STEP_SECONDS = {"cpu": 0.013, "cuda": 0.0}
"""What a step begins with, however small it is. On one core steps of Swifts of 32 × 2 to 128 × 3 take 18 to 68 ms and
22 to 149 µs for each position: that, and the update as it is counted here, to 10 % but for one (results/log.md)."""
BYTES_PER_SECOND = {"cpu": 1e10, "cuda": 1.5e12}
"""That an update moves."""
UPDATE_BYTES = 28
"""Per parameter: weight, gradient and two moments read, three of them written."""
MUON_FLOPS = 25
"""Of Muon's products for each element of a matrix, by its shorter side: five iterations."""


def update_seconds(recipe: Recipe, cost: Cost, learned: int, device: str, speed: float) -> float:
    """Seconds of a step besides its passes, with `learned` parameters and so many FLOPs per second."""
    flops = 0.0
    if recipe.train.optimizer == "muon":
        matrices = sum(cost.parameters.get(group, 0) for group in ("attention", "mlp"))
        flops = MUON_FLOPS * min(matrices, learned) * recipe.model.width
    return STEP_SECONDS[device] + learned * UPDATE_BYTES / BYTES_PER_SECOND[device] + flops / speed


def training_flops(recipe: Recipe, vocabulary: int) -> float:
    """FLOPs of a forward–backward pass over one row, with what the backward pass recomputes."""
    model, family, tuned = recipe.model, family_of(recipe.model), learned_of(recipe, vocabulary)
    # forward, gradients of inputs, and gradients of the matrices that are learned
    passes = 3 if tuned is None else 2 + tuned.weighed / max(1, tuned.blocks)
    if not isinstance(family, Transformer):
        row = family.cost(model, vocabulary, recipe.data.length, recipe.data.masked).forward_flops_per_token
        return (passes + (recipe.train.recompute == "full")) * row * recipe.data.length
    work = family.work(model, vocabulary, recipe.data.length, recipe.data.masked)
    again = 0.0
    if recipe.train.recompute == "full":
        again = 2.0 * (sum(family.matrices(model).values()) * work.processed + work.prefix_products)
        again += 4.0 * work.width * work.pairs
    elif recipe.train.recompute == "selective":
        again = 2.0 * family.matrices(model)["mlp"] * work.processed
    return passes * work.forward_flops + again


def precision_on(recipe: Recipe, gpu: str) -> Precision | None:
    """The precision of a recipe's products on a GPU by name; None: the GPU is unknown."""
    found = find_gpu(gpu)
    return None if found is None else recipe.train.products("cuda", found.bf16_flops is not None)


def estimate_seconds(
    recipe: Recipe, vocabulary: int, gpu: str, rows: int, share: Interval = UTILISATION
) -> Interval | None:
    """Seconds of a forward–backward pass over `rows` on a GPU, by the name that torch reports, without the update.

    `share` is the utilisation. None: the GPU is unknown, or has no products of the recipe's precision.
    """
    precision = precision_on(recipe, gpu)
    found = find_gpu(gpu)
    peak = None if found is None or precision is None else found.peak_flops(precision)
    if peak is None:
        return None
    at_peak = rows * training_flops(recipe, vocabulary) / peak
    return Interval(low=at_peak / share.high, expected=at_peak / share.expected, high=at_peak / share.low)
