"""`shoestring prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoestring.cli import options

if TYPE_CHECKING:
    from shoestring.core.recipe import Recipe
    from shoestring.data.store.store import Store
    from shoestring.runs.hmm_task import HmmTask


@click.command()
@options.recipe_file
@options.overrides
@options.shard
@click.option("--plan", "plan_file", type=options.PATH, metavar="FILE", help="Prepare what this plan.json needs.")
@options.output
def prepare(
    recipe: Path, overrides: tuple[str, ...], shard: str, plan_file: Path | None, terminal: options.Terminal
) -> options.Result:
    """Turn a recipe's corpus into a token store.

    Prepares what --plan or the plan of its run folder needs, or all of it where there is none. The same command resumes
    where it stopped. Several machines may make parts in one folder.
    """
    from shoestring.core import recipe_file
    from shoestring.core.records import Plan
    from shoestring.core.run_folder import RunFolder
    from shoestring.core.units import Bytes, Count
    from shoestring.runs.hmm_task import HmmTask
    from shoestring.runs.plan import read_plan
    from shoestring.runs.prepare import check_source, prepare_part
    from shoestring.runs.settle import settled
    from shoestring.runs.task import task_of

    loaded = recipe_file.load(recipe, overrides)
    folder, task = RunFolder.of(loaded), task_of(loaded)
    if isinstance(task, HmmTask):
        return _prepare_rows(task, terminal)
    part = options.parse_part(shard)
    if loaded.data.stream is not None:
        check_source(loaded)
        terminal.say("the rows of a stream are computed as they are read; there is nothing to prepare")
        return {"stream": loaded.data.stream}
    if loaded.data.label is not None:
        check_source(loaded)
        terminal.say("training reads documents with a class into memory; there is nothing to prepare")
        return {"label": loaded.data.label}
    plan = None
    if plan_file is not None:
        plan = Plan.read(plan_file)
    elif folder.plan.is_file():
        plan = read_plan(settled(loaded, folder).recipe, folder.plan)
    store = prepare_part(loaded, plan, terminal, part)
    if store is None:
        terminal.say(f"part {shard} cannot continue without the other parts; make them, then run this command again")
        return {"store": None, "whole": False}
    rows = [
        (name, f"{split.documents:,}", Count(split.tokens).short(), *_packed(store, name, loaded))
        for name, split in store.manifest.splits.items()
    ]
    terminal.table("Store", ("split", "documents", "tokens", "rows", "tokens used"), rows)
    terminal.left_out(store.manifest.ledger)
    terminal.say(f"store: {store.paths.folder} ({Bytes(store.manifest.bytes).short()})")
    return {"store": str(store.paths.folder), **store.manifest.to_dict()}


def _packed(store: Store, split: str, recipe: Recipe) -> tuple[str, str]:
    """The rows of a split, and what became of its tokens."""
    from shoestring.data.pack.packed import PackedSource
    from shoestring.runs.prepare import specials_per_row

    length, packing = recipe.data.length - specials_per_row(recipe), recipe.data.packing
    if packing == "concat":
        rows = store.split(split, length)
        used = len(rows) * (length + 1) if store.manifest.row else len(rows) * length + 1
        return f"{len(rows):,}", f"{used:,}, cropped {rows.tokens - used:,}"
    source = PackedSource(store, split, length, packing)
    counts = source.ledger
    others = ", ".join(f"{name} {counts[name]:,}" for name in ("cropped", "padded", "repeated"))
    return f"{len(source):,}", f"{counts['used']:,}, {others}"


def _prepare_rows(task: HmmTask, terminal: options.Terminal) -> options.Result:
    """Prepare the rows of an HMM: sentences of its words."""
    store = task.rows()
    rows = [
        (name, f"{ledger['sentences']:,}", f"{ledger['kept']:,}", f"{ledger['tokens']:,}", f"{len(split):,}")
        for (name, ledger), split in zip(sorted(store.ledger.items()), (store.heldout, store.train))
    ]
    terminal.table("Rows", ("split", "sentences", "kept", "tokens", "rows"), rows)
    terminal.say(store.reason)
    terminal.say(f"rows: {store.path}")
    return {"rows": str(store.path), "alphabet": list(store.alphabet), "ledger": store.ledger}
