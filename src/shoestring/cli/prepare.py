"""`shoestring prepare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoestring.cli.options import AsJson, Overrides, RecipeFile, Verbose

if TYPE_CHECKING:
    from shoestring.cli.terminal import Terminal
    from shoestring.core.recipe import Recipe


def prepare(recipe: RecipeFile, overrides: Overrides = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Turn a recipe's corpus into a token store.

    As much as its plan says, or all of it where there is no plan.
    """
    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.core import recipe as recipes
    from shoestring.core.run_folder import RunFolder
    from shoestring.core.units import Bytes, Count
    from shoestring.stages.plan import read_plan
    from shoestring.stages.prepare import prepare_recipe

    loaded = recipes.load(recipe, overrides or ())
    folder, terminal = RunFolder.of(loaded), Terminal(to_stderr=as_json)
    if loaded.hmm is not None:
        _prepare_rows(loaded, terminal, as_json)
        return
    made = read_plan(loaded, folder.plan) if folder.plan.is_file() else None
    store = prepare_recipe(loaded, made, terminal)
    rows = [
        (name, f"{split.documents:,}", Count(split.tokens).short(), f"{(split.tokens - 1) // loaded.data.length:,}")
        for name, split in store.manifest.splits.items()
    ]
    terminal.table("Store", ("split", "documents", "tokens", "rows"), rows)
    terminal.say(f"store: {store.paths.folder} ({Bytes(store.manifest.bytes).short()})")
    if as_json:
        print_json({"store": str(store.paths.folder), **store.manifest.to_dict()})


def _prepare_rows(recipe: Recipe, terminal: Terminal, as_json: bool) -> None:
    """The rows of an HMM: sentences of its words."""
    from shoestring.cli.terminal import print_json
    from shoestring.data.sentence_store import prepare_rows

    assert recipe.hmm is not None
    store = prepare_rows(recipe.data, recipe.run.seed, recipe.hmm)
    rows = [
        (name, f"{ledger['sentences']:,}", f"{ledger['kept']:,}", f"{ledger['tokens']:,}", f"{len(split):,}")
        for (name, ledger), split in zip(sorted(store.ledger.items()), (store.heldout, store.train))
    ]
    terminal.table("Rows", ("split", "sentences", "kept", "tokens", "rows"), rows)
    terminal.say(f"rows: {store.path}")
    if as_json:
        print_json({"rows": str(store.path), "alphabet": list(store.alphabet), "ledger": store.ledger})
