"""Our networks as folders that `transformers` loads, and its weights as ours.

    config.json         the same network as a config of transformers
    model.safetensors   its weights, under their names there and in float32

No weight is changed, so logits are equal up to rounding. A family that has a class there names it in `transformers`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from shoestring.core.errors import StorageError, UserError, storage_error
from shoestring.core.family import family_of
from shoestring.core.files import check_readable, put_folder, temporary_folder, write_whole
from shoestring.core.reading import read_json, reading
from shoestring.core.registry import registry
from shoestring.core.sections import Model
from shoestring.models.language_model import LanguageModel
from shoestring.models.layers.adapter import adapter_of

NAMED = 5
"""Weights that an error names."""


class WeightNames(NamedTuple):
    """The names of a family's weights in transformers, for each of our modules that has a weight or bias."""

    network: str
    """The kind of network, for errors."""
    base: str
    """Prefix of the base model, which its names lack where it is stored alone."""
    heads: tuple[str, ...]
    """Prefixes of all other names."""
    modules: Mapping[str, str]
    """Outside the layers: our module → theirs."""
    layer: str
    """Prefix of a layer, before its number."""
    parts: Mapping[str, tuple[str, ...]]
    """In a layer: our module → theirs, several where our product is divided there."""
    endings: Mapping[str, str | None]
    """Old endings of names → those of today; None: not a weight of ours."""
    tied_by: str
    """A weight with which a head without a matrix is tied to the embedding."""
    turn: Callable[[Tensor, str], Tensor] = lambda value, _: value
    """From our layout of a module's weight to theirs, and back."""

    def write(self, model: Any) -> dict[str, Tensor]:
        """The weights under their names there; a tied head is left out, as it is there."""
        own, found, width = dict(model.named_parameters()), dict[str, Tensor](), model.embedding.embedding_dim
        for mine, kind, theirs in self._pairs(len(model.blocks)):
            if f"{mine}.{kind}" in own:
                value = self.turn(own[f"{mine}.{kind}"].detach(), mine)
                found |= zip(theirs, _divided(value, len(theirs), width), strict=True)
        return found

    def write_adapters(self, model: Any) -> dict[str, tuple[Tensor, Tensor]]:
        """The two matrices of every adapter, (rank, inputs) and (outputs, rank), under the names of modules there.

        Where our product is divided there, each part has the same first matrix, and its rows of the second one.
        """
        found, width = dict[str, tuple[Tensor, Tensor]](), model.embedding.embedding_dim
        own = dict(model.named_modules())
        for mine, theirs in self._modules(len(model.blocks)).items():
            if mine.startswith("blocks.") and mine in own and (adapter := adapter_of(own[mine])) is not None:
                a, b = adapter.a.detach(), adapter.b.detach()
                found |= {name: (a, part) for name, part in zip(theirs, _divided(b, len(theirs), width), strict=True)}
        return found

    def read(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights of theirs under our names, with the heads that they have; raises UserError if one has no place."""
        left = {full: value for name, value in state.items() if (full := self._full_name(name)) is not None}
        embedding, found = f"{self.modules['embedding']}.weight", dict[str, Tensor]()
        if embedding not in left:
            raise UserError(f"not the weights of a {self.network}: {embedding} is missing")
        if self.tied_by in left:
            left.setdefault(f"{self.modules['head']}.weight", left[embedding])
        layers = {name.removeprefix(self.layer).partition(".")[0] for name in left if name.startswith(self.layer)}
        for mine, kind, theirs in self._pairs(len(layers)):
            if theirs[0] in left:
                parts = [left.pop(name) for name in theirs]
                found[f"{mine}.{kind}"] = self.turn(torch.cat(parts) if len(parts) > 1 else parts[0], mine)
        if left:
            more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
            raise UserError(f"{', '.join(sorted(left)[:NAMED])}{more}: {self.network} has no such weights")
        return found

    def _full_name(self, name: str) -> str | None:
        for old, new in self.endings.items():
            if name.endswith(old):
                if new is None:
                    return None
                name = name.removesuffix(old) + new
        return name if name.startswith((self.base, *self.heads)) else self.base + name

    def _modules(self, layers: int) -> dict[str, list[str]]:
        """Each of our modules, and its names there."""
        found = {mine: [theirs] for mine, theirs in self.modules.items()}
        for i, (mine, parts) in itertools.product(range(layers), self.parts.items()):
            found[f"blocks.{i}.{mine}"] = [f"{self.layer}{i}.{part}" for part in parts]
        return found

    def _pairs(self, layers: int) -> Iterator[tuple[str, str, list[str]]]:
        """Each of our modules, "weight" or "bias", and the names of that there."""
        for (mine, theirs), kind in itertools.product(self._modules(layers).items(), ("weight", "bias")):
            yield mine, kind, [f"{name}.{kind}" for name in theirs]


def _divided(value: Tensor, count: int, width: int) -> Sequence[Tensor]:
    """The rows of a product that is divided there: queries, keys and values, or two equal parts."""
    if count == 1:
        return [value]
    shared = (len(value) - width) // 2  # rows of keys, and of values
    return [part.clone() for part in (value.split([width, shared, shared]) if count == 3 else value.chunk(2))]


class TransformersFormat(NamedTuple):
    """A family as a kind of model of transformers."""

    kind: str
    """The model_type of its config."""
    architecture: Callable[[Model], str]
    """The name of the class that loads the folder."""
    config: Callable[[Model, int, int], dict[str, Any]]
    """From a model, the size of the vocabulary, and the length of a row; it names no special tokens."""
    fields: Callable[[Mapping[str, Any]], dict[str, Any]]
    """From a config to the fields of `Model`."""
    fixed: Mapping[str, tuple[Any, ...]]
    """Other values that a config must have for the network to be the same, one of several each."""
    write: Callable[[Any], dict[str, Tensor]]
    read: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    names: WeightNames
    classes: Callable[[str, Any], int | None] = lambda _architecture, _config: None
    """Number of classes of a stored network, from its architecture and config."""
    problem: Callable[[Model], str | None] = lambda _: None
    """Why a model of the family has no place there; None: it has."""
    finish: Callable[[dict[str, Tensor], Model], dict[str, Tensor]] = lambda state, _: state
    """From what `read` returns to our weights, where more than their names differ."""
    adapts: bool = True
    """Whether adapters of ours are adapters there, under the names of their modules."""
    code: Path | None = None
    """The modelling file that is written beside the weights, where transformers itself has no class."""


def format_of(spec: Model) -> TransformersFormat:
    """The first format of a model's family that has a place for it; raises UserError if none has."""
    formats: tuple[TransformersFormat, ...] = family_of(spec).formats()
    reasons = [form.problem(spec) for form in formats]
    if None not in reasons:
        why = "".join(f"; {form.architecture(spec)} {reason}" for form, reason in zip(formats, reasons))
        raise UserError(f'transformers has no class for model.family = "{spec.family}", so it cannot be exported{why}')
    return formats[reasons.index(None)]


def refused_formats(spec: Model) -> list[str]:
    """Why a model is not written in a better format than it is: a line each."""
    better = itertools.takewhile(lambda form: form.problem(spec) is not None, family_of(spec).formats())
    return [f"not for {form.architecture(spec)}, which {form.problem(spec)}" for form in better]


def spec_of(config: Mapping[str, Any]) -> Model:
    """Our model for a config of transformers, given as a dictionary; raises UserError if there is none."""
    kind = config.get("model_type")
    formats = {form.kind: (name, form) for name in registry("family") for form in registry("family")[name].formats()}
    if kind not in formats:
        known = ", ".join(formats)
        raise UserError(f'no family for a model of type "{kind}" (known: {known}); model.family = "hf" takes any')
    family, form = formats[kind]
    other = [f"{name} = {config[name]}" for name, own in form.fixed.items() if config.get(name, own[0]) not in own]
    if other:
        raise UserError(f"a {kind} with {', '.join(other)} is not supported: our network differs")
    return Model(family=family, **form.fields(config))


def save_transformers(
    model: LanguageModel,
    spec: Model,
    vocab_size: int,
    length: int,
    folder: Path,
    *,
    end: int | None = None,
    files: Mapping[str, str] | None = None,
) -> str:
    """Write a folder that transformers loads, complete or not at all; returns the name of the class for it.

    `end` is the id of the token that ends a text; `files` are further files by name, such as those of the tokenizer.
    """
    own = model.pretrained
    name = type(own).__name__ if own is not None else format_of(spec).architecture(spec)
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} exists already; choose another folder")
    try:
        with temporary_folder(folder.parent) as temporary:
            if own is not None:
                own.save_pretrained(temporary)
            else:
                form = format_of(spec)
                config: dict[str, Any] = {"architectures": [name], "model_type": form.kind, "dtype": "float32"}
                config |= form.config(spec, vocab_size, length)
                if "eos_token_id" in config:
                    config["eos_token_id"] = end
                write_whole(temporary / "config.json", json.dumps(config, indent=2) + "\n")
                weights = {key: value.cpu().contiguous() for key, value in form.write(model).items()}
                save_file(weights, temporary / "model.safetensors", {"format": "pt"})
                if form.code is not None:
                    write_whole(temporary / form.code.name, form.code.read_text())
            for file, text in (files or {}).items():
                write_whole(temporary / file, text)
            put_folder(temporary, folder)
    except (OSError, SafetensorError) as cause:
        raise write_error(folder, cause) from cause
    return name


def write_error(folder: Path, cause: OSError | SafetensorError) -> StorageError:
    """The error for a folder that could not be written; safetensors tells only in words what the system said."""
    if isinstance(cause, OSError):
        return storage_error("write", folder, cause)
    number = re.search(r"os error (\d+)", str(cause))
    return storage_error("write", folder, OSError(int(number[1]) if number else 0, str(cause)))


def read_transformers(place: str) -> tuple[Model, dict[str, Tensor]]:
    """Our model and weights for a stored model of transformers, given by folder or hub name.

    The weights of a BERT include the heads that the stored class has.
    """
    from shoestring.models.families.hf import network as hf

    if (stored := _read_own(Path(place).expanduser())) is not None:
        return stored
    config = hf.read_config(place)
    spec = _spec_at(place, config.to_dict())
    import transformers

    named = [getattr(transformers, name, None) for name in config.architectures or ()]
    networks = [kind for kind in named if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)]
    network = hf.load_stored(place, networks[0] if networks else transformers.AutoModel)
    form = format_of(spec)
    classes = form.classes(type(network).__name__, config)
    return dataclasses.replace(spec, classes=classes), form.finish(form.read(network.state_dict()), spec)


def _spec_at(place: str, config: Mapping[str, Any]) -> Model:
    try:
        return spec_of(config)
    except UserError as cause:
        raise UserError(f"{place}: {cause}") from cause


def _read_own(folder: Path) -> tuple[Model, dict[str, Tensor]] | None:
    """Model and weights of a folder whose modelling file is ours, which is not run; None: of any other."""
    file = folder / "config.json"
    if not file.is_file():
        return None
    with reading(file):
        config = read_json(file)
    kinds = {form.kind for name in registry("family") for form in registry("family")[name].formats() if form.code}
    if not isinstance(config, dict) or config.get("model_type") not in kinds:
        return None
    try:
        spec = _spec_at(str(folder), config)
    except (KeyError, TypeError) as cause:
        raise UserError(f"{file}: a field of the model is missing or wrong: {cause}") from cause
    weights = folder / "model.safetensors"
    check_readable(weights)
    try:
        return spec, format_of(spec).read(load_file(weights))
    except (OSError, SafetensorError) as cause:
        raise storage_error("read", weights, cause if isinstance(cause, OSError) else OSError(0, str(cause))) from cause
