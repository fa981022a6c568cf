"""Tensors with a note, in one safetensors file: whole or absent, and checked when read.

The metadata has one key, "about": the note and a CRC-32 of it and of every tensor with its name, type and shape. (With
several keys, files of equal content may differ in their bytes.) The file is written here, not by the library, which
leaves a file of its own behind where a process is killed. The library reads its header, which it does not trust, and
the tensors are read here, large ones by several threads.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from shoestring.core.errors import StorageError, VersionError
from shoestring.core.files import whole_file
from shoestring.core.reading import check_file, reading
from shoestring.storage.pieces import check_of, each_piece

Arrays = Mapping[str, NDArray[Any]]

_TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_NAMES = {kind: name for name, kind in _TYPES.items()}


class TensorFile(NamedTuple):
    """What a file holds."""

    arrays: dict[str, NDArray[Any]]
    note: str


def write_tensors(path: Path, arrays: Arrays, note: str, parents: bool = True) -> None:
    """Replace the file at `path`; it is on disk when this returns. Without `parents`, its folder must exist."""
    for name, array in arrays.items():
        if array.dtype.name not in _TYPES or not array.dtype.isnative:
            raise StorageError(
                f'{path}: cannot store the tensor "{name}" of dtype {array.dtype}; use {", ".join(_TYPES)}'
            )
    header: dict[str, Any] = {"__metadata__": {"about": json.dumps({"note": note, "check": _check(note, arrays)})}}
    at = 0
    for name, array in arrays.items():
        dtype, end = _TYPES[array.dtype.name], at + array.nbytes
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at multiples of eight bytes
    with whole_file(path, parents=parents) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(_bytes(array))


def read_tensors(path: Path) -> TensorFile:
    """Raises StorageError where the file is absent, or a byte of it is not as written."""
    with reading(path, StorageError):
        check_file(path, sys.maxsize)
        open(path, "rb").close()  # the system says better than the library why it cannot be read
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if "about" not in metadata:
                raise VersionError(f"{path}: not written by this version of shoestring")
            kinds = {name: file.get_slice(name) for name in file.offset_keys()}
            for name, kind in kinds.items():
                if kind.get_dtype() not in _NAMES:
                    raise StorageError(f'{path}: cannot read the tensor "{name}" of dtype {kind.get_dtype()}')
            about = json.loads(metadata["about"])
            arrays = {name: np.empty(kind.get_shape(), _NAMES[kind.get_dtype()]) for name, kind in kinds.items()}
        _fill(path, arrays)
        note, check = about["note"], about["check"]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError, MemoryError) as cause:
        raise StorageError(f"{path}: damaged, or not a file of tensors ({cause})") from cause
    if check != _check(note, arrays):
        raise StorageError(f"{path}: damaged, its content does not match its checksum")
    return TensorFile(arrays, note)


def _fill(path: Path, arrays: Arrays) -> None:
    """Read the tensors of a file, which are in this order, one after the other, up to its end."""
    with open(path, "rb", buffering=0) as file:
        starts, at = [], 8 + int.from_bytes(file.read(8), "little")
        for array in arrays.values():
            starts.append(at)
            at += array.nbytes

        def fill(view: memoryview, number: int, offset: int) -> None:
            at = starts[number] + offset
            while view:
                count = os.preadv(file.fileno(), [view], at)
                if not count:
                    raise OSError("it ends too early")
                view, at = view[count:], at + count

        each_piece([_bytes(array) for array in arrays.values()], fill)


def _check(note: str, arrays: Arrays) -> int:
    """CRC-32 of the note and of every tensor with its name, type and shape."""

    def parts() -> Iterator[memoryview]:
        yield memoryview(note.encode())
        for name, array in sorted(arrays.items()):
            yield memoryview(f"{name} {array.dtype} {array.shape}".encode())
            yield _bytes(array)

    return check_of(list(parts()))


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
