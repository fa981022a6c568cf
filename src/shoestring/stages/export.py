"""Export: a trained run as a folder of `transformers`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from shoestring.core.errors import RunError, ShoestringError
from shoestring.core.facts import Plan
from shoestring.core.recipe import Recipe
from shoestring.core.records import Record
from shoestring.core.run_folder import RunFolder
from shoestring.data.prepare import store_folder
from shoestring.data.store import StorePaths
from shoestring.data.tokenizers import Tokenizer, read_tokenizer
from shoestring.models import build
from shoestring.models.initial import take_over
from shoestring.models.transformers_format import architecture, save_transformers
from shoestring.stages.initial import trained_weights
from shoestring.stages.prepare import planned_documents


@dataclass(frozen=True, kw_only=True)
class Exported(Record):
    """What was written."""

    SCHEMA: ClassVar[str] = "shoestring.export/1"

    folder: str
    architecture: str
    """The class of transformers that it is for."""
    step: int
    parameters: int
    tokenizer: str | None
    """The tokenizer that lies there too; None where transformers cannot read it, or its store is gone."""


def export_run(folder: RunFolder, target: Path, checkpoint: str = "last") -> Exported:
    """Write the weights of a run's checkpoint, or their running means where the run keeps them, to a new folder.

    `checkpoint` is "last", "best" or a step. Nothing but the run itself is needed; a subword tokenizer is written too
    if the run's store is there.
    """
    recipe = folder.read_recipe()
    if recipe.hmm is not None:
        raise RunError(f"{folder.path}: the run of an HMM, for which transformers has no class")
    if recipe.model.family != "hf":
        architecture(recipe.model)
    if target.exists():
        raise RunError(f"{target} exists already; choose another folder")
    weights, state = trained_weights(folder, checkpoint)
    vocab_size = len(weights["embedding.weight"]) if recipe.model.family != "hf" else 0  # which has a table of its own
    model = build(recipe.model, vocab_size, recipe.data.length, 0)
    take_over(model, weights, str(folder.path))
    tokenizer = _tokenizer(recipe, folder)
    files = _tokenizer_files(tokenizer, recipe.data.length)
    end = None if tokenizer is None else tokenizer.end
    name = save_transformers(model, recipe.model, vocab_size, recipe.data.length, target, end=end, files=files)
    return Exported(
        folder=str(target),
        architecture=name,
        step=state.step,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        tokenizer=recipe.data.tokenizer if files else None,
    )


def _tokenizer(recipe: Recipe, folder: RunFolder) -> Tokenizer | None:
    """Of the store that the run was trained on, where it is still there."""
    if recipe.data.stream is not None:
        return None
    kind, _, given = recipe.data.source.partition(":")
    try:
        documents = planned_documents(recipe, Plan.read(folder.plan))
        place = Path(given) if kind == "store" else store_folder(recipe.data, recipe.run.seed, documents)
        return read_tokenizer(StorePaths(place).tokenizer)
    except (ShoestringError, OSError):
        return None


def _tokenizer_files(tokenizer: Tokenizer | None, length: int) -> dict[str, str]:
    """Files that `AutoTokenizer` reads: those of subwords, as they lie in the store; none of our own kinds."""
    values: dict[str, Any] = {} if tokenizer is None else tokenizer.to_dict()
    if values.get("spec") != "subwords":
        return {}
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_str(values["json"])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": length}
    names = {"eos_token": values["end"], "mask_token": values["mask"]}
    config |= {name: backend.id_to_token(index) for name, index in names.items() if index is not None}
    return {"tokenizer.json": values["json"], "tokenizer_config.json": json.dumps(config, indent=2) + "\n"}
