"""Freeze parts of a network, give its layers adapters, and count what is left to learn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoestring.core.errors import UserError
from shoestring.core.family import family_of
from shoestring.core.recipe import Recipe
from shoestring.core.tuning import FreezeSpec, Learned, Lora
from shoestring.models.language_model import LanguageModel
from shoestring.models.layers.adapter import NAME, Adapter, adapter_of, add_adapter, is_turned, merge_adapter
from shoestring.models.layers.expert_adapter import add_expert_adapter, expert_adapters, expert_weights, merge_experts


def freeze(model: LanguageModel, spec: FreezeSpec) -> None:
    """Let the parts that it names have no gradient; raises UserError where they are not there, or nothing is left."""
    where, count = f'train.freeze = "{spec}"', len(model.blocks)
    blocks, groups = spec.blocks(count), model.parameter_groups()
    if beyond := sorted(number for number in blocks if number >= count):
        raise UserError(f"{where}: there is no block {beyond[0]}; the model has blocks.0-{count - 1}")
    if absent := [name for name in sorted(spec.groups) if not groups.get(name)]:
        tied = "; it is tied, and belongs to the embedding" if absent == ["head"] else ""
        raise UserError(f"{where}: the model has no {absent[0]} of its own{tied}")
    for part in [*(groups[name] for name in spec.groups), *(model.blocks[i].parameters() for i in blocks)]:
        for parameter in part:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"{where}: nothing is left to train; freeze fewer parts")


def layers_of(model: LanguageModel) -> dict[str, nn.Module]:
    """The layers with a matrix in the blocks, by name in the network."""
    inside = {id(module) for block in model.blocks for module in block.modules()}
    return {
        name: module
        for name, module in model.named_modules()
        if id(module) in inside and (isinstance(module, nn.Linear) or is_turned(module))
    }


def experts_of(model: LanguageModel) -> dict[str, tuple[nn.Module, str]]:
    """The parameters that hold a matrix for each expert of a mixture in the blocks, as module and name."""
    inside = {id(module) for block in model.blocks for module in block.modules()}
    return {
        f"{path}.{name}": (module, name)
        for path, module in model.named_modules()
        if id(module) in inside
        for name in expert_weights(module)
    }


def add_lora(model: LanguageModel, lora: Lora, seed: int) -> None:
    """Freeze the network, and give the layers and experts that `lora` names an adapter."""
    found, experts = layers_of(model), experts_of(model)
    known = list(dict.fromkeys(name.rpartition(".")[2] for name in (*found, *experts)))
    for name in lora.names or ():
        if name not in known:
            raise UserError(
                f'lora.targets = "{lora.targets}": no layer is named "{name}"; there are {", ".join(known)}'
            )
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for name, layer in found.items():
        if lora.names is None or name.rpartition(".")[2] in lora.names:
            add_adapter(layer, Adapter(layer, lora.rank, lora.scale, generator))
    for name, (module, parameter) in experts.items():
        if lora.names is None or name.rpartition(".")[2] in lora.names:
            add_expert_adapter(module, parameter, lora.rank, lora.scale, generator)


def merge_lora(model: LanguageModel) -> None:
    """Add all adapters to the matrices of their layers, and remove them."""
    for layer in [module for module in model.modules() if adapter_of(module) is not None]:
        merge_adapter(layer)
    for module in [module for module in model.modules() if expert_adapters(module)]:
        merge_experts(module)
    model.requires_grad_(True)


def tune(model: LanguageModel, recipe: Recipe, seed: int) -> None:
    """Freeze what a recipe freezes, and add its adapters."""
    if recipe.lora is not None:
        if not family_of(recipe.model).adapts:
            raise UserError(f'[lora]: model.family = "{recipe.model.family}" has no adapters; freeze parts instead')
        add_lora(model, recipe.lora, seed)
    if recipe.train.freeze is not None:
        freeze(model, recipe.train.freeze)


def count_learned(recipe: Recipe, vocabulary: int) -> Learned:
    """What a recipe learns, by its real network without memory for its numbers."""
    with torch.device("meta"):
        model = family_of(recipe.model).skeleton(recipe.model, vocabulary, recipe.data.length)
        tune(model, recipe, 0)
    inside = {id(p) for p in model.blocks.parameters()}
    matrices = [p for p in model.parameters() if id(p) in inside and p.ndim == 2 and not _is_adapter(model, p)]
    experts = [module.get_parameter(name) for module, name in experts_of(model).values()]
    mixtures = [module for module in model.modules() if expert_adapters(module)]
    changed = [sum(module.get_parameter(name).numel() for name in expert_adapters(module)) for module in mixtures]
    adapters = [p for name, p in model.named_parameters() if f".{NAME}." in name]
    learned = [p for p in model.parameters() if p.requires_grad]
    outer = [p for group in ("embedding", "head") for p in model.parameter_groups().get(group, [])]
    output = max(outer, key=Tensor.numel, default=None)
    weighed = [*matrices, *experts, *([] if output is None else [output])]
    turned = [p for p in [*matrices, *adapters] if p.requires_grad and p.ndim == 2]
    return Learned(
        all=sum(p.numel() for p in model.parameters()),
        learned=sum(p.numel() for p in learned),
        matrices=sum(p.numel() for p in turned),
        neurons=sum(p.size(0) for p in turned),
        blocks=sum(p.numel() for p in weighed),
        weighed=sum(p.numel() for p in weighed if p.requires_grad) + sum(changed),
        head=output is not None and output.requires_grad,
        begins=_begins(model),
        changed=sum(changed),
        changed_at_once=max(changed, default=0),
    )


def _is_adapter(model: LanguageModel, parameter: nn.Parameter) -> bool:
    return any(parameter is p for name, p in model.named_parameters() if f".{NAME}." in name)


def _begins(model: LanguageModel) -> int:
    """Blocks before the first parameter that is learned."""
    inside = {id(p) for p in model.blocks.parameters()}
    head = {id(p) for p in model.parameter_groups().get("head", [])}
    before = [p for p in model.parameter_groups().get("embedding", []) if id(p) not in inside | head]
    if any(p.requires_grad for p in before):
        return 0
    learns = [any(p.requires_grad for p in block.parameters()) for block in model.blocks]
    return learns.index(True) if True in learns else len(learns)
