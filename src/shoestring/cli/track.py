"""`shoestring track`."""

from __future__ import annotations

from pathlib import Path

import click

from shoestring.cli import options


@click.command()
@options.run_path
@click.option("--to", "trackers", multiple=True, required=True, metavar="TRACKER", help="May be repeated.")
@options.output
def track(run: Path, trackers: tuple[str, ...], terminal: options.Terminal) -> options.Result:
    """Store the metrics of a run in trackers, afterwards.

    TRACKER is tensorboard, wandb or trackio. A run whose recipe has [track] to = ["wandb"] stores them while it trains.
    """
    from shoestring.core.errors import UserError
    from shoestring.core.run_folder import RunFolder
    from shoestring.core.schema import Registered
    from shoestring.core.units import counted
    from shoestring.track.trackers import copy_metrics

    for name in trackers:
        if problem := Registered("tracker").problem(name):
            raise UserError(f"--to {name}: {problem}")
    stored = copy_metrics(RunFolder.open(run).metrics, trackers, terminal.say)
    for name, lines in stored.items():
        terminal.say(f"{name}: {counted(lines, 'line')} of {run}")
    return {"run": str(run), "lines": stored}
