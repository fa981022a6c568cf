"""A whole run in the terminal, for `train`, `demo` and `hmm fit`."""

from __future__ import annotations

from pathlib import Path

from shoestring.cli.options import Result
from shoestring.console.terminal import Terminal
from shoestring.core.clock import Clock
from shoestring.core.errors import ShoestringError
from shoestring.core.recipe import Recipe
from shoestring.core.schema import encode
from shoestring.runs.runner import run


def run_in_terminal(
    recipe: Recipe,
    terminal: Terminal,
    plan: Path | None = None,
    limit: float | None = None,
    clock: Clock | None = None,
    until: float | None = None,
) -> Result:
    """Run to the end or until interrupted, and print the plan against what happened."""
    try:
        finished = run(recipe, terminal, clock or Clock(), plan, limit, until)
    except ShoestringError as error:
        if _is_reported_elsewhere(error):
            raise SystemExit(error.exit_code) from None
        raise
    finally:
        terminal.close()
    if finished is None:
        return None
    terminal.finished(finished.plan, finished.outcome)
    terminal.verdicts(finished.outcome.verdicts)
    terminal.say(f"page: {finished.folder.report}")
    return {
        "run": str(finished.folder.path),
        "plan": finished.plan.to_dict(),
        "outcome": finished.outcome.to_dict(),
        "evaluation": finished.evaluation.to_dict(),
        "verdicts": encode(finished.outcome.verdicts),
    }


def _is_reported_elsewhere(error: ShoestringError) -> bool:
    """Whether another process raises the same error and reports it."""
    if error.__cause__ is None:
        return False
    from shoestring.parallel.process_group import ReportedElsewhere  # imports torch

    return isinstance(error.__cause__, ReportedElsewhere)
