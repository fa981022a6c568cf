"""`shoestring train`."""

from __future__ import annotations

from pathlib import Path

import click

from shoestring.cli import options


@click.command()
@options.recipe_file
@options.overrides
@options.plan_file
@options.time_limit
@options.output
def train(
    recipe: Path, overrides: tuple[str, ...], plan: Path | None, time: float | None, terminal: options.Terminal
) -> options.Result:
    """Train until the budget is spent; resume a run that stopped.

    Measures, plans and prepares what is missing; evaluates and writes the page at the end. A recipe with an [hmm]
    section is fitted, as by `hmm fit`.
    """
    from shoestring.cli.running import run_in_terminal
    from shoestring.core import recipe_file

    return run_in_terminal(recipe_file.load(recipe, overrides), terminal, plan, time)
