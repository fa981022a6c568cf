"""`shoestring demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoestring.cli.options import AsJson, Overrides, Verbose


def demo(
    overrides: Overrides = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove the last demo and start anew.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """The whole way on the built-in stories, in two minutes.

    Measures the machine, plans, prepares, trains, evaluates and writes a page. A demo that was cut goes on; one that is
    finished is shown again.
    """
    import shutil
    from importlib import resources

    from shoestring.cli.running import run_in_terminal
    from shoestring.core import recipe_file
    from shoestring.core.run_folder import RunFolder

    name = "demo_gpu.toml" if _has_gpu() else "demo.toml"
    with resources.as_file(resources.files("shoestring.recipes")) as folder:
        recipe = recipe_file.load(folder / name, overrides or ())
    run = RunFolder.of(recipe)
    if fresh and run.path.is_dir():
        with RunFolder.open(run.path).lock():
            shutil.rmtree(run.path)
    run_in_terminal(recipe, as_json)


def _has_gpu() -> bool:
    """Whether torch can use a GPU; torch is asked only where there is a driver, since importing it takes seconds."""
    if not Path("/proc/driver/nvidia/version").exists() and not Path("/dev/nvidiactl").exists():
        return False
    from shoestring.probe.machine import pick_device

    return pick_device().type == "cuda"
