"""Prepare: the token store that a run reads."""

from __future__ import annotations

from shoestring.core.facts import Plan
from shoestring.core.recipe import Recipe
from shoestring.data.prepare import measure_density, prepare
from shoestring.data.sources import open_source
from shoestring.data.store import Store
from shoestring.plan.make import available_documents
from shoestring.stages.voice import Voice


def prepare_recipe(recipe: Recipe, plan: Plan | None, voice: Voice) -> Store:
    """The store with as many documents as the plan says; without a plan, all that the recipe allows."""
    if plan is not None:
        documents = plan.entries
    else:
        documents = available_documents(
            recipe, measure_density(open_source(recipe.data.source, recipe.run.seed), recipe.data)
        )
    store = prepare(recipe.data, recipe.run.seed, documents, lambda count: voice.preparing(count, documents))
    for split in store.manifest.splits:
        store.split(split, recipe.data.length)  # too little text for a row is said now, not when training begins
    return store
