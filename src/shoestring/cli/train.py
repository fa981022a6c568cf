"""`shoestring train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoestring.cli.options import AsJson, Overrides, RecipeFile, Verbose
from shoestring.core.units import Seconds


def _seconds(text: str) -> float:
    try:
        return Seconds.parse(text)
    except ValueError as cause:
        raise typer.BadParameter(str(cause)) from cause


def train(
    recipe: RecipeFile,
    overrides: Overrides = None,
    plan: Annotated[Path | None, typer.Option(help="Keep to this plan.json instead of making one.")] = None,
    time: Annotated[
        float | None,
        typer.Option(
            "--time", parser=_seconds, metavar="TIME", help="Stop after this long, saved, as 2h; Slurm's end too."
        ),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Train to the budget, or go on where it was cut.

    Measures, plans and prepares what is missing; evaluates and writes the page at the end.
    """
    from shoestring.cli.running import run_in_terminal
    from shoestring.core import recipe_file

    run_in_terminal(recipe_file.load(recipe, overrides or ()), as_json, plan, time)
