"""The model of a run: its weights, as first weights of another run or as a loaded network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from shoestring.core.errors import RunError, UserError
from shoestring.core.recipe import Recipe
from shoestring.core.run_folder import RunFolder, named_run
from shoestring.core.sections import Model
from shoestring.core.specs import CheckpointSpec
from shoestring.data.tokenize.tokenizers import Tokenizer, read_tokenizer, tokenizer_fingerprint
from shoestring.datasets.corpus import vocabulary
from shoestring.models.language_model import LanguageModel, build, differences, weights_of
from shoestring.models.tuning import merge_lora, tune
from shoestring.probe.machine import pick_device
from shoestring.runs.continued import Continued, continued_run
from shoestring.training.checkpoint import Checkpoints, State
from shoestring.training.learner import Learner

if TYPE_CHECKING:
    from shoestring.hmm.parameters import Saved

CPU = torch.device("cpu")
BEST = CheckpointSpec("best")
"""What a run delivers."""
Say = Callable[[str], object]
"""Takes a line for people, such as which damaged checkpoint is left out."""


def silent(_: str) -> None: ...


def trained_weights(
    folder: RunFolder, checkpoint: CheckpointSpec = BEST, say: Say = silent
) -> tuple[dict[str, Tensor], State]:
    """The weights that a run's scores belong to, by name: their running means where it keeps them."""
    folder.check_records(folder.recipe, folder.choices)
    opened = Checkpoints(folder.checkpoints, keep=1).find(checkpoint, folder.path, say)
    if opened.state.recipe != folder.read_recipe().fingerprint:
        raise RunError(f"{opened.path} belongs to another recipe than {folder.path}")
    tensors = opened.read({})
    kinds = [
        {name.removeprefix(kind): tensor for name, tensor in tensors.items() if name.startswith(kind)}
        for kind in ("model/", "ema/")
    ]
    return kinds[0] | kinds[1], opened.state


def start_from(model: LanguageModel, spec: Model, place: str, say: Say = silent) -> list[str]:
    """Give a network its first weights: of a run's best checkpoint (RUN#last: its last, RUN#STEP: that of a step), or
    of a folder or name of transformers.

    Returns the names of the weights that stay random, such as a BERT's head where the stored head differs.
    """
    where = f'model.init = "{place}"'
    run, checkpoint = named_run(place, BEST)
    if RunFolder(run).recipe.is_file():
        folder = RunFolder.open(run)
        recipe = folder.read_recipe()
        recipe.need_network(f"{where}: the run of an HMM, which has no weights")
        _refuse_others(where, spec, recipe.model)
        return model.take_over(_merged_weights(folder, recipe, checkpoint, say), where)
    if model.pretrained is not None:
        from shoestring.models.families.hf import network as hf

        stored = hf.load_stored(place, type(model.pretrained))
        named = {f"{hf.PREFIX}{name}": value for name, value in weights_of(stored).items()}
        return model.take_over(named, where)
    from shoestring.models.transformers_format import read_transformers

    stored_spec, state = read_transformers(place)
    _refuse_others(where, spec, stored_spec)
    return model.take_over(state, where)


def _merged_weights(folder: RunFolder, recipe: Recipe, checkpoint: CheckpointSpec, say: Say) -> dict[str, Tensor]:
    """The weights of a run, with its adapters merged."""
    if recipe.lora is None:
        return trained_weights(folder, checkpoint, say)[0]
    return {name: value.detach() for name, value in weights_of(load_run(folder, checkpoint, CPU, say).model).items()}


def continue_run(learner: Learner, recipe: Recipe, say: Say = silent) -> Continued:
    """Give a learner the weights and the optimizer of the run of `model.init`."""
    found, where = continued_run(recipe, say), f'model.init = "{recipe.model.init}"'
    other, opened = found.recipe, found.opened
    _refuse_others(where, recipe.model, other.model)
    wanted = learner.saved_tensors().keys()
    if recipe.train.optimizer != other.train.optimizer:
        raise UserError(f'{where}: a run with train.optimizer = "{other.train.optimizer}" is continued with that one')
    if missing := sorted(wanted - opened.shapes.keys()):
        raise UserError(
            f"{where}: {opened.path} has no {missing[0]}; train.ema and train.precision must be those of that run, and "
            f"so must what Muon keeps: train.normalize_neurons and train.momentum_warmup"
        )
    if wrong := learner.misfits(opened.shapes):
        raise UserError(
            f"{where}: {opened.path} does not fit the recipe's model: {wrong[0]} has another shape; the vocabulary "
            f"must be that of {found.folder.path}"
        )
    learner.put_tensors(opened.read({name: learner.placement(name) for name in wanted}))
    say(f"continues {found.folder.path} after step {opened.state.step:,}")
    return found


def check_tokenizer(recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Raise an error if the ids of a text mean other words to the run whose weights are taken over."""
    file = RunFolder(named_run(recipe.model.init or "", BEST)[0]).tokenizer
    if recipe.model.init is None or not file.is_file():
        return
    if tokenizer_fingerprint(read_tokenizer(file)) != tokenizer_fingerprint(tokenizer):
        raise UserError(
            f'model.init = "{recipe.model.init}": that run has another tokenizer, so its ids mean other words; take '
            f'data.tokenizer = "file:{file}"'
        )


def _refuse_others(where: str, spec: Model, stored: Model) -> None:
    if lines := differences(spec, stored):
        raise UserError("\n  ".join([f"{where}: weights of another network", *lines]))


class LoadedRun(NamedTuple):
    """A trained network with its recipe and tokenizer."""

    model: LanguageModel
    recipe: Recipe
    tokenizer: Tokenizer
    step: int


def load_run(
    folder: RunFolder,
    checkpoint: CheckpointSpec = BEST,
    device: torch.device | None = None,
    say: Say = silent,
    merged: bool = True,
) -> LoadedRun:
    """The network of a run's checkpoint, without dropout, on a device (default: the GPU where there is one).

    Unless `merged`, its adapters stay apart.
    """
    folder.check_records(folder.recipe, folder.choices, folder.tokenizer)
    recipe = folder.read_recipe()
    recipe.need_network(f"{folder.path} is the run of an HMM, not of a network")
    if not folder.tokenizer.is_file():
        raise RunError(f"{folder.path} has no {folder.tokenizer.name} yet: it has not begun to train")
    tokenizer = read_tokenizer(folder.tokenizer)
    weights, state = trained_weights(folder, checkpoint, say)
    model = build(recipe.model, vocabulary(recipe, tokenizer), recipe.data.length, 0)
    if recipe.lora is not None:
        tune(model, recipe, 0)
    model.take_over(weights, str(folder.path))
    if recipe.lora is not None and merged:
        merge_lora(model)
    return LoadedRun(model.to(device or pick_device()).eval(), recipe, tokenizer, state.step)


def load_hmm(folder: RunFolder) -> Saved:
    """The fitted model of an HMM's run."""
    from shoestring.hmm.parameters import load

    if folder.read_recipe().kind != "hmm":
        raise RunError(f"{folder.path} holds no fitted HMM: it is the run of a network")
    if not folder.model.is_file():
        raise RunError(f"{folder.path} holds no fitted HMM yet: it has no {folder.model.name}")
    return load(folder.model)


def alphabet_of(saved: Saved) -> tuple[str, ...]:
    """The words of a model's symbols, or their numbers where it names none."""
    return saved.alphabet or tuple(map(str, range(saved.parameters.symbols)))


def read_hmm(path: Path) -> Saved:
    """The HMM of a run folder, or of a model file."""
    from shoestring.hmm.parameters import load

    if path.is_dir() or not path.exists():
        return load_hmm(RunFolder.open(path))
    return load(path)
