"""`shoestring prepare`."""

from __future__ import annotations

from shoestring.cli.options import AsJson, Overrides, RecipeFile, Verbose


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
