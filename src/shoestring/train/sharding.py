"""Weights, gradients and optimizer state divided over the processes (FSDP): a layer is whole only while it is used."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from shoestring.models import LanguageModel
from shoestring.parallel.team import host_group


def shard_model(model: LanguageModel) -> None:
    """Divide a model in place: block by block, and the rest together. Gradients are summed, not averaged."""
    device = next(model.parameters()).device.type
    mesh = init_device_mesh(device, (torch.distributed.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    for name in ("token_losses", "logits"):
        register_fsdp_forward_method(model, name)
    _host_mesh()  # made by all, while they are together


def only_the_last_pass_sums(model: LanguageModel, last: bool) -> None:
    """Let the gradients of all but the last pass of a step stay here, whole."""
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(last)


def forget_whole(model: LanguageModel) -> None:
    """Drop the whole weights that a pass without a gradient leaves for a backward pass that never comes."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def local_part(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that lies here, in the same memory; any other tensor itself."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@cache
def _host_mesh() -> DeviceMesh:
    """All processes in a line, for tensors that lie in their host's memory."""
    return DeviceMesh.from_group(host_group(), "cpu")


def own_part(whole: Tensor, like: Tensor | None) -> Tensor:
    """What this process has of a tensor on the CPU that is divided as a sharded one of its shape; else all of it."""
    if not isinstance(like, DTensor) or whole.shape != like.shape:
        return whole
    return local_part(distribute_tensor(whole, _host_mesh(), like.placements, src_data_rank=None))


def as_divided(part: Tensor, like: Tensor | None) -> Tensor:
    """A part on the CPU as a tensor that is divided as `like` is, where it is a part of one of that shape."""
    if not isinstance(like, DTensor) or part.shape != local_part(like).shape:
        return part
    return DTensor.from_local(part, _host_mesh(), like.placements, shape=like.shape, stride=like.stride())


def empty_part(shape: torch.Size, dtype: torch.dtype, like: Tensor | None) -> Tensor:
    """Room on the CPU for a tensor of this shape, or for what this process has of it."""
    if not isinstance(like, DTensor) or shape != like.shape:
        return torch.empty(shape, dtype=dtype)
    return as_divided(torch.empty(local_part(like).shape, dtype=dtype), like)
