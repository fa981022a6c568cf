"""The warm-up of a network: how many steps its learning rate rises.

A share of a short run is too few steps for the second moments of Adam to settle, and a network with norms after its
parts does not recover from the first large updates. So there is a least number of steps, which the family names.
"""

from __future__ import annotations

from shoestring.core.family import family_of
from shoestring.core.recipe import Recipe
from shoestring.core.sections import number

MOST = 0.25
"""The share of a run that the least steps may take."""


def warmup_share(total: int, share: float, least: int) -> float:
    """The warm-up of a run of `total` steps: a share of them, or more for at least `least`; none if the share is 0."""
    return max(share, min(least / total, MOST)) if share else 0.0


def least_steps(recipe: Recipe) -> int:
    """The least steps of a recipe's warm-up: as it says, or as its family needs."""
    least = recipe.train.least_warmup
    return family_of(recipe.model).least_warmup(recipe.model) if least is None else least


def warmup_reason(recipe: Recipe, total: int) -> str:
    """Why the warm-up of a run of `total` steps has so many."""
    share, least = number(recipe.train.warmup), least_steps(recipe)
    given = f"train.warmup: {share:.3g} of the steps"
    if not share or share * total >= least:
        return given
    source = f"for {family_of(recipe.model).name}" if recipe.train.least_warmup is None else "by train.least_warmup"
    most = "" if least <= MOST * total else f", but at most {max(share, MOST):g} of all"
    return f"{given}, at least {least} {source}{most}"
