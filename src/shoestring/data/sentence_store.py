"""The rows of an HMM on disk: sentences of the most frequent words, joined and cut, made once."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from shoestring.core.errors import DataError
from shoestring.core.files import locked, write_whole
from shoestring.core.recipe import Data, Hmm, fingerprint
from shoestring.core.schema import encode
from shoestring.core.seeds import derive
from shoestring.data.sentences import rows_of, top_words
from shoestring.data.sources import open_source, texts
from shoestring.data.tokenizers import words_in
from shoestring.data.units import is_heldout

_FORMAT = 2

Rows = NDArray[np.unsignedinteger]
"""(rows, length) ids."""


class SentenceStore(NamedTuple):
    """Training and held-out rows over one alphabet, that of the training documents."""

    train: Rows
    heldout: Rows
    alphabet: tuple[str, ...]
    ledger: dict[str, Any]
    """By split: sentences seen and kept, tokens kept and dropped."""
    path: Path


def prepare_rows(data: Data, seed: int, hmm: Hmm) -> SentenceStore:
    """The rows of the first `data.documents` documents (default: all), read from disk if they were made before."""
    source = open_source(data, seed)
    words = words_in(data.tokenizer)
    assert words is not None, "checked when the recipe was read"
    identity = [
        _FORMAT,
        source.identity(),
        words,
        data.length,
        data.documents,
        data.heldout,
        hmm.unique,
        hmm.plain,
        seed,
    ]
    path = Path(data.folder) / f"sentences-{words}-{fingerprint(encode(identity))[:8]}" / "rows.safetensors"
    if path.is_file():
        return _read(path)
    held_out = is_heldout(derive(seed, "heldout"), data.heldout)

    def documents(wanted: bool) -> Iterator[str]:
        numbered = enumerate(texts(source, data.documents))
        return (text for index, text in numbered if held_out(index) is wanted)

    with locked(path.parent / ".lock", f"the rows {path.parent}"):
        alphabet = top_words(documents(False), words, hmm.plain)
        splits = {
            name: rows_of(documents(name == "heldout"), alphabet, data.length, hmm.unique, hmm.plain)
            for name in ("train", "heldout")
        }
        arrays = {name: np.ascontiguousarray(split.rows) for name, split in splits.items()}
        text = json.dumps({"alphabet": list(alphabet), "ledger": {n: encode(s.ledger) for n, s in splits.items()}})
        about = json.dumps({"content": text, "check": _check(text, arrays)})
        write_whole(path, save(arrays, {"about": about}))  # one key: safetensors writes several in any order
    return _read(path)


def _read(path: Path) -> SentenceStore:
    try:
        with safe_open(path, framework="np") as file:
            about = json.loads((file.metadata() or {})["about"])
            arrays = {name: file.get_tensor(name) for name in ("heldout", "train")}
        if about["check"] != _check(about["content"], arrays):
            raise ValueError("its content does not match its checksum")
        content = json.loads(about["content"])
    except (OSError, SafetensorError, KeyError, TypeError, AttributeError, ValueError) as cause:
        raise DataError(f"{path}: damaged ({cause}); remove the file and run the same command again") from cause
    return SentenceStore(arrays["train"], arrays["heldout"], tuple(content["alphabet"]), content["ledger"], path)


def _check(text: str, arrays: dict[str, Rows]) -> int:
    check = zlib.crc32(text.encode())
    for name in sorted(arrays):
        check = zlib.crc32(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode(), check)
        check = zlib.crc32(np.ascontiguousarray(arrays[name]).data, check)
    return check
