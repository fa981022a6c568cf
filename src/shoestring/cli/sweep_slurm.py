"""What `shoestring sweep` does with --slurm and --sbatch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoestring.cli import options

if TYPE_CHECKING:
    from shoestring.cli.sweep import Asked
    from shoestring.studies.sweep.survey import Survey


def check_slurm(asked: Asked) -> dict[str, str | None]:
    """The options of sbatch; raises UserError where the sweep cannot run on Slurm."""
    import shutil

    from shoestring.core.errors import UserError
    from shoestring.planning.sbatch_array import parse_options
    from shoestring.runs.estimate import known_gpu

    way = "--slurm" if asked.slurm else "--sbatch"
    if asked.halving is not None:
        raise UserError(f"{way} and --halving: an array takes every run to its end; leave one of them out")
    if asked.time is not None:
        raise UserError(f"{way} and --time: a limit of each run is --slurm-option time=4:00:00; leave --time out")
    if asked.slurm and shutil.which("sbatch") is None:
        raise UserError("--slurm: there is no sbatch here; --sbatch writes the scripts, to be submitted elsewhere")
    if asked.gpu is not None:
        known_gpu(asked.gpu)
    return parse_options(asked.slurm_options)


def on_slurm(found: Survey, asked: Asked, given: dict[str, str | None], terminal: options.Terminal) -> dict[str, Any]:
    """Write the scripts, and submit them where that is asked for."""
    from shoestring.studies.sweep import slurm
    from shoestring.studies.sweep.survey import keep

    on_gpu = bool(found.slots.gpus) or asked.gpu is not None
    wanted = slurm.Asked(
        at_once=asked.at_once, nodes=asked.nodes, processes=asked.processes, on_gpu=on_gpu, options=given
    )
    with found.folder.lock():
        for line in keep(found):
            terminal.say(line)
        script = slurm.write_scripts(found, wanted)
        terminal.say(slurm.submit(script) if asked.slurm else f"submit with: bash {script}")
    if asked.slurm:
        terminal.say(f"see shoestring sweep status {found.folder.path}")
    if found.grid.sweep.then is not None:
        terminal.say(
            f"{found.grid.sweep.then} is not submitted: it may need what these runs make; sweep it when they are done"
        )
    return {"submit": str(script)}
