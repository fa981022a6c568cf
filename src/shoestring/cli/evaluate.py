"""`shoestring evaluate`."""

from __future__ import annotations

from pathlib import Path

import click

from shoestring.cli import options
from shoestring.core.specs import CheckpointSpec


@click.command()
@options.run_path
@options.checkpoint
@click.option(
    "--on",
    "--data",
    "on",
    metavar="SOURCE",
    help="What to score instead: text:PATH (read as the run's source is), pairs:FILE or choices:FILE.",
)
@click.option("--force", is_flag=True, help="Replace evaluation.json whatever it is of.")
@options.output
def evaluate(
    run: Path, checkpoint: CheckpointSpec, on: str | None, force: bool, terminal: options.Terminal
) -> options.Result:
    """Score a run on its held-out rows, on another text, or on choices.

    The run may be finished or still going; the baselines that only count are scored beside it. Scores of the best
    checkpoint on the held-out rows are recorded in evaluation.json; scores of another one with --force.

    A file of pairs or choices has JSON lines: minimal pairs as in BLiMP (sentence_good, sentence_bad), where
    the likelier one is preferred and a tie counts half; or context, choices and answer.
    """
    from shoestring.core.errors import UserError
    from shoestring.core.run_folder import RunFolder
    from shoestring.runs.evaluate import evaluate_run

    folder = RunFolder.open(run)
    if force and on is not None:
        raise UserError("--force and --on: scores of something else are not recorded; leave one of them out")
    kind, _, place = (on or "").partition(":")
    if kind in ("pairs", "choices"):
        from shoestring.runs.preferences import KINDS, evaluate_preferences

        which = KINDS[KINDS.index(kind)]
        preferences = evaluate_preferences(folder, which, Path(place).expanduser(), checkpoint, terminal.say)
        terminal.preferred(preferences)
        return preferences.to_dict()
    recorded = force or (checkpoint == "best" and on is None)
    evaluation = evaluate_run(folder, checkpoint, on, terminal.say, replaces=force or not recorded)
    if recorded:
        folder.write(folder.evaluation, evaluation)
    terminal.evaluated(evaluation)
    return evaluation.to_dict()
