"""The data of a recipe: its vocabulary and size, and preparing its rows. Loads numpy and torch only where needed."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shoestring.core.errors import DataError, InUse, UserError
from shoestring.core.family import family_of
from shoestring.core.recipe import Recipe, fingerprint
from shoestring.core.records import Density, Plan, Profile
from shoestring.core.schema import encode
from shoestring.data.tokenize.vocabulary import row_specials, text_room, vocabulary_size
from shoestring.planning.corpus import Ready
from shoestring.runs.reporter import Reporter

if TYPE_CHECKING:
    from shoestring.data.store.store import Store

_LOOK_AGAIN = 0.2
"""Seconds."""


def vocabulary_of(recipe: Recipe, given: int | None = None) -> int:
    """How many symbols the recipe's model has: `given`, or what its tokenizer has."""
    if given is not None:
        return given
    data = recipe.data
    if recipe.model.name is not None or (data.stream is not None and data.stream.symbols is None):
        from shoestring.datasets.corpus import vocabulary  # imports torch

        return vocabulary(recipe)
    hides = family_of(recipe.model).predicts_hidden(recipe.model)
    if data.stream is not None:
        return (data.stream.symbols or 0) + hides
    if data.source.kind == "store":
        from shoestring.data.store.store import Store
        from shoestring.data.tokenize.special_tokens import special_tokens

        tokenizer = Store(Path(data.source.place)).tokenizer
        return special_tokens(tokenizer).vocab_size if hides else tokenizer.vocab_size
    return vocabulary_size(data.tokenizer, data.end, hides)


def specials_per_row(recipe: Recipe) -> int:
    """Special tokens around the text of each row: those of a masked model's tokenizer."""
    data = recipe.data
    if data.stream is not None or not family_of(recipe.model).predicts_hidden(recipe.model):
        return 0
    if data.source.kind != "store":
        found = row_specials(data.tokenizer, data.end)
        return found if data.label is not None else data.length - text_room(data.length, found)
    from shoestring.data.store.store import Store
    from shoestring.data.tokenize.special_tokens import special_tokens

    special = special_tokens(Store(Path(data.source.place)).tokenizer)
    return data.length - special.room(data.length)


def ready_rows(recipe: Recipe) -> Ready | None:
    """Rows that need no preparing; None where a corpus must be prepared."""
    data = recipe.data
    if data.stream is not None:
        return Ready(None, 0, "computed as they are read; nothing is prepared")
    if data.label is not None:
        from shoestring.data.read.labels import count_labelled

        assert recipe.model.classes is not None, "checked when the recipe was read"
        rows, _ = count_labelled(data, recipe.run.seed, recipe.model.classes)
        return Ready(rows, 0, "for training, one per document, read into memory; nothing is prepared")
    if data.source.kind != "store":
        return None
    from shoestring.data.store.store import Store

    store, length = Store(Path(data.source.place)), data.length - specials_per_row(recipe)
    if data.packing == "concat":
        rows = len(store.split("train", length))
    else:
        from shoestring.data.pack.packed import PackedSource

        rows = len(PackedSource(store, "train", length, data.packing))
    return Ready(rows, store.manifest.bytes, f"for training, in {store.paths.folder}")


def rows_key(recipe: Recipe) -> str:
    """What the rows on disk depend on: recipes with the same key share them."""
    data = {name: value for name, value in encode(recipe.data).items() if value is not None}
    seed = recipe.run.seed if recipe.data.source.kind == "stories" else None
    return fingerprint([data, seed, None if recipe.hmm is None else [recipe.hmm.unique, recipe.hmm.plain]])


def is_prepared(recipe: Recipe, plan: Plan | None = None) -> bool:
    """Whether the rows of a run are on disk, or need no preparing."""
    data = recipe.data
    if data.stream is not None or data.label is not None or data.source.kind == "store":
        return True
    if recipe.hmm is not None:
        from shoestring.data.store.sentence_store import rows_file

        return rows_file(data, recipe.run.seed, recipe.hmm).is_file()
    from shoestring.data.store.prepare import planned_documents, store_folder
    from shoestring.data.store.store import StorePaths

    return StorePaths(store_folder(data, recipe.run.seed, planned_documents(data, plan))).manifest.is_file()


def prepared_documents(recipe: Recipe) -> tuple[int, ...]:
    """The numbers of documents of the stores that there are of this corpus, in its folder."""
    data, found = recipe.data, []
    manifests = [] if data.documents is not None else list(Path(data.folder).glob("*/manifest.json"))
    if not manifests:  # a plan then loads nothing more
        return ()
    from shoestring.data.store.prepare import store_folder
    from shoestring.data.store.store import Manifest

    for file in manifests:
        with contextlib.suppress(UserError, OSError):
            documents = sum(split.documents for split in Manifest.read(file).splits.values())
            if store_folder(data, recipe.run.seed, documents) == file.parent:  # the count is part of its name
                found.append(documents)
    return tuple(sorted(found))


def recipe_density(recipe: Recipe) -> Density | None:
    """How much the corpus holds, measured on a sample; None where there is no corpus to prepare."""
    if recipe.data.stream is not None or recipe.data.source.kind == "store":
        return None
    from shoestring.data.read.corpora import open_source
    from shoestring.data.read.density import measure_density
    from shoestring.data.store.prepare import with_all_passes

    density = measure_density(open_source(recipe.data, recipe.run.seed), recipe.data, recipe.run.seed)
    found = with_all_passes(density, recipe.data)
    return replace(found, row_specials=specials_per_row(recipe), corpus=recipe.corpus)


def with_own_density(recipe: Recipe, profile: Profile) -> Profile:
    """The profile with the density of this recipe's corpus, which is sampled where the profile has another one."""
    density = profile.density
    if density is not None and density.corpus in (None, recipe.corpus):
        return replace(profile, density=replace(density, row_specials=specials_per_row(recipe)))
    return replace(profile, density=recipe_density(recipe))


def check_source(recipe: Recipe) -> None:
    """Raise an error for a corpus, a store or a stream's model that does not exist, or prompts or context of a masked
    model."""
    if recipe.data.stream is not None:
        from shoestring.datasets.streams import open_stream  # imports torch

        open_stream(recipe)
        return
    from shoestring.data.read.corpora import open_source
    from shoestring.data.store.prepare import given_store

    if given_store(recipe.data) is None:
        open_source(recipe.data, recipe.run.seed)
    if recipe.data.pair is not None and family_of(recipe.model).predicts_hidden(recipe.model):
        raise DataError(
            f'data.prompt and data.completion: model.name = "{recipe.model.name}" predicts hidden tokens, not the next '
            f"one; leave them out, or take a causal model"
        )
    check_context(recipe)
    if recipe.data.validation is not None:
        from shoestring.data.read.other_text import check_others

        check_others(recipe.data)


def check_context(recipe: Recipe) -> None:
    """Raise an error for `evaluate.context` of a network that does not predict every next token."""
    context, family = recipe.evaluate.context, family_of(recipe.model)
    if context is None:
        return
    if family.predicts_hidden(recipe.model) or family.last_predictions(recipe.model) is not None:
        raise DataError(f"evaluate.context = {context}: is for networks that predict every next token; leave it out")


def prepare_recipe(recipe: Recipe, plan: Plan | None, reporter: Reporter) -> Store:
    """The store with as many documents as the plan says; without a plan, all that the recipe allows.

    Where another process is making it, as another run on the same corpus does, it is awaited.
    """
    told = False
    while True:
        try:
            store = prepare_part(recipe, plan, reporter, (0, 1))
        except InUse as cause:
            if cause.own:
                raise
            if not told:
                reporter.say(f"{cause.what} is being made by {cause.holder}: waiting for it")
            told = True
            time.sleep(_LOOK_AGAIN)
        else:
            assert store is not None, "the only part is the whole store"
            return store


def prepare_part(recipe: Recipe, plan: Plan | None, reporter: Reporter, part: tuple[int, int]) -> Store | None:
    """Prepare part i of n of the store; None while other parts are missing."""
    from shoestring.data.store.prepare import given_store, planned_documents, prepare, scored_tokens

    if (given := given_store(recipe.data)) is not None:
        return given
    documents = planned_documents(recipe.data, plan)
    entries = documents if plan is None else plan.entries
    store = prepare(
        recipe.data,
        recipe.run.seed,
        documents,
        lambda count: reporter.preparing(count, entries and max(entries, count)),  # a store may have more already
        part,
        share=None if plan is None else plan.share,
        heldout_tokens=scored_tokens(recipe),
    )
    if store is not None:
        read = store.manifest.splits if recipe.data.validation is None else ("train",)
        for split in read:  # raises an error now where there is too little text for a row
            store.split(split, recipe.data.length - specials_per_row(recipe))
    return store
