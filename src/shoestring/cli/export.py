"""`shoestring export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoestring.cli.options import AsJson, RunPath, Verbose


def export(
    run: RunPath,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder to make.", show_default=False)],
    checkpoint: Annotated[str, typer.Option(help='"last", "best" or a step.')] = "last",
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Write a run's model as a folder that transformers loads.

    Where the run keeps a running mean of the weights (train.ema), that is what is written.
    """
    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.core.run_folder import RunFolder
    from shoestring.stages.export import export_run

    terminal = Terminal(to_stderr=as_json)
    done = export_run(RunFolder.open(run), folder, checkpoint)
    terminal.say(f"{done.folder}: {done.architecture}, {done.parameters:,} parameters, after step {done.step:,}")
    without = "without a tokenizer: it is none of transformers, or its store is gone"
    terminal.say(f"with the tokenizer {done.tokenizer}" if done.tokenizer else without)
    if as_json:
        print_json(done.to_dict())
