"""Adapters as folders that `peft` loads, and its adapters as a change of the weights.

adapter_config.json         rank, scale, and the layers that have an adapter
adapter_model.safetensors   two matrices for each of them, in float32
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from shoestring.core.errors import UserError, storage_error
from shoestring.core.files import check_readable, put_folder, temporary_folder, write_whole
from shoestring.core.reading import read_json, reading
from shoestring.core.sections import Model
from shoestring.core.tuning import Lora
from shoestring.models.language_model import LanguageModel
from shoestring.models.layers.adapter import adapter_of, is_turned
from shoestring.models.layers.expert_adapter import expert_adapters, expert_weights
from shoestring.models.transformers_format import format_of, write_error

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_OTHER = {"use_dora": False, "use_rslora": False, "bias": "none", "modules_to_save": None, "lora_bias": False}
_OTHER |= {"rank_pattern": {}, "alpha_pattern": {}, "trainable_token_indices": None}
"""Settings of peft that change what an adapter is, at the values at which it is the plain one."""


def save_adapter(model: LanguageModel, spec: Model, lora: Lora, base: str, folder: Path, *, causal: bool) -> int:
    """Write the adapters of a network, complete or not at all; returns how many layers have one there."""
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} exists already; choose another folder")
    found = _adapters(model, spec)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if causal else None,
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.scale * lora.rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": _is_turned(model, spec),
        "target_modules": sorted(found),
        "inference_mode": True,
    }
    if experts := _experts(model):
        config["target_parameters"] = list(experts)
    places = found | {_inside(name, experts): pair for name, pair in experts.items()}
    tensors = {f"{_PREFIX}{name}{end}": x for name, pair in places.items() for end, x in zip((_A, _B), pair)}
    try:
        with temporary_folder(folder.parent) as temporary:
            write_whole(temporary / CONFIG, json.dumps(config, indent=2) + "\n")
            values = {name: value.float().cpu().contiguous().clone() for name, value in tensors.items()}
            save_file(values, temporary / WEIGHTS, {"format": "pt"})
            put_folder(temporary, folder)
    except (OSError, SafetensorError) as cause:
        raise write_error(folder, cause) from cause
    return len(places)


def _experts(model: LanguageModel) -> dict[str, tuple[Tensor, Tensor]]:
    """The two matrices of every adapter of experts, by the name of its parameter in transformers.

    In peft the first has the rows of all experts, and the columns of the second are first by rank, then by expert.
    """
    if model.pretrained is None:
        return {}
    return {
        f"{path}.{name}": (each.a.detach().flatten(0, 1), each.b.detach().permute(1, 2, 0).flatten(1))
        for path, module in model.pretrained.named_modules()
        for name, each in expert_adapters(module).items()
    }


def _inside(name: str, targets: Iterable[str]) -> str:
    """Where peft keeps the adapter of a parameter: each later one of the same module is wrapped around it."""
    module = name.rpartition(".")[0]
    beside = [each for each in targets if each.rpartition(".")[0] == module]
    return module + ".base_layer" * (len(beside) - 1 - beside.index(name))


def _adapters(model: LanguageModel, spec: Model) -> dict[str, tuple[Tensor, Tensor]]:
    """The two matrices of every adapter, by the name of its layer in transformers."""
    own = model.pretrained
    if own is None:
        form = format_of(spec)
        if not form.adapts:
            kind = form.architecture(spec)
            raise UserError(
                f"{kind} has other rows of queries and keys, so adapters have no place there: export merged"
            )
        return form.names.write_adapters(model)
    each = ((name, adapter_of(module)) for name, module in own.named_modules())
    return {name: (adapter.a.detach(), adapter.b.detach()) for name, adapter in each if adapter is not None}


def _is_turned(model: LanguageModel, spec: Model) -> bool:
    """Whether the layers of transformers have their inputs in rows, as GPT-2's: peft must know it to merge."""
    if model.pretrained is None:
        return format_of(spec).kind == "gpt2"
    return any(is_turned(module) for module in model.modules() if adapter_of(module) is not None)


class StoredAdapter(NamedTuple):
    """An adapter of peft on disk."""

    folder: Path
    base: str
    """The folder or hub name of the weights that it changes."""
    scale: float
    parameters: tuple[str, ...] = ()
    """Of experts: the names, or their ends, of those that it changes."""


def stored_adapter(place: str) -> StoredAdapter | None:
    """The adapter in a folder; None if it has none. Raises UserError for kinds other than plain LoRA."""
    folder = Path(place).expanduser()
    file = folder / CONFIG
    if not file.is_file():
        return None
    with reading(file):
        config = read_json(file)
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise UserError(f"{file}: only adapters of peft_type LORA are read")
    if wrong := [name for name, plain in _OTHER.items() if config.get(name, plain) not in (plain, None, {}, [])]:
        raise UserError(f"{file}: {wrong[0]} = {config[wrong[0]]} is not supported; only plain LoRA is read")
    rank, alpha, base = (config.get(name) for name in ("r", "lora_alpha", "base_model_name_or_path"))
    if not (isinstance(rank, int) and rank > 0 and isinstance(alpha, int | float) and isinstance(base, str) and base):
        raise UserError(f"{file}: needs r, lora_alpha and base_model_name_or_path")
    parameters = config.get("target_parameters") or []
    if not isinstance(parameters, list) or not all(isinstance(name, str) for name in parameters):
        raise UserError(f"{file}: target_parameters = {parameters} must be a list of names")
    return StoredAdapter(folder, base, alpha / rank, tuple(parameters))


@torch.no_grad()
def merge_stored(network: nn.Module, adapter: StoredAdapter) -> None:
    """Add a stored adapter to the weights of a network of transformers; raises UserError where it does not fit."""
    file = adapter.folder / WEIGHTS
    check_readable(file)
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as cause:
        raise storage_error("read", file, cause if isinstance(cause, OSError) else OSError(0, str(cause))) from cause
    modules: dict[str, Any] = dict(network.named_modules())
    names = {name.removeprefix(_PREFIX).removesuffix(end) for name in tensors for end in (_A, _B) if name.endswith(end)}
    experts = _targets(modules, adapter.parameters)
    places = {_inside(name, experts): name for name in experts}
    if absent := sorted(set(places) - names):
        raise UserError(f"{file}: the adapter of {places[absent[0]]} is missing")
    _refuse_others(file, tensors, names, modules, set(places))
    for place, name in places.items():
        a, b = (tensors[f"{_PREFIX}{place}{end}"].double() for end in (_A, _B))
        _merge_experts(file, modules[name.rpartition(".")[0]], name, a, b, adapter.scale)
    names -= set(places)
    for name in names:
        a, b = (tensors[f"{_PREFIX}{name}{end}"].double() for end in (_A, _B))
        change, weight = (b @ a) * adapter.scale, modules[name].weight
        change = change.T if is_turned(modules[name]) else change
        if change.shape != weight.shape:
            raise UserError(f"{file}: {name} is {tuple(change.shape)} there, and {tuple(weight.shape)} in the base")
        weight.copy_(weight.double() + change)


def _targets(modules: dict[str, Any], wanted: Sequence[str]) -> list[str]:
    """The parameters of experts that peft means by these names, in the order of the modules."""
    every = [f"{path}.{name}" for path, module in modules.items() for name in expert_weights(module)]
    return [name for name in every if any(name == each or name.endswith(f".{each}") for each in wanted)]


def _merge_experts(file: Path, module: nn.Module, name: str, a: Tensor, b: Tensor, scale: float) -> None:
    weight = module.get_parameter(name.rpartition(".")[2])
    experts, turned = len(weight), getattr(module, "is_transposed", False)
    rows, columns = weight.shape[1:][::-1] if turned else weight.shape[1:]
    rank = a.shape[0] // experts
    if a.shape != (rank * experts, columns) or b.shape != (rows, rank * experts):
        shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise UserError(f"{file}: {name} has matrices of {shapes} there, and is {tuple(weight.shape)} in the base")
    change = b.view(rows, rank, experts).permute(2, 0, 1) @ a.view(experts, rank, columns) * scale
    weight.copy_(weight.double() + (change.mT if turned else change))


def _refuse_others(
    file: Path, tensors: Iterable[str], names: set[str], modules: dict[str, Any], experts: set[str]
) -> None:
    known = {f"{_PREFIX}{name}{end}" for name in names for end in (_A, _B)}
    if lost := sorted(known ^ set(tensors)):
        raise UserError(f"{file}: {lost[0]} is missing, or no matrix of an adapter")
    others = names - experts
    if absent := sorted(name for name in others if not isinstance(getattr(modules.get(name), "weight", None), Tensor)):
        raise UserError(f"{file}: the base has no layer {absent[0]}")
