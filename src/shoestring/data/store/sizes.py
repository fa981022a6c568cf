"""The size of a store's files, computed beforehand. Without numpy, so that a plan is quick."""

from __future__ import annotations

import struct

from shoestring.core.sections import Data
from shoestring.data.tokenize.vocabulary import vocabulary_size

HEADER = struct.Struct("<8sIIQQ28xI")
"""Header of a shard: magic, version, bytes per token, tokens, documents, CRC-32 of these."""
BLOCK = 1 << 16
"""Bytes of the payload that share a CRC-32."""


def token_bytes(vocab_size: int) -> int:
    """Bytes of the smallest unsigned type that holds every id."""
    return 1 if vocab_size <= 1 << 8 else 2 if vocab_size <= 1 << 16 else 4


def stored_ids(vocab_size: int, prompts: bool) -> int:
    """How many ids a store may hold: those of prompts have a mark (`tokenize/prompts.py`)."""
    return vocab_size * (2 if prompts else 1)


def shard_bytes(tokens: int, documents: int, itemsize: int) -> int:
    """The size of a shard's file."""
    payload = payload_bytes(tokens, documents, itemsize)
    return HEADER.size + payload + 4 * (-(-payload // BLOCK) + 1)


def payload_bytes(tokens: int, documents: int, itemsize: int) -> int:
    return -(-tokens * itemsize // 8) * 8 + 8 * documents


def estimate_bytes(tokens: float, documents: float, data: Data) -> int:
    """The bytes on disk of a store of about this many tokens."""
    ids = stored_ids(vocabulary_size(data.tokenizer, data.end), data.pair is not None)
    return shard_bytes(int(tokens), int(documents), token_bytes(ids))
