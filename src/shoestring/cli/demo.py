"""`shoestring demo`."""

from __future__ import annotations

from pathlib import Path

import click

from shoestring.cli import options


@click.command()
@options.overrides
@click.option("--fresh", is_flag=True, help="Remove the last demo and start again.")
@options.output
def demo(overrides: tuple[str, ...], fresh: bool, terminal: options.Terminal) -> options.Result:
    """Run everything once, on built-in stories, in two minutes.

    Measures the machine, plans, prepares, trains, evaluates and writes a page. An interrupted demo is resumed; a
    finished one is shown again.
    """
    from importlib import resources

    from shoestring.cli.running import run_in_terminal
    from shoestring.core import recipe_file
    from shoestring.core.files import discard
    from shoestring.core.run_folder import RunFolder

    name = "demo_gpu.toml" if _has_gpu() else "demo.toml"
    with resources.as_file(resources.files("shoestring.recipes")) as folder:
        recipe = recipe_file.load(folder / name, overrides)
    run = RunFolder.of(recipe)
    if fresh and run.path.is_dir():
        with RunFolder.open(run.path).lock():
            discard(run.path)
    return run_in_terminal(recipe, terminal)


def _has_gpu() -> bool:
    """Whether torch can use a GPU. Without a driver torch is not imported, which would take seconds."""
    if not Path("/proc/driver/nvidia/version").exists() and not Path("/dev/nvidiactl").exists():
        return False
    from shoestring.probe.machine import pick_device

    return pick_device().type == "cuda"
