"""A whole run in the terminal, for `train` and `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoestring.cli.terminal import Terminal, print_json
from shoestring.core.clock import Clock
from shoestring.core.errors import ShoestringError
from shoestring.core.recipe import Recipe
from shoestring.stages.train import Finished, run


def run_in_terminal(recipe: Recipe, as_json: bool, plan: Path | None = None, limit: float | None = None) -> None:
    """Run to the end, or until interrupted, and say what came of it."""
    terminal = Terminal(to_stderr=as_json)
    try:
        finished = run(recipe, terminal, Clock(), plan, limit)
    except ShoestringError as error:
        if _is_told_elsewhere(error):
            raise SystemExit(error.exit_code) from None
        raise
    finally:
        terminal.close()
    if finished is None:  # another process tells
        return
    told = print_finished(terminal, finished)
    if as_json:
        print_json(told)


def _is_told_elsewhere(error: ShoestringError) -> bool:
    """Whether another process meets the same error, and tells of it."""
    if error.__cause__ is None:
        return False
    from shoestring.parallel.team import Elsewhere  # with torch

    return isinstance(error.__cause__, Elsewhere)


def print_finished(terminal: Terminal, finished: Finished) -> dict[str, Any]:
    """Plan against actual for people, and everything for machines."""
    terminal.finished(finished.plan, finished.outcome)
    terminal.say(f"page: {finished.folder.report}")
    return {
        "run": str(finished.folder.path),
        "plan": finished.plan.to_dict(),
        "outcome": finished.outcome.to_dict(),
        "evaluation": finished.evaluation.to_dict(),
    }
