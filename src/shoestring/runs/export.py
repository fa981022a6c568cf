"""Export a trained run as a folder for `transformers`, or its adapters for `peft`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from shoestring.core.errors import RunError
from shoestring.core.family import family_of
from shoestring.core.files import sweep
from shoestring.core.run_folder import RunFolder, named_run
from shoestring.core.schema import Record
from shoestring.core.specs import CheckpointSpec
from shoestring.data.tokenize.tokenizers import Tokenizer
from shoestring.datasets.corpus import vocabulary
from shoestring.models.peft_format import save_adapter
from shoestring.models.transformers_format import format_of, refused_formats, save_transformers
from shoestring.runs.trained_model import BEST, load_run


@dataclass(frozen=True, kw_only=True)
class Exported(Record):
    """What was written."""

    SCHEMA: ClassVar[str] = "shoestring.export/1"

    folder: str
    architecture: str
    """The transformers class that loads it."""
    step: int
    parameters: int
    tokenizer: str | None
    """The tokenizer that was written too; None where transformers cannot read it."""


def export_run(
    folder: RunFolder, target: Path, checkpoint: CheckpointSpec = BEST, say: Callable[[str], object] = lambda _: None
) -> Exported:
    """Write a run's weights (their running means where it keeps them) and a subword tokenizer to a new folder."""
    recipe = folder.read_recipe()
    recipe.need_network(f"{folder.path}: the run of an HMM; transformers has no class for it")
    ours = recipe.model.name is None
    if ours:
        form = format_of(recipe.model)  # raises an error where there is no counterpart
        for line in refused_formats(recipe.model):
            say(line)
        if form.code is not None:
            say(f"its class is in {form.code.name} there: from_pretrained needs trust_remote_code=True")
    sweep(target.parent)
    if target.exists():
        raise RunError(f"{target} already exists; choose another folder")
    loaded = load_run(folder, checkpoint, torch.device("cpu"), say)
    model, tokenizer, length = loaded.model, loaded.tokenizer, recipe.data.length
    files = _tokenizer_files(tokenizer, length)
    vocab_size = vocabulary(recipe, tokenizer)
    name = save_transformers(model, recipe.model, vocab_size, length, target, end=tokenizer.end, files=files)
    return Exported(
        folder=str(target),
        architecture=name,
        step=loaded.step,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        tokenizer=recipe.data.tokenizer if files else None,
    )


@dataclass(frozen=True, kw_only=True)
class ExportedAdapter(Record):
    """What was written for peft."""

    SCHEMA: ClassVar[str] = "shoestring.adapter/1"

    folder: str
    base: str
    """The folder or hub name that it changes."""
    step: int
    layers: int
    """That have an adapter in transformers."""
    parameters: int


def export_adapter(
    folder: RunFolder, target: Path, checkpoint: CheckpointSpec = BEST, say: Callable[[str], object] = lambda _: None
) -> ExportedAdapter:
    """Write the adapters of a run alone to a new folder that peft loads beside the base."""
    recipe = folder.read_recipe()
    recipe.need_network(f"{folder.path}: the run of an HMM, which has no adapters")
    if recipe.lora is None:
        raise RunError(f"{folder.path} has no adapters: its recipe has no [lora]; export it without --adapter")
    base = recipe.model.init or recipe.model.name
    if base is None:
        raise RunError(f"{folder.path}: its base has random weights, which no folder holds; export without --adapter")
    if recipe.model.name is None:
        format_of(recipe.model)  # raises an error where there is no counterpart
    sweep(target.parent)
    if target.exists():
        raise RunError(f"{target} already exists; choose another folder")
    loaded = load_run(folder, checkpoint, torch.device("cpu"), say, merged=False)
    if RunFolder(named_run(base, BEST)[0]).recipe.is_file():
        say(f"its base is a run: peft needs it as a folder of transformers: shoestring export {base} FOLDER")
    causal = not family_of(recipe.model).predicts_hidden(recipe.model)
    layers = save_adapter(loaded.model, recipe.model, recipe.lora, base, target, causal=causal)
    parameters = sum(p.numel() for p in loaded.model.parameters() if p.requires_grad)
    return ExportedAdapter(folder=str(target), base=base, step=loaded.step, layers=layers, parameters=parameters)


def _tokenizer_files(tokenizer: Tokenizer, length: int) -> dict[str, str]:
    """Files that `AutoTokenizer` reads: of a subword tokenizer; empty for our own kinds."""
    values: dict[str, Any] = tokenizer.to_dict()
    if values.get("spec") != "subwords":
        return {}
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_str(values["json"])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": length}
    names = {"eos_token": values["end"], "mask_token": values["mask"]}
    config |= {name: backend.id_to_token(index) for name, index in names.items() if index is not None}
    return {"tokenizer.json": values["json"], "tokenizer_config.json": json.dumps(config, indent=2) + "\n"}
