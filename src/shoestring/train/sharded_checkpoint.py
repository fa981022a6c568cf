"""The checkpoint of a sharded model: a folder to which every process writes its part, in torch's own format."""

from __future__ import annotations

import json
import pickle
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_parts

from shoestring.core.files import sync, write_whole
from shoestring.parallel.team import Team, host_group
from shoestring.train.sharding import as_divided, empty_part, local_part

SEAL = "seal.json"
STATE = "state.json"
_CHUNK = 1 << 24

Likes = Mapping[str, Tensor | None]
"""The parameter that a saved tensor belongs to, and is divided as, by the tensor's name; None: it is not divided."""


def write(folder: Path, tensors: Mapping[str, Tensor], likes: Likes, state: str, team: Team) -> None:
    """Write the parts of all processes, which lie on the CPU; the first one adds the state, and seals the folder."""
    divided = {name: as_divided(tensor, likes[name]) for name, tensor in tensors.items()}
    try:
        save_parts(divided, checkpoint_id=folder, process_group=host_group())
    except CheckpointException as cause:  # of all processes, whichever failed
        raise _reason(cause) from cause
    if team.rank == 0:
        (folder / STATE).write_text(state)
        _seal(folder)


def _reason(cause: CheckpointException) -> OSError:
    error, _ = next(iter(cause.failures.values()))
    return error if isinstance(error, OSError) else OSError(str(error))


def _seal(folder: Path) -> None:
    """Write a CRC-32 of every file, and see that all is on disk."""
    files = sorted(folder.iterdir())
    for path in files:
        sync(path)
    write_whole(folder / SEAL, json.dumps({path.name: _check(path) for path in files}))


def check(folder: Path, team: Team) -> str:
    """The state; ValueError if a byte is not as written, in the files whose turn it is in this process."""
    seal: dict[str, int] = json.loads((folder / SEAL).read_text())
    for name in [*sorted(seal)[team.rank :: team.world], STATE]:
        if _check(folder / name) != seal[name]:
            raise ValueError(f"{name} does not match its checksum")
    return (folder / STATE).read_text()


def shapes(folder: Path) -> dict[str, TensorStorageMetadata]:
    """Of all tensors."""
    try:
        entries = FileSystemReader(folder).read_metadata().state_dict_metadata
    except (pickle.UnpicklingError, EOFError, AttributeError) as cause:
        raise ValueError(f"its metadata cannot be read: {cause}") from cause
    return {name: entry for name, entry in entries.items() if isinstance(entry, TensorStorageMetadata)}


def read(folder: Path, likes: Likes) -> dict[str, Tensor]:
    """Every tensor, or the part of it that this process has, on the CPU."""
    found = {
        name: empty_part(entry.size, entry.properties.dtype, likes.get(name)) for name, entry in shapes(folder).items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it is meant: every process reads on its own
        load_parts(found, storage_reader=FileSystemReader(folder), no_dist=True)
    return {name: local_part(tensor) for name, tensor in found.items()}


def _check(path: Path) -> int:
    check = 0
    with path.open("rb") as file:
        while block := file.read(_CHUNK):
            check = zlib.crc32(block, check)
    return check
