"""`shoestring evaluate`."""

from __future__ import annotations

from pathlib import Path

import click

from shoestring.cli import options
from shoestring.core.specs import CheckpointSpec


@click.command()
@options.run_path
@options.checkpoint
@click.option("--data", metavar="SOURCE", help="Another text to score, as text:PATH; read as the run's source is.")
@options.output
def evaluate(run: Path, checkpoint: CheckpointSpec, data: str | None, terminal: options.Terminal) -> options.Result:
    """Score a run on its held-out rows, or on another text.

    The run may be finished or still going; the baselines that only count are scored beside it.
    """
    from shoestring.core.run_folder import RunFolder
    from shoestring.runs.evaluate import evaluate_run

    folder = RunFolder.open(run)
    evaluation = evaluate_run(folder, checkpoint, data)
    if checkpoint == "last" and data is None:
        evaluation.write(folder.evaluation)
    terminal.evaluated(evaluation)
    return evaluation.to_dict()
