"""Accounting: what a recipe's model counts, in every convention, without building it and mostly without torch."""

from __future__ import annotations

from typing import NamedTuple

from shoestring.core.errors import UserError
from shoestring.core.recipe import Recipe
from shoestring.cost.conventions import Accounting, accounting
from shoestring.cost.perceiver_article import ArticleCost, Count, article_cost
from shoestring.cost.shapes import hidden_channels
from shoestring.data.sizes import vocabulary_size

CONVENTIONS = {
    "exact": "exact",
    "6N": "6N, all parameters",
    "6N-no-embeddings": "6N, no embeddings",
    "kaplan": "Kaplan",
    "palm": "PaLM",
    "chinchilla": "Chinchilla",
}
"""What a command calls a convention, and what `cost.conventions` does."""
ARTICLES: dict[str, Count] = {"article": "first", "article-corrected": "corrected"}
"""Of Perceiver AR alone: its article's first count, and the one it was corrected to."""
_ARTICLE_COUNTS = {
    "article": "self-attention part; attention's queries with keys, embeddings and logits",
    "article-corrected": "self-attention part; all of attention and its softmax, no embeddings, no logits",
}


class Counted(NamedTuple):
    """A model in one convention. FLOPs are of training."""

    convention: str
    params: int | None
    """N where the convention has one."""
    per_token: float
    """Of a row divided by its positions: the tokens of a plan."""
    per_prediction: float
    """Of a row divided by its predictions: the D of a scaling law."""
    against_exact: float
    counts: str


def vocabulary_of(recipe: Recipe, given: int | None = None) -> int:
    """How many symbols the model has, as `given` or as the tokenizer says."""
    if given is not None:
        return given
    data, hides = recipe.data, recipe.model.family == "masked_lm"
    if recipe.model.family == "hf" or (data.stream or "").startswith("hmm:"):
        from shoestring.stages.corpus import vocabulary  # imports torch

        return vocabulary(recipe)
    if data.stream is not None:
        return int(data.stream.removeprefix("markov:")) + hides
    if data.source.startswith("store:"):
        from shoestring.data.special_tokens import special_tokens
        from shoestring.stages.prepare import given_store

        store = given_store(recipe)
        assert store is not None, "the source names one"
        return special_tokens(store.tokenizer).vocab_size if hides else store.tokenizer.vocab_size
    return vocabulary_size(data.tokenizer, data.end, hides)


def recipe_accounting(recipe: Recipe, vocabulary: int) -> Accounting:
    if recipe.hmm is not None:
        raise UserError("this recipe has an [hmm] section: the parameters and FLOPs that laws speak of are a network's")
    return accounting(recipe.model, vocabulary, recipe.data.length, recipe.data.masked)


def count_all(recipe: Recipe, vocabulary: int) -> list[Counted]:
    """Every convention there is for this model, the exact one first."""
    counted = recipe_accounting(recipe, vocabulary)
    rows = [
        Counted(name, params, per_token, counted.per_prediction(name), share, counts)
        for name, params, per_token, share, counts in counted.table()
    ]
    if _is_of_article(recipe):
        exact = counted.per_prediction()
        for name, count in ARTICLES.items():
            cost = _article(recipe, vocabulary, count)
            per_token = cost.self_flops * cost.latents / recipe.data.length
            share = cost.self_flops / exact
            rows.append(Counted(name, cost.parameters, per_token, cost.self_flops, share, _ARTICLE_COUNTS[name]))
    return rows


def flops_per_prediction(recipe: Recipe, vocabulary: int, convention: str) -> float:
    """Training FLOPs of a prediction, by a name in `CONVENTIONS` or `ARTICLES`."""
    if convention in CONVENTIONS:
        return recipe_accounting(recipe, vocabulary).per_prediction(CONVENTIONS[convention])
    if convention not in ARTICLES:
        raise UserError(f"--convention {convention}: must be one of {', '.join([*CONVENTIONS, *ARTICLES])}")
    if not _is_of_article(recipe):
        raise UserError(
            f"--convention {convention}: the article counts a Perceiver AR with an MLP of 4 width and a tied output; "
            f"take --convention exact"
        )
    return _article(recipe, vocabulary, ARTICLES[convention]).self_flops


def _is_of_article(recipe: Recipe) -> bool:
    model = recipe.model
    return model.family == "perceiver_ar" and model.tied and hidden_channels(model) == 4 * model.width


def _article(recipe: Recipe, vocabulary: int, count: Count) -> ArticleCost:
    return article_cost(recipe.model, vocabulary, recipe.data.length, count)
