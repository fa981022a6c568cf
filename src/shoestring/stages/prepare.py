"""Prepare: the token store that a run reads."""

from __future__ import annotations

from pathlib import Path

from shoestring.core.facts import Plan
from shoestring.core.recipe import Recipe
from shoestring.data.prepare import prepare
from shoestring.data.sources import open_source
from shoestring.data.store import Store
from shoestring.stages.voice import Voice


def given_store(recipe: Recipe) -> Store | None:
    """The store that a recipe names itself, in place of a corpus."""
    kind, _, path = recipe.data.source.partition(":")
    return Store(Path(path)) if kind == "store" else None


def check_source(recipe: Recipe) -> None:
    """Raise an error for a corpus, a store or a model that is not there."""
    if recipe.data.stream is not None:
        from shoestring.stages.streams import open_stream  # imports torch

        open_stream(recipe)
    elif given_store(recipe) is None:
        open_source(recipe.data, recipe.run.seed)


def prepare_recipe(recipe: Recipe, plan: Plan | None, voice: Voice) -> Store:
    """The store with as many documents as the plan says; without a plan, all that the recipe allows."""
    store = prepare_part(recipe, plan, voice, (0, 1))
    assert store is not None, "the only part is all of it"
    return store


def prepare_part(recipe: Recipe, plan: Plan | None, voice: Voice, part: tuple[int, int]) -> Store | None:
    """Part i of n of the store; None where other parts must be made before it is whole."""
    if (given := given_store(recipe)) is not None:
        return given
    documents = planned_documents(recipe, plan)
    store = prepare(recipe.data, recipe.run.seed, documents, lambda count: voice.preparing(count, documents), part)
    if store is not None:
        for split in store.manifest.splits:
            store.split(split, recipe.data.length)  # too little text for a row is said now, not when training begins
    return store


def planned_documents(recipe: Recipe, plan: Plan | None) -> int | None:
    """Documents that are read: None where that is all there are."""
    if plan is not None and not plan.every_entry:
        return plan.entries
    return None if recipe.data.documents is None else int(recipe.data.documents)
