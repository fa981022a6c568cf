"""Weights, gradients and optimizer state divided over the processes (FSDP), and the checkpoint of such a model.

The checkpoint is a folder with a file of tensors from every process, which holds that process' part of each tensor. Its
note has the number of files, the run's state, and for every tensor the shape of the whole and the first row of the
part: FSDP divides tensors by rows.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from shoestring.core.errors import StorageError
from shoestring.core.files import put_folder, temporary_folder
from shoestring.core.reading import reading
from shoestring.models.language_model import LanguageModel
from shoestring.parallel.process_group import ProcessGroup, host_group
from shoestring.storage.tensor_file import read_tensors, write_tensors

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

T = TypeVar("T")
Likes = Mapping[str, Tensor | None]
"""By the name of a saved tensor: the parameter that it belongs to and is divided as; None: it is not divided."""


def shard_model(model: LanguageModel) -> None:
    """Divide a model in place: block by block, and the rest together. Gradients are summed, not averaged."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method  # imports SymPy, which takes a second

    device = next(model.parameters()).device.type
    mesh = init_device_mesh(device, (torch.distributed.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in _sharded(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    for name in ("token_losses", "logits"):
        register_fsdp_forward_method(model, name)
    host_group()  # a collective call: here all processes are together


def _sharded(model: LanguageModel) -> Iterator[FSDPModule]:
    """The modules of a sharded model that hold parameters."""
    from torch.distributed.fsdp import FSDPModule

    return (module for module in model.modules() if isinstance(module, FSDPModule))


def sum_gradients(model: LanguageModel, wanted: bool) -> None:
    """Whether the next backward pass of a sharded model sums the gradients over the processes."""
    for module in _sharded(model):
        module.set_requires_gradient_sync(wanted, recurse=False)


def forget_whole(model: LanguageModel) -> None:
    """Free the whole weights that a pass without gradients keeps for a backward pass that never comes."""
    for module in _sharded(model):
        module.reshard()


def _is_divided(tensor: Tensor | None) -> TypeGuard[DTensor]:
    """Whether it is a DTensor; none exists before their module is loaded."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def local_part(tensor: Tensor) -> Tensor:
    """This process' part of a sharded tensor, in the same memory; any other tensor itself."""
    with torch.no_grad():
        return tensor.to_local() if _is_divided(tensor) else tensor


def whole_of(part: Tensor, like: Tensor) -> Tensor:
    """The tensor of which every process has a part, divided as `like`: a collective call."""
    from torch.distributed.tensor import DTensor

    assert _is_divided(like), "parts are of something"
    made = DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return made.full_tensor()


class Part(NamedTuple):
    """A process' part of a tensor, on the CPU."""

    tensor: Tensor
    shape: tuple[int, ...]
    """Of the whole."""
    first: int
    """Row of the whole that the part begins at."""


def part_of(tensor: Tensor, like: Tensor | None) -> Part:
    """A tensor as the part that it is if divided as `like`, or as a whole one if its shape is not that of a part."""
    if not _is_divided(like) or tensor.shape != local_part(like).shape:
        return Part(tensor, tuple(tensor.shape), 0)
    return Part(tensor, tuple(like.shape), _rows(like)[0])


def _rows(like: DTensor) -> tuple[int, int]:
    """First row of a sharded parameter in this process, and the one after the last: chunks of equal size."""
    rows, world, rank = like.shape[0], like.device_mesh.size(), like.device_mesh.get_local_rank()
    chunk = -(-rows // world)
    first = min(rank * chunk, rows)
    return first, min(first + chunk, rows)


def own_part(whole: Tensor, like: Tensor | None) -> Tensor:
    """This process' part of a whole tensor that is divided as `like`; all of it if `like` has another shape."""
    if not _is_divided(like) or whole.shape != like.shape:
        return whole
    first, last = _rows(like)
    return whole[first:last]


def write_folder(folder: Path, parts: Mapping[str, Part], state: str, group: ProcessGroup) -> None:
    """Write the files of all processes, then give the folder its name. If one process fails, all raise its error."""
    with contextlib.ExitStack() as stack:

        def begin() -> Path | None:
            return stack.enter_context(temporary_folder(folder.parent, parents=False)) if group.rank == 0 else None

        temporary = _together(begin, group)
        assert temporary is not None, "the first process has made it"

        def write_own() -> None:
            where = {name: [list(part.shape), part.first] for name, part in parts.items()}
            note = json.dumps({"files": group.world, "state": state, "parts": where})
            tensors = {name: part.tensor.numpy() for name, part in parts.items()}
            write_tensors(_file(temporary, group.rank), tensors, note, parents=False)

        _together(write_own, group)
        if group.rank == 0:
            put_folder(temporary, folder, replace=True)  # one there is damaged, or its step would not be repeated


def _together(act: Callable[[], T], group: ProcessGroup) -> T:
    """Act in every process, and return the result of the first. If one fails, all raise its error."""
    if group.world == 1:
        return act()
    result: Any = None
    error: OSError | StorageError | None = None
    try:
        result = act()
    except (OSError, StorageError) as cause:
        error = cause.__cause__ if isinstance(cause.__cause__, OSError) else cause  # it alone can be sent
    found: list[Any] = [None] * group.world
    dist.all_gather_object(found, (result, error), group=host_group())
    for _, each in found:
        if each is not None:
            raise each
    first: T = found[0][0]
    return first


def _file(folder: Path, rank: int) -> Path:
    return folder / f"part-{rank:05d}.safetensors"


def check_folder(folder: Path, group: ProcessGroup | None) -> tuple[str, dict[str, torch.Size]]:
    """The state, and the shapes of all tensors; raises StorageError if a file is damaged.

    The processes of a group share the files: each checks some of them.
    """
    files, state, where = _note(folder, 0)
    for rank in range(group.rank if group else 0, files, group.world if group else 1):
        if _note(folder, rank)[0] != files:
            raise StorageError(f"{_file(folder, rank)}: of another checkpoint than {_file(folder, 0).name}")
    return state, {name: torch.Size(shape) for name, (shape, _) in where.items()}


def _note(folder: Path, rank: int) -> tuple[int, str, dict[str, tuple[list[int], int]]]:
    file = _file(folder, rank)
    with reading(file, StorageError, "a part of a checkpoint"):
        note = json.loads(read_tensors(file).note)
        where = {name: (shape, first) for name, (shape, first) in note["parts"].items()}
        return int(note["files"]), str(note["state"]), where


def read_folder(folder: Path, likes: Likes) -> dict[str, Tensor]:
    """Every tensor, or this process' part of it, on the CPU."""
    found: dict[str, Tensor] = {}
    begins: dict[str, int] = {}
    for rank in range(_note(folder, 0)[0]):
        arrays, text = read_tensors(_file(folder, rank))
        for name, (shape, first) in json.loads(text)["parts"].items():
            part, like = torch.from_numpy(arrays[name]), likes.get(name)
            if name not in found and list(part.shape) == shape:  # the whole tensor; other files may have it too
                found[name] = own_part(part, like)
            elif name not in found:
                whole = (0, shape[0])
                begins[name], end = _rows(like) if _is_divided(like) and list(like.shape) == shape else whole
                found[name] = part.new_empty([end - begins[name], *shape[1:]])
            if name in begins:
                begin, end = begins[name], begins[name] + len(found[name])
                low, high = max(begin, first), min(end, first + len(part))
                if low < high:
                    found[name][low - begin : high - begin] = part[low - first : high - first]
    return found
