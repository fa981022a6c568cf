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
@click.option("--adapter", is_flag=True, help="Only the adapters of [lora], as a folder that peft loads.")
@options.output
def export(
    run: Path, folder: Path, checkpoint: CheckpointSpec, adapter: bool, terminal: options.Terminal
) -> options.Result:
    """Write a run's model as a new folder that transformers loads.

    Adapters are merged, unless --adapter writes them alone. Where the run keeps a running mean of the weights
    (train.ema), the mean is written.
    """
    from shoestring.core.run_folder import RunFolder
    from shoestring.runs.export import export_adapter, export_run

    if adapter:
        made = export_adapter(RunFolder.open(run), folder, checkpoint, terminal.say)
        what = f"adapters of {counted(made.layers, 'layer')}, {counted(made.parameters, 'parameter')}"
        terminal.say(f"{made.folder}: {what}, after step {made.step:,}; base: {made.base}")
        return made.to_dict()
    done = export_run(RunFolder.open(run), folder, checkpoint, terminal.say)
    terminal.say(
        f"{done.folder}: {done.architecture}, {counted(done.parameters, 'parameter')}, after step {done.step:,}"
    )
    without = "without a tokenizer: transformers cannot read this kind"
    terminal.say(f"with the tokenizer {done.tokenizer}" if done.tokenizer else without)
    return done.to_dict()
