"""Tensors in one file: a dtype that cannot be stored or read is named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoestring.core.errors import StorageError
from shoestring.storage.tensor_file import read_tensors, write_tensors

KNOWN = [
    "float64",
    "float32",
    "float16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint64",
    "uint32",
    "uint16",
    "uint8",
    "bool",
]


@pytest.mark.parametrize("dtype", KNOWN)
def test_every_known_dtype_comes_back(tmp_path: Path, dtype: str) -> None:
    array = np.array([[0, 1, 2], [3, 1, 0]]).astype(dtype)
    write_tensors(tmp_path / "a", {"x": array}, "note")
    arrays, note = read_tensors(tmp_path / "a")
    assert note == "note" and arrays["x"].dtype == array.dtype and np.array_equal(arrays["x"], array)


@pytest.mark.parametrize("dtype", ["complex64", "datetime64[s]", "S3", "O", ">f4"])
def test_a_dtype_that_cannot_be_stored_is_refused(tmp_path: Path, dtype: str) -> None:
    arrays: dict[str, Any] = {"fine": np.zeros(2), "strange": np.zeros(2).astype(dtype)}
    with pytest.raises(StorageError, match=r'cannot store the tensor "strange" of dtype .*; use float64, float32, '):
        write_tensors(tmp_path / "a", arrays, "note")
    assert not list(tmp_path.iterdir())


def test_a_dtype_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    about = json.dumps({"note": "", "check": 0})
    tensor = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}
    header = json.dumps({"__metadata__": {"about": about}, "strange": tensor}).encode()
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(StorageError, match=r'cannot read the tensor "strange" of dtype BF16'):
        read_tensors(tmp_path / "a")
