"""The process that extends the store of a run beside it; it loads neither torch nor what needs it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from shoestring.core.errors import RunError, UserError
from shoestring.core.files import is_locked
from shoestring.core.host import end_with_parent
from shoestring.core.recipe import Recipe
from shoestring.core.records import Plan
from shoestring.core.registry import load_added
from shoestring.core.run_folder import RunFolder
from shoestring.runs.prepare import prepare_recipe, specials_per_row
from shoestring.runs.reporter import Reporter

_LOWEST = 19
_PAUSE = 2.0
"""Seconds between two attempts to extend a store that another process extends."""


def extend(recipe: Recipe, plan: Plan, share: float) -> None:
    """Extend the store of a plan to a share of the corpus, with the packing of its rows."""
    from shoestring.data.store.prepare import planned_documents, store_folder
    from shoestring.data.store.store import StorePaths

    paths = StorePaths(store_folder(recipe.data, recipe.run.seed, planned_documents(recipe.data, plan)))
    while True:
        try:
            store = prepare_recipe(recipe, replace(plan, share=share), Reporter())
            break
        except RunError:
            if not is_locked(paths.lock((0, 1))):
                raise
            time.sleep(_PAUSE)  # another run extends the same store
    data, length = recipe.data, recipe.data.length - specials_per_row(recipe)
    if data.packing != "concat":
        from shoestring.data.pack.packed import PackedSource

        PackedSource(store, "train", length, data.packing, store.manifest.splits["train"].with_share(share))


def main(folder: str, share: str, added: str) -> None:
    end_with_parent()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # if the host runs out, it kills this process first
    os.nice(_LOWEST)
    load_added(added)
    run = RunFolder.open(folder)
    extend(run.read_recipe(), Plan.read(run.plan), float(share))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except UserError as mistake:
        print(" ".join(str(mistake).split()), file=sys.stderr)
        sys.exit(mistake.exit_code)
