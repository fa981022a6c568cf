"""A whole run in the terminal, for `train` and `demo`."""

from __future__ import annotations

from pathlib import Path

from shoestring.cli.terminal import Terminal, print_json
from shoestring.core.clock import Clock
from shoestring.core.recipe import Recipe
from shoestring.stages.train import run


def run_in_terminal(recipe: Recipe, as_json: bool, plan: Path | None = None) -> None:
    """Run to the end, or until interrupted, and say what came of it."""
    terminal = Terminal(to_stderr=as_json)
    try:
        finished = run(recipe, terminal, Clock(), plan)
    finally:
        terminal.close()
    terminal.finished(finished.plan, finished.outcome)
    terminal.say(f"page: {finished.folder.report}")
    if as_json:
        print_json(
            {
                "run": str(finished.folder.path),
                "plan": finished.plan.to_dict(),
                "outcome": finished.outcome.to_dict(),
                "evaluation": finished.evaluation.to_dict(),
            }
        )
