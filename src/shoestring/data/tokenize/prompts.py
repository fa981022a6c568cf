"""Prompts in a stream of tokens, which are read and not predicted.

A token of a prompt is stored as its id + the size of the vocabulary. So whatever cuts and packs the stream keeps the
mark, and the rows that are made of it say what they predict.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shoestring.data.pack.order import Index
from shoestring.data.read.documents import parts_of
from shoestring.data.tokenize.tokenizers import Tokenizer


def encode_documents(
    tokenizer: Tokenizer, texts: Sequence[str], prompts: bool = False
) -> tuple[NDArray[np.unsignedinteger], Index]:
    """The ids of documents, each followed by the end token, and their sizes with it.

    With `prompts` every text is a prompt and its completion: each is tokenized alone, as a prompt is to which a model
    writes a completion, and the tokens of prompts are marked.
    """
    assert tokenizer.end is not None, "a tokenizer of text has one"
    ids, sizes = tokenizer.encode_batch(parts_of(texts))
    if prompts:
        ids = ids.astype(np.uint32)
        ids[np.repeat(np.arange(len(sizes)) % 2 == 0, sizes)] += np.uint32(tokenizer.vocab_size)
        sizes = sizes.reshape(-1, 2).sum(axis=1)
    return with_ends(ids, sizes, tokenizer.end), sizes + 1


def with_ends(ids: NDArray[np.unsignedinteger], sizes: Index, end: int) -> NDArray[np.unsignedinteger]:
    """The ids of documents of these sizes, each followed by `end`."""
    tokens = np.full(len(ids) + len(sizes), end, dtype=ids.dtype)
    inside = np.ones(len(tokens), dtype=bool)
    inside[np.cumsum(sizes + 1) - 1] = False
    tokens[inside] = ids
    return tokens


def unmarked(ids: NDArray[np.integer], vocab_size: int) -> NDArray[np.integer]:
    """The ids without marks."""
    return np.where(ids >= vocab_size, ids - ids.dtype.type(vocab_size), ids)


def without_long_prompts(ids: NDArray[np.integer], sizes: Index, vocab_size: int, capacity: int) -> Index:
    """Sizes of documents in which one that is longer than a row has lost the beginning of its prompt.

    As much is left out as lets it fit, but half a row of the prompt stays. Every token that is left out is a document
    of its own, and so in no row.
    """
    ends = np.cumsum(sizes)
    marks = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(ids >= vocab_size)])
    prompts = marks[ends] - marks[ends - sizes]
    cut = np.maximum(np.minimum(sizes - capacity, prompts - capacity // 2), 0)
    found = np.ones(len(sizes) + int(cut.sum()), dtype=np.int64)
    found[np.cumsum(cut + 1) - 1] = sizes - cut
    return found
