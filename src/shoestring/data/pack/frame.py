"""The special tokens around the text of a row, as [CLS] … [SEP]: one layout for masked models and classifiers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.data.pack.order import Index
from shoestring.data.tokenize.special_tokens import SpecialTokens


class Framed(NamedTuple):
    """Rows with their special tokens, both (R, T)."""

    ids: NDArray[np.int64]
    segments: NDArray[np.int64]
    """The document of each token, 0 for padding; special tokens belong to the document beside them."""


def frame_rows(ids: NDArray[np.int64], segments: NDArray[np.int64], special: SpecialTokens, end: int | None) -> Framed:
    """Put the special tokens around the text of each row (R, T), which padding of segment 0 may follow.

    The token that ends the last document of a row gives way to them, so that a row of one document is what the
    tokenizer itself makes of its text; between documents it stays.
    """
    before, after = len(special.prefix), len(special.suffix)
    rows, width = ids.shape
    sizes = _without_end(ids, (segments != 0).sum(axis=1), end)
    at = np.arange(width)
    inside = at < sizes[:, None]
    found, documents = np.zeros((2, rows, before + width + after), dtype=np.int64)
    found[:, before : before + width][inside] = ids[inside]
    documents[:, before : before + width][inside] = segments[inside]
    last = np.maximum(np.take_along_axis(segments, np.maximum(sizes - 1, 0)[:, None], axis=1), 1)
    found[:, :before], documents[:, :before] = special.prefix, np.maximum(segments[:, :1], 1)
    closing = sizes[:, None] + before + np.arange(after)
    np.put_along_axis(found, closing, np.broadcast_to(special.suffix, closing.shape), axis=1)
    np.put_along_axis(documents, closing, np.broadcast_to(last, closing.shape), axis=1)
    return Framed(found, documents)


def _without_end(ids: NDArray[np.int64], sizes: Index, end: int | None) -> Index:
    """The sizes of the rows without the token that ends their last document."""
    if end is None:
        return sizes
    last = np.take_along_axis(ids, np.maximum(sizes - 1, 0)[:, None], axis=1)[:, 0]
    shorter: Index = sizes - ((last == end) & (sizes > 0))
    return shorter
