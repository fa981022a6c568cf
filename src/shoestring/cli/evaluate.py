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
@click.option(
    "--harness",
    metavar="TASKS",
    help="Tasks of lm-evaluation-harness: names, task files (YAML) or folders of these, with commas between.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first items of each --harness task.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.FIELD=VALUE",
    help="Score other rows: evaluate.context, evaluate.rows or evaluate.per_device; may be repeated.",
)
@click.option("--force", is_flag=True, help="Replace evaluation.json whatever it is of.")
@options.output
def evaluate(
    run: Path,
    checkpoint: CheckpointSpec,
    on: str | None,
    harness: str | None,
    limit: int | None,
    overrides: tuple[str, ...],
    force: bool,
    terminal: options.Terminal,
) -> options.Result:
    """Score a run on its held-out rows, on another text, on choices, or on tasks of lm-evaluation-harness.

    The run may be finished or still going; the baselines that only count are scored beside it. Scores of the best
    checkpoint on the held-out rows are recorded in evaluation.json; scores of another one with --force.

    With --set evaluate.context=192 rows overlap by 192 tokens, which are only context, and every token of the text is
    scored once if evaluate.rows is large enough. Published perplexities are of such windows. Nothing is recorded.

    A file of pairs or choices has JSON lines: minimal pairs as in BLiMP (sentence_good, sentence_bad), where
    the likelier one is preferred and a tie counts half; or context, choices and answer.

    Paths in a task file of --harness are relative to its folder; it may name functions, which are run.
    """
    from shoestring.core.errors import UserError
    from shoestring.core.recipe_file import parse_override
    from shoestring.core.run_folder import RunFolder
    from shoestring.runs.evaluate import evaluate_run

    folder = RunFolder.open(run)
    other = {"--on": on, "--harness": harness, "--force": force or None}
    if len(given := [name for name, value in other.items() if value is not None]) > 1:
        raise UserError(f"{given[0]} and {given[1]}: leave one of them out; --force is for scores of held-out rows")
    if limit is not None and harness is None:
        raise UserError("--limit: it is for the tasks of --harness")
    kind, _, place = (on or "").partition(":")
    if overrides and (harness is not None or force or kind in ("pairs", "choices")):
        raise UserError("--set: it is for scores of held-out rows or a text that are not recorded")
    if harness is not None:
        from shoestring.runs.harness import evaluate_harness

        tasks = [task.strip() for task in harness.split(",")]
        scores = evaluate_harness(folder, tasks, checkpoint, limit, terminal.say)
        terminal.harness_scores(scores)
        return scores.to_dict()
    if kind in ("pairs", "choices"):
        from shoestring.runs.preferences import KINDS, evaluate_preferences

        which = KINDS[KINDS.index(kind)]
        preferences = evaluate_preferences(folder, which, Path(place).expanduser(), checkpoint, terminal.say)
        terminal.preferred(preferences)
        return preferences.to_dict()
    recorded = force or (checkpoint == "best" and on is None and not overrides)
    values = dict(parse_override(text) for text in overrides)
    evaluation = evaluate_run(folder, checkpoint, on, terminal.say, force or not recorded, values)
    if recorded:
        folder.write(folder.evaluation, evaluation)
    terminal.evaluated(evaluation)
    return evaluation.to_dict()
