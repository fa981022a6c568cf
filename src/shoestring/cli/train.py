"""`shoestring train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoestring.cli.options import AsJson, Overrides, RecipeFile, Verbose


def train(
    recipe: RecipeFile,
    overrides: Overrides = None,
    plan: Annotated[Path | None, typer.Option(help="Keep to this plan.json instead of making one.")] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Train to the budget, or go on where it was cut.

    Measures, plans and prepares what is missing; evaluates and writes the page at the end.
    """
    from shoestring.cli.running import run_in_terminal
    from shoestring.core import recipe as recipes

    run_in_terminal(recipes.load(recipe, overrides or ()), as_json, plan)
