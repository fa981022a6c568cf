"""What `law isoflop` reads and shows: budgets, sizes and runs of equal compute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.cli import options

if TYPE_CHECKING:
    from shoestring.core.units import Interval
    from shoestring.studies.isoflop import Designed


def flops_list(text: str) -> list[float]:
    from shoestring.core.errors import UserError
    from shoestring.core.units import Flops, amount

    try:
        amounts = [float(amount(Flops, part)) for part in text.split(",")]
    except ValueError as cause:
        raise UserError(f"--flops {text}: {cause}") from cause
    if min(amounts) <= 0:
        raise UserError(f"--flops {text}: must be above zero")
    return amounts


def print_design(
    designed: list[Designed], times: list[Interval | None], how: str, convention: str, terminal: options.Terminal
) -> None:
    """Print what each size and each run costs."""
    from shoestring.core.units import Count, Flops, Seconds

    sizes = {(made.recipe.model.width, made.recipe.model.layers): made for made in designed}
    costs = [
        (
            f"{width}x{layers}",
            *(Count(value).short() for value in (made.params, made.params_no_embeddings)),
            *(Flops(value).short() for value in (made.flops_per_prediction, made.exact_per_prediction)),
        )
        for (width, layers), made in sizes.items()
    ]
    head = ("size", "parameters", "no embeddings", f"per token, {convention}", "exact")
    shown = len(head) - (convention == "exact")  # the last two columns would be equal
    terminal.table("Sizes", head[:shown], [row[:shown] for row in costs])
    rows = [
        (
            made.recipe.run.name,
            Flops(made.flops).short(),
            Count(made.tokens).short(),
            f"{made.tokens_per_parameter:.3g}",
            f"{made.steps:,}",
            "unknown" if time is None else time.show(lambda value: Seconds(value).short()),
        )
        for made, time in zip(designed, times)
    ]
    terminal.table("Runs of equal compute", ("run", "FLOPs", "tokens", "per parameter", "steps", "time"), rows)
    known = [time.expected for time in times if time is not None]
    terminal.say(f"{Seconds(sum(known)).short()} in all; {how}" if known else f"time: {how}")


def design_json(made: Designed, file: Path, time: Interval | None) -> dict[str, Any]:
    model = made.recipe.model
    return {
        "recipe": str(file),
        "name": made.recipe.run.name,
        **{name: getattr(model, name) for name in ("width", "layers", "heads")},
        **{name: getattr(made, name) for name in ("params", "params_no_embeddings", "flops", "exact_flops")},
        "flops_per_token": made.flops_per_prediction,
        "exact_flops_per_token": made.exact_per_prediction,
        "tokens": made.tokens,
        "steps": made.steps,
        "warmup": made.recipe.train.warmup,
        "evaluate_every": made.recipe.evaluate.every,
        "seconds": None if time is None else time._asdict(),
    }
