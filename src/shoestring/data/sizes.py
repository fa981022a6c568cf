"""How large tokens and their files are, before there are any. Without numpy: a plan asks, and answers at once."""

from __future__ import annotations

import struct

from shoestring.core.errors import DataError
from shoestring.core.recipe import Data

HEADER = struct.Struct("<8sIIQQ28xI")
"""Of a shard: magic, version, bytes a token, tokens, documents, CRC-32 of these."""
BLOCK = 1 << 16
"""Bytes of the payload that share a CRC-32."""
BYTE_SPECIALS = ("[PAD]", "[BOS]", "[EOS]", "[MASK]", "[CLS]", "[SEP]")
WORD_SPECIALS = ("<end>", "<unk>")
ALLOWED = '"bytes", "words:N" with N at least 1, "file:PATH" or "hf:NAME"'


def token_bytes(vocab_size: int) -> int:
    """Bytes of the smallest unsigned type that holds every id."""
    return 1 if vocab_size <= 1 << 8 else 2 if vocab_size <= 1 << 16 else 4


def shard_bytes(tokens: int, documents: int, itemsize: int) -> int:
    """The size of a shard's file."""
    payload = payload_bytes(tokens, documents, itemsize)
    return HEADER.size + payload + 4 * (blocks(payload) + 1)


def payload_bytes(tokens: int, documents: int, itemsize: int) -> int:
    return -(-tokens * itemsize // 8) * 8 + 8 * documents


def blocks(payload: int) -> int:
    return -(-payload // BLOCK)


def words_in(spec: str) -> int | None:
    """N of "words:N", None of any other tokenizer that there is."""
    kind, _, rest = spec.partition(":")
    if spec == "bytes" or (kind in ("file", "hf") and rest):
        return None
    if kind == "words" and rest.isdecimal() and int(rest) > 0:
        return int(rest)
    raise DataError(f'data.tokenizer = "{spec}": must be {ALLOWED}')


def vocabulary_size(spec: str, end: str | None = None, hides: bool = False) -> int:
    """How many ids the tokenizer will have, the mask among them where tokens are hidden; the corpus is not read."""
    words = words_in(spec)
    if words is not None:
        return words + len(WORD_SPECIALS) + hides
    if spec == "bytes" and end is None:
        return 256 + len(BYTE_SPECIALS)
    from shoestring.data.special_tokens import special_tokens
    from shoestring.data.tokenizers import open_tokenizer  # reads the tokenizer's own files

    tokenizer = open_tokenizer(spec, end)
    return special_tokens(tokenizer).vocab_size if hides else tokenizer.vocab_size


def estimate_bytes(tokens: float, documents: float, data: Data) -> int:
    """What a store of about this many tokens takes on disk."""
    itemsize = token_bytes(vocabulary_size(data.tokenizer, data.end))
    return shard_bytes(int(tokens), int(documents), itemsize)
