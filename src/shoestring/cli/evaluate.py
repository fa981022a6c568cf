"""`shoestring evaluate`."""

from __future__ import annotations

from typing import Annotated

import typer

from shoestring.cli.options import AsJson, RunPath, Verbose


def evaluate(
    run: RunPath,
    checkpoint: Annotated[str, typer.Option(help='"last", "best" or a step.')] = "last",
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Score a run on its held-out rows.

    The run may be finished or still going; the strategies that only count are scored beside it.
    """
    from shoestring.cli.terminal import Terminal, print_json
    from shoestring.core.run_folder import RunFolder
    from shoestring.stages.evaluate import evaluate_run

    folder, terminal = RunFolder.open(run), Terminal(to_stderr=as_json)
    evaluation = evaluate_run(folder, checkpoint)
    if checkpoint == "last":
        evaluation.write(folder.evaluation)
    terminal.evaluated(evaluation)
    if as_json:
        print_json(evaluation.to_dict())
