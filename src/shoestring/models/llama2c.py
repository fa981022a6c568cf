"""Models in the format of llama2.c, as a folder that `transformers` loads.

    model.bin       seven int32 (width, hidden, layers, heads, heads of keys, vocabulary, length), then weights, float32
    tokenizer.bin   the longest piece, then a score, a length and the bytes of each piece

A negative vocabulary says that the output matrix is not the embedding. Queries and keys turn adjacent channels there,
and the two halves of a head here, so their rows are put into another order.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoestring.core.errors import StorageError
from shoestring.core.reading import check_file, reading
from shoestring.core.sections import Model
from shoestring.models.language_model import LanguageModel, build

HEADER = struct.Struct("<7i")
PIECE = struct.Struct("<fi")
"""A score and a length, before the bytes of a piece."""
BEGIN, END = 1, 2
"""Ids that begin and end a text."""
_BYTES = range(3, 259)
"""Ids of single bytes, for what no piece spells."""


class Llama2c(NamedTuple):
    """A model with its shape."""

    model: LanguageModel
    spec: Model
    vocabulary: int
    length: int


def read_model(path: Path) -> Llama2c:
    """The network of a model file; raises StorageError where its size is not that of its header."""
    with reading(path, StorageError, "a model of llama2.c"):
        raw = _bytes(path)
        if len(raw) < HEADER.size:
            raise ValueError(f"{len(raw)} bytes, and its header has {HEADER.size}")
    numbers = HEADER.unpack_from(raw)
    width, hidden, layers, heads, kv_heads, words, length = numbers
    vocabulary, tied = abs(words), words > 0
    whole = min(width, hidden, layers, heads, kv_heads, vocabulary, length) > 0
    if not whole or width % heads or heads % kv_heads or width // heads % 2:
        raise StorageError(f"{path}: not a model of llama2.c: its header is {', '.join(map(str, numbers))}")
    spec = Model(width=width, hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, tied=tied)
    keys, channels = width // heads * kv_heads, width // heads
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (vocabulary, width),
        "norm1": (layers, width),
        "q": (layers, width, width),
        "k": (layers, keys, width),
        "v": (layers, keys, width),
        "out": (layers, width, width),
        "norm2": (layers, width),
        "gate": (layers, hidden, width),
        "down": (layers, width, hidden),
        "up": (layers, hidden, width),
        "norm": (width,),
        "angles": (2, length, channels // 2),
        **({} if tied else {"head": (vocabulary, width)}),
    }
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    wanted = HEADER.size + 4 * sum(sizes.values())
    if len(raw) != wanted:
        raise StorageError(
            f"{path}: has {len(raw):,} bytes, and its header says {wanted:,}: it is cut, or another format"
        )
    values: NDArray[np.float32] = np.frombuffer(raw, dtype="<f4", offset=HEADER.size)
    ends = np.cumsum([0, *sizes.values()])
    found = {
        name: torch.from_numpy(values[first:last].reshape(shape).copy())
        for (name, shape), (first, last) in zip(shapes.items(), pairwise(ends))
    }
    model = build(spec, vocabulary, length, 0)
    model.take_over(_state(found, layers, heads, kv_heads), str(path))
    return Llama2c(model, spec, vocabulary, length)


def _bytes(path: Path) -> bytes:
    check_file(path, sys.maxsize)
    return path.read_bytes()


def _state(found: dict[str, Tensor], layers: int, heads: int, kv_heads: int) -> dict[str, Tensor]:
    """The weights under the names of our Llama."""
    state = {f"{name}.weight": found[name] for name in ("embedding", "norm", "head") if name in found}
    for i in range(layers):
        products = _halves(found["q"][i], heads), _halves(found["k"][i], kv_heads), found["v"][i]
        parts = {"qkv": torch.cat(products), "gate_up": torch.cat((found["gate"][i], found["up"][i]))}
        parts |= {name: found[name][i] for name in ("norm1", "out", "norm2", "down")}
        state |= {f"blocks.{i}.{name}.weight": value for name, value in parts.items()}
    return state


def _halves(matrix: Tensor, heads: int) -> Tensor:
    """Rows of a head's channels 0, 2, 4, …, 1, 3, 5, …"""
    rows, width = matrix.shape
    return matrix.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def read_tokenizer_file(path: Path, vocabulary: int) -> dict[str, str]:
    """The files of the same tokenizer for transformers: a byte-pair encoding with bytes for unknown characters."""
    pieces, scores = [], []
    with reading(path, StorageError, "a tokenizer of llama2.c"):
        raw, at = _bytes(path), 4
        for number in range(vocabulary):
            score, size = PIECE.unpack(raw[at : at + PIECE.size].ljust(PIECE.size, b"\xff"))
            at += PIECE.size
            if size < 0 or at + size > len(raw):
                raise ValueError(f"it ends in piece {number} of {vocabulary}")
            pieces.append(raw[at : at + size].decode())
            scores.append(score)
            at += size
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(len(_BYTES)))]
    tokens += [piece.replace(" ", "▁") for piece in pieces[_BYTES.stop :]]
    tokens = tokens[:vocabulary]
    ids = {token: index for index, token in enumerate(tokens)}
    merges = [
        (-scores[index], [token[:cut], token[cut:]])
        for token, index in ids.items()
        if index >= _BYTES.stop
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    files: dict[str, Any] = {"tokenizer.json": _tokenizer(ids, [pair for _, pair in sorted(merges)])}
    return {
        name: json.dumps(each, ensure_ascii=False) + "\n"
        for name, each in (files | {"tokenizer_config.json": config}).items()
    }


def _tokenizer(ids: dict[str, int], merges: list[list[str]]) -> dict[str, Any]:
    """In the format of the library tokenizers: as sentencepiece, a text begins with a space."""
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": name, **special} for name, i in ids.items() if i < _BYTES.start],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": ids,
            "merges": merges,
        },
    }
