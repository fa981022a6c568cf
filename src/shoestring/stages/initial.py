"""The weights that a run starts from: those of another run, or a model of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from shoestring.core.errors import RecordError, RunError, StorageError, UserError
from shoestring.core.recipe import Model
from shoestring.core.run_folder import RunFolder
from shoestring.models import LanguageModel, hf
from shoestring.models.initial import differences, take_over
from shoestring.models.transformers_format import read_transformers
from shoestring.parallel.team import Team
from shoestring.train import sharded_checkpoint
from shoestring.train.checkpoint import Checkpoints, State, read


def start_from(model: LanguageModel, spec: Model, place: str) -> list[str]:
    """Give a network its first weights: of a run's newest whole checkpoint, or of a folder or name of transformers.

    Returns the names of the weights that stay random: of a BERT the head, where that is another one.
    """
    where = f'model.init = "{place}"'
    if RunFolder(Path(place).expanduser()).recipe.is_file():
        folder = RunFolder.open(Path(place).expanduser())
        recipe = folder.read_recipe()
        if recipe.hmm is not None:
            raise RunError(f"{where}: the run of an HMM, which has no weights")
        found, state = recipe.model, None
    elif isinstance(model, hf.HF):
        network = hf.load_stored(place, type(model.network))
        named = {f"{hf.PREFIX}{name}": value for name, value in network.named_parameters()}
        return take_over(model, named, where)
    else:
        folder, (found, state) = None, read_transformers(place)
    if lines := differences(spec, found):
        raise UserError("\n  ".join([f"{where}: weights of another network", *lines]))
    if state is None:
        assert folder is not None, "a run has the weights"
        state, _ = trained_weights(folder)
    return take_over(model, state, where)


def trained_weights(folder: RunFolder, checkpoint: str = "last") -> tuple[dict[str, Tensor], State]:
    """The weights that a run's scores are of, by name: their running means where it keeps them, else themselves.

    `checkpoint` is "last" (the newest whole one), "best" or a step.
    """
    checkpoints, damaged = Checkpoints(folder.checkpoints, keep=1), list[str]()
    for step in checkpoints.steps():
        try:
            tensors, state = _whole(checkpoints, step)
            break
        except StorageError as cause:
            damaged.append(str(cause))
    else:
        raise RunError("\n  ".join([f"{folder.path} has no whole checkpoint yet", *damaged]))
    wanted = state.best_step if checkpoint == "best" else state.step if checkpoint == "last" else _step(checkpoint)
    if wanted != state.step:
        if wanted not in checkpoints.steps():
            steps = ", ".join(map(str, reversed(checkpoints.steps())))
            raise RunError(f"{folder.path} has no checkpoint {checkpoint!r}; it has last, best, {steps}")
        tensors, state = _whole(checkpoints, wanted)
    if state.recipe != folder.read_recipe().fingerprint:
        raise RunError(f"{checkpoints.path(state.step)} belongs to another recipe than {folder.path}")
    found = {name.removeprefix("model/"): tensor for name, tensor in tensors.items() if name.startswith("model/")}
    means = {name.removeprefix("ema/"): tensor for name, tensor in tensors.items() if name.startswith("ema/")}
    return found | means, state


def _whole(checkpoints: Checkpoints, step: int) -> tuple[dict[str, Tensor], State]:
    """All tensors of a checkpoint, on the CPU, and its state; StorageError where it is damaged."""
    folder = checkpoints.parts(step)
    if not folder.is_dir():
        return read(checkpoints.path(step))
    try:
        text = sharded_checkpoint.check(folder, Team(0, 1, torch.device("cpu")))
        state = State.from_dict(json.loads(text), str(folder))
        return sharded_checkpoint.read(folder, {}), state
    except (OSError, KeyError, ValueError, RuntimeError, RecordError) as cause:
        raise StorageError(f"{folder}: damaged or not a checkpoint ({cause})") from cause


def _step(checkpoint: str) -> int:
    if not checkpoint.isdecimal():
        raise RunError(f'--checkpoint {checkpoint}: must be "last", "best" or a step')
    return int(checkpoint)
