"""`shoestring export`."""

from __future__ import annotations

from pathlib import Path

import click

from shoestring.cli import options
from shoestring.core.specs import CheckpointSpec
from shoestring.core.units import counted


@click.command()
@options.run_path
@click.argument("folder", type=options.PATH, metavar="FOLDER")
@options.checkpoint
@options.output
def export(run: Path, folder: Path, checkpoint: CheckpointSpec, terminal: options.Terminal) -> options.Result:
    """Write a run's model as a new folder that transformers loads.

    Where the run keeps a running mean of the weights (train.ema), the mean is written.
    """
    from shoestring.core.run_folder import RunFolder
    from shoestring.runs.export import export_run

    done = export_run(RunFolder.open(run), folder, checkpoint, terminal.say)
    terminal.say(
        f"{done.folder}: {done.architecture}, {counted(done.parameters, 'parameter')}, after step {done.step:,}"
    )
    without = "without a tokenizer: transformers cannot read this kind"
    terminal.say(f"with the tokenizer {done.tokenizer}" if done.tokenizer else without)
    return done.to_dict()
