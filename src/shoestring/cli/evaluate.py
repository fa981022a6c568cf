"""`shoestring evaluate`."""

from __future__ import annotations

from pathlib import Path

import click

from shoestring.cli import options
from shoestring.core.specs import CheckpointSpec


@click.command()
@options.run_path
@options.checkpoint
@options.output
def evaluate(run: Path, checkpoint: CheckpointSpec, terminal: options.Terminal) -> options.Result:
    """Score a run on its held-out rows.

    The run may be finished or still going; the baselines that only count are scored beside it.
    """
    from shoestring.core.run_folder import RunFolder
    from shoestring.runs.evaluate import evaluate_run

    folder = RunFolder.open(run)
    evaluation = evaluate_run(folder, checkpoint)
    if checkpoint == "last":
        evaluation.write(folder.evaluation)
    terminal.evaluated(evaluation)
    return evaluation.to_dict()
