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
@click.option("--force", is_flag=True, help="Replace evaluation.json whatever it is of.")
@options.output
def evaluate(
    run: Path, checkpoint: CheckpointSpec, data: str | None, force: bool, terminal: options.Terminal
) -> options.Result:
    """Score a run on its held-out rows, or on another text.

    The run may be finished or still going; the baselines that only count are scored beside it. Scores of the best
    checkpoint on the held-out rows are recorded in evaluation.json; scores of another one with --force.
    """
    from shoestring.core.errors import UserError
    from shoestring.core.run_folder import RunFolder
    from shoestring.runs.evaluate import evaluate_run

    folder = RunFolder.open(run)
    if force and data is not None:
        raise UserError("--force and --data: scores of another text are not recorded; leave one of them out")
    recorded = force or (checkpoint == "best" and data is None)
    evaluation = evaluate_run(folder, checkpoint, data, terminal.say, replaces=force or not recorded)
    if recorded:
        folder.write(folder.evaluation, evaluation)
    terminal.evaluated(evaluation)
    return evaluation.to_dict()
