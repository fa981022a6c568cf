"""`shoestring measure`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoestring.cli import options
from shoestring.core.units import counted

if TYPE_CHECKING:
    from shoestring.core.recipe import Recipe


@click.command()
@options.recipe_file
@options.overrides
@click.option("--fresh", is_flag=True, help="Measure again even if there is a profile.")
@click.option("--real", is_flag=True, help="Measure on rows of the recipe's own store, with the time to read them.")
@click.option("--estimate", is_flag=True, help="Estimate by counting, without using any device.")
@click.option("--gpu", metavar="NAME", help='With --estimate: a GPU, such as "NVIDIA A100-SXM4-80GB".')
@options.output
def measure(
    recipe: Path,
    overrides: tuple[str, ...],
    fresh: bool,
    real: bool,
    estimate: bool,
    gpu: str | None,
    terminal: options.Terminal,
) -> options.Result:
    """Measure this machine with a recipe's model.

    Finds bytes and seconds by batch on random tokens, the largest batches that fit, and how dense the corpus is. Trials
    run in child processes. The profile is kept for other runs of the same model on the same machine.
    """
    from shoestring.core import recipe_file
    from shoestring.core.errors import UserError
    from shoestring.core.run_folder import RunFolder
    from shoestring.runs.measure import Measuring, ensure_profile, measuring_seconds
    from shoestring.runs.settle import keep_choices, settled, speed_of_gpu

    loaded = recipe_file.load(recipe, overrides)
    if estimate:
        speed = None if gpu is None else speed_of_gpu(gpu)
        numbers, rows = _estimate(settled(loaded, RunFolder.of(loaded), speed=speed).recipe, gpu)
        terminal.table("Counted, not measured", ("", "value", "reason"), rows)
        return numbers
    if gpu is not None:
        raise UserError(f"--gpu {gpu}: a GPU that is not in this machine can only be estimated; add --estimate")
    folder = RunFolder.of(loaded)
    task = settled(loaded, folder)
    task.check(1)
    how = Measuring(seconds=measuring_seconds(loaded), thorough=True, real=real, fresh=fresh, here=True)
    with folder.lock(), folder.claiming(loaded):
        keep_choices(task, folder)
        profile = ensure_profile(task, folder, terminal, how)
    terminal.say(f"profile: {folder.profile}")
    return profile.to_dict()


def _estimate(recipe: Recipe, gpu: str | None) -> tuple[dict[str, Any], list[tuple[str, str, str]]]:
    """Memory and time by counting alone: the numbers for machines, and (quantity, value, reason) for people."""
    from shoestring.core.units import Bytes, Seconds, rate
    from shoestring.cost.gpus import find_gpu
    from shoestring.cost.memory import estimate_memory
    from shoestring.cost.seconds import estimate_seconds
    from shoestring.runs.prepare import vocabulary_of

    def summed(name: str, sizes: dict[str, int]) -> tuple[str, str, str]:
        parts = (f"{part} {Bytes(size).short()}" for part, size in sizes.items() if size)
        return name, Bytes(sum(sizes.values())).short(), ", ".join(parts)

    vocabulary = vocabulary_of(recipe)
    memory = estimate_memory(recipe, vocabulary, "cuda")
    needed = {batch: memory.device_bytes(batch) for batch in (1, recipe.batch)}
    reason = "on a GPU: allocated bytes, fragmentation of the allocator, the context"
    numbers: dict[str, Any] = {
        "gpu": gpu,
        "fixed_bytes": memory.fixed,
        "row_bytes": memory.per_row,
        "device_bytes": {str(batch): size for batch, size in needed.items()},
    }
    rows = [summed("fixed", memory.fixed), summed("per row", memory.per_row)]
    rows += [(f"batch {batch:,}", Bytes(needed[batch]).short(), reason) for batch in (1, recipe.batch)]
    if gpu is None:
        return numbers, rows
    known = find_gpu(gpu)
    if known is None:
        return numbers, [*rows, ("gpu", "unknown", f"{gpu} is not in the list, and nothing is guessed")]
    largest = memory.largest(known.memory_bytes)
    numbers |= {"gpu_bytes": known.memory_bytes, "largest": largest}
    rows += [
        ("gpu", Bytes(known.memory_bytes).short(), f"{gpu}, by its vendor"),
        (
            "largest batch",
            counted(largest, "row") if largest else "none",
            "in all its memory; shoestring measure verifies",
        ),
    ]
    batch = min(recipe.batch, largest) or 1
    seconds = estimate_seconds(recipe, vocabulary, gpu, batch)
    if seconds is None:
        return numbers, [*rows, ("pass", "unknown", "the peak of this GPU in the recipe's precision is not known")]
    numbers["seconds"] = {"rows": batch, "low": seconds.low, "expected": seconds.expected, "high": seconds.high}
    low, expected, high = (Seconds(value).short() for value in (seconds.low, seconds.expected, seconds.high))
    speed = rate(batch * recipe.data.length / seconds.expected, "positions/s")
    reason = f"{low} to {high}, by the share of the peak that other runs reached; {speed}"
    return numbers, [*rows, (f"pass of {counted(batch, 'row')}", expected, reason)]
