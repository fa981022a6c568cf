"""Parameters and FLOPs of a recipe's model in every convention, without building it and mostly without torch."""

from __future__ import annotations

from typing import NamedTuple

from shoestring.core.errors import UserError
from shoestring.core.recipe import Recipe
from shoestring.cost.conventions import Accounting, Count, accounting, article_cost, counts_like_the_article

CONVENTIONS = {
    "exact": "exact",
    "6N": "6N, all parameters",
    "6N-no-embeddings": "6N, no embeddings",
    "kaplan": "Kaplan",
    "palm": "PaLM",
    "chinchilla": "Chinchilla",
}
"""Conventions: name on the command line → name in `cost.conventions`."""
ARTICLES: dict[str, Count] = {"article": "first", "article-corrected": "corrected"}
"""For Perceiver AR only: its article's first count, and the corrected one."""
_ARTICLE_COUNTS = {
    "article": "self-attention part; attention's queries with keys, embeddings and logits",
    "article-corrected": "self-attention part; all of attention and its softmax, no embeddings, no logits",
}


class Counted(NamedTuple):
    """A model in one convention. FLOPs are those of training."""

    convention: str
    params: int | None
    """N, where the convention has one."""
    per_token: float
    """FLOPs per position of a row: the tokens of a plan."""
    per_prediction: float
    """FLOPs per prediction of a row: the D of a scaling law."""
    against_exact: float
    counts: str


def recipe_accounting(recipe: Recipe, vocabulary: int) -> Accounting:
    recipe.need_network("this recipe has an [hmm] section: scaling laws count the parameters and FLOPs of networks")
    return accounting(recipe.model, vocabulary, recipe.data.length, recipe.data.masked)


def count_all(recipe: Recipe, vocabulary: int) -> list[Counted]:
    """The model in every convention that applies, the exact one first."""
    counted = recipe_accounting(recipe, vocabulary)
    rows = [
        Counted(name, params, per_token, counted.per_prediction(name), share, counts)
        for name, params, per_token, share, counts in counted.table()
    ]
    if counts_like_the_article(recipe.model):
        exact = counted.per_prediction()
        for name, count in ARTICLES.items():
            cost = article_cost(recipe.model, vocabulary, recipe.data.length, count)
            flops, counts = cost.self_flops, _ARTICLE_COUNTS[name]
            per_token = flops * cost.latents / recipe.data.length
            rows.append(Counted(name, cost.parameters, per_token, flops, flops / exact, counts))
            cross = cost.cross_flops
            per_token = cross * cost.latents / recipe.data.length
            about = "what the prefix adds: its learned positions, and cross-attention"
            rows.append(Counted(f"{name}, cross", cost.cross_parameters, per_token, cross, cross / exact, about))
    return rows


def flops_per_prediction(recipe: Recipe, vocabulary: int, convention: str) -> float:
    """Training FLOPs per prediction, in a convention of `CONVENTIONS` or `ARTICLES`."""
    if convention in CONVENTIONS:
        return recipe_accounting(recipe, vocabulary).per_prediction(CONVENTIONS[convention])
    if convention not in ARTICLES:
        raise UserError(f"--convention {convention}: must be one of {', '.join([*CONVENTIONS, *ARTICLES])}")
    if not counts_like_the_article(recipe.model):
        raise UserError(
            f"--convention {convention}: the article counts a Perceiver AR with an MLP of 4 width and a tied output; "
            f"use --convention exact"
        )
    return article_cost(recipe.model, vocabulary, recipe.data.length, ARTICLES[convention]).self_flops
