"""Profiles as if a machine had been measured, for tests of what comes after: measuring takes a process and seconds."""

from __future__ import annotations

from pathlib import Path

from shoestring.core.recipe_file import load, replaced
from shoestring.core.records import Cost, Density, Machine, Point, Profile
from shoestring.core.run_folder import RunFolder
from shoestring.runs.task import task_of

MACHINE = Machine(device="cpu", device_name="x", threads=2, memory_bytes=None, system="x", python="3.11", versions={})


def write_profile(recipe: Path, *settings: str) -> Profile:
    """In the folder of the run of this recipe with these settings, which lies beside the recipe."""
    made = replaced(load(recipe, settings), {"train.weight_decay": 0.1})  # no cost of a step depends on it
    profile = Profile(
        machine=MACHINE,
        workload=task_of(made).workload,
        length=made.data.length,
        points=tuple(
            Point(batch=rows, seconds=0.01 + 0.002 * rows, slowest_seconds=0.1, peak_bytes=rows * 10**8)
            for rows in (1, 2, 4)
        ),
        setup_seconds=2.0,
        update_seconds=0.01,
        validate_seconds_per_row=0.001,
        checkpoint_seconds=0.05,
        checkpoint_bytes=100_000,
        available_bytes=10**9,
        stopped="there was no larger one",
        cost=Cost(parameters={"all": 10_000}, forward_flops_per_token=20_000.0),
        density=Density(documents=100, text_bytes=60_000, tokens=16_000, seconds=0.1, total_documents=None),
    )
    profile.write(recipe.parent / RunFolder.of(made).profile)
    return profile
