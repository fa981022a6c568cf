"""`shoestring train`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from shoestring.cli import options
from shoestring.core.environment import SLOW_WORKER, STEP_SECONDS, parse_slow
from shoestring.core.errors import UserError


@click.command()
@options.recipe_file
@options.overrides
@options.plan_file
@options.time_limit
@click.option(
    "--slow-worker",
    metavar="WORKER:FACTORx",
    help="Let a worker take longer, as in 1:3x, to see what becomes of the others.",
)
@click.option(
    "--step-seconds", type=options.DURATION, metavar="TIME",
    help="Let the passes over the rows of a step take at least this long, divided over the workers.",
)  # fmt: skip
@click.option(
    "--until", type=float, metavar="SHARE",
    help="Save and stop after this share of the steps; the same command without it goes on to the end.",
)  # fmt: skip
@options.output
def train(
    recipe: Path,
    overrides: tuple[str, ...],
    plan: Path | None,
    time: float | None,
    slow_worker: str | None,
    step_seconds: float | None,
    until: float | None,
    terminal: options.Terminal,
) -> options.Result:
    """Train until the budget is spent; resume a run that stopped.

    Measures, plans and prepares what is missing; evaluates and writes the page at the end. A recipe with an [hmm]
    section is fitted, as by `hmm fit`.
    """
    from shoestring.cli.running import run_in_terminal
    from shoestring.core import recipe_file

    if until is not None and not 0 < until <= 1:
        raise UserError(f"--until {until}: must be a share of the steps, above 0 and at most 1")
    if slow_worker is not None:
        which, _ = parse_slow(slow_worker, "--slow-worker")
        if which != int(which):
            raise UserError(f"--slow-worker {slow_worker}: the number of a worker, from 0, stands before the colon")
        os.environ[SLOW_WORKER] = slow_worker
    if step_seconds is not None:
        os.environ[STEP_SECONDS] = f"{float(step_seconds)!r}s"
    return run_in_terminal(recipe_file.load(recipe, overrides), terminal, plan, time, until=until)
