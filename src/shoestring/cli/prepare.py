"""`shoestring prepare`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoestring.cli.options import AsJson, Overrides, RecipeFile, Verbose, parse_part

if TYPE_CHECKING:
    from shoestring.cli.terminal import Terminal
    from shoestring.core.recipe import Recipe
    from shoestring.data.store import Store


def prepare(
    recipe: RecipeFile,
    overrides: Overrides = None,
    shard: Annotated[str, typer.Option("--shard", metavar="I/N", help="Make part I of N, from 0 on.")] = "0/1",
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Turn a recipe's corpus into a token store.

    As much as its plan says, or all of it where there is no plan. The same command goes on where it was cut; parts may
    be made by many machines in one folder.
    """
    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.core import recipe_file
    from shoestring.core.run_folder import RunFolder
    from shoestring.core.units import Bytes, Count
    from shoestring.stages.plan import read_plan
    from shoestring.stages.prepare import check_source, prepare_part

    loaded = recipe_file.load(recipe, overrides or ())
    folder, terminal = RunFolder.of(loaded), Terminal(to_stderr=as_json)
    if loaded.hmm is not None:
        _prepare_rows(loaded, terminal, as_json)
        return
    part = parse_part(shard)
    if loaded.data.stream is not None:
        check_source(loaded)
        terminal.say("the rows of a stream are computed as they are read; there is nothing to prepare")
        if as_json:
            print_json({"stream": loaded.data.stream})
        return
    if loaded.data.label is not None:
        check_source(loaded)
        terminal.say("documents with a class are read into memory by training; there is nothing to prepare")
        if as_json:
            print_json({"label": loaded.data.label})
        return
    made = read_plan(loaded, folder.plan) if folder.plan.is_file() else None
    store = prepare_part(loaded, made, terminal, part)
    if store is None:
        terminal.say(f"part {shard} is as far as it can be without the others; make them, then run this again")
        if as_json:
            print_json({"store": None, "whole": False})
        return
    rows = [
        (name, f"{split.documents:,}", Count(split.tokens).short(), *_packed(store, name, loaded))
        for name, split in store.manifest.splits.items()
    ]
    terminal.table("Store", ("split", "documents", "tokens", "rows", "tokens used"), rows)
    terminal.left_out(store.manifest.ledger)
    terminal.say(f"store: {store.paths.folder} ({Bytes(store.manifest.bytes).short()})")
    if as_json:
        print_json({"store": str(store.paths.folder), **store.manifest.to_dict()})


def _packed(store: Store, split: str, recipe: Recipe) -> tuple[str, str]:
    """Rows of a split, and what became of its tokens."""
    from shoestring.data.packed import PackedSource

    length, packing = recipe.data.length, recipe.data.packing
    if packing == "concat":
        rows = store.split(split, length)
        used = len(rows) * (length + 1) if store.manifest.row else len(rows) * length + 1
        return f"{len(rows):,}", f"{used:,}, cropped {rows.tokens - used:,}"
    source = PackedSource(store, split, length, packing)
    ledger_values = source.ledger
    told = ", ".join(f"{name} {ledger_values[name]:,}" for name in ("cropped", "padded", "repeated"))
    return f"{len(source):,}", f"{ledger_values['used']:,}, {told}"


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
