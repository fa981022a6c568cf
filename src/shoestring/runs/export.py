"""Export a trained run as a folder for `transformers`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from shoestring.core.errors import RunError
from shoestring.core.files import sweep
from shoestring.core.run_folder import RunFolder
from shoestring.core.schema import Record
from shoestring.core.specs import CheckpointSpec
from shoestring.data.tokenize.tokenizers import Tokenizer
from shoestring.datasets.corpus import vocabulary
from shoestring.models.transformers_format import format_of, save_transformers
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
        format_of(recipe.model)  # raises an error where there is no counterpart
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
