"""Rows that overlap: windows that slide over a text, so that what is predicted has something before it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shoestring.data.pack.order import Index


class Windows(NamedTuple):
    """Windows of `length + 1` tokens of a text; each token but the very first is predicted in exactly one of them."""

    starts: Index
    """(rows,): the place in the text at which each begins."""
    firsts: Index
    """(rows,): the first prediction that counts; those before it are context."""
    context: int


def sliding_windows(tokens: int, length: int, context: int) -> Windows:
    """A window at every `length - context` tokens of a text of `tokens`, at least `length + 1`.

    All predictions of the first count, and of the others those after `context`. The last window ends with the text; so
    that it is whole, more of it may be context.
    """
    stride, last = length - context, tokens - 1 - length
    numbers = np.arange(1 + -(-last // stride), dtype=np.int64)
    starts = np.minimum(numbers * stride, last)
    counted = np.where(numbers == 0, 0, length + (numbers - 1) * stride)  # in the windows before
    return Windows(starts, np.maximum(0, counted - starts), context)
