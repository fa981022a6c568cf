"""Masking for masked language models, as a pure function of (seed, epoch, row number).

A share of the tokens is chosen for prediction. Of these, 80 % are replaced by the mask, 10 % by a random id, and 10 %
are kept (Devlin et al. 2019). Every choice is a hash of the seed, the epoch, the row's number and the position, so a
row is masked independently of its batch, and differently in each epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.core.errors import DataError
from shoestring.core.seeds import derive
from shoestring.data.pack.order import Index, mix

IGNORED = -100
"""The target where nothing is predicted; torch's cross entropy ignores it."""

_MASK_BELOW = np.uint64(round(0.8 * 2**32))
_RANDOM_BELOW = np.uint64(round(0.9 * 2**32))
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the increment of splitmix64


class Masked(NamedTuple):
    """What the model reads and what it predicts, both (R, T)."""

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]
    """The original id of each chosen token, `IGNORED` elsewhere."""


def mask_rows(
    ids: NDArray[np.int64],
    row_numbers: Index,
    *,
    seed: int,
    epoch: int,
    vocab_size: int,
    mask_id: int,
    special_ids: Sequence[int] = (),
    share: float = 0.15,
    word_starts: NDArray[np.bool_] | None = None,
) -> Masked:
    """Mask the rows (R, T) that have the numbers (R,).

    `share` is the probability with which a token is chosen. Special ids, and the mask itself, are neither chosen nor
    used as random ids; a random id may happen to be the original. With `word_starts` (vocab_size,), True for an id that
    starts a word, either all or none of the tokens of a word are chosen. A word also starts at the start of a row and
    after a special id. The expected share of tokens is the same, and each token has its own replacement.
    """
    specials = [mask_id, *special_ids]
    for least, most in ((min(specials), max(specials)), (ids.min(initial=0), ids.max(initial=0))):
        if least < 0 or most >= vocab_size:
            raise DataError(f"ids {least:,} to {most:,} are not all in the vocabulary of {vocab_size:,}")
    special = np.zeros(vocab_size, dtype=bool)
    special[specials] = True
    plain = np.flatnonzero(~special)  # (P,)
    if not len(plain):
        raise DataError(f"all {vocab_size:,} ids are special; no id is left for random replacements")

    fixed = special[ids]  # (R, T)
    draws = _draws(derive(seed, "mask", epoch, "choose"), row_numbers[:, None], np.arange(ids.shape[1]))
    chosen = (draws >> np.uint64(11)) < np.uint64(round(share * 2**53))
    if word_starts is not None:
        first = _word_positions(word_starts[ids], fixed)
        chosen = np.take_along_axis(chosen, first, axis=1)
    chosen &= ~fixed

    rows, positions = np.nonzero(chosen)  # (C,)
    draws = _draws(derive(seed, "mask", epoch, "replace"), row_numbers[rows], positions)
    high, low = draws >> np.uint64(32), draws & np.uint64(2**32 - 1)
    random_ids = plain[((low * np.uint64(len(plain))) >> np.uint64(32)).astype(np.int64)]
    kept = ids[chosen]
    inputs, targets = ids.astype(np.int64), np.full(ids.shape, IGNORED, dtype=np.int64)
    inputs[chosen] = np.where(high < _MASK_BELOW, mask_id, np.where(high < _RANDOM_BELOW, random_ids, kept))
    targets[chosen] = kept
    return Masked(inputs, targets)


def _draws(key: int, row_numbers: Index, positions: Index) -> NDArray[np.uint64]:
    """64 random bits for each position of each row: splitmix64, with a seed for each row."""
    rows = mix(np.uint64(key) + row_numbers.astype(np.uint64) * _GOLDEN)
    return mix(rows + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def _word_positions(starts: NDArray[np.bool_], fixed: NDArray[np.bool_]) -> Index:
    """The position at which the word of each token starts, or of the special id before it, (R, T)."""
    return np.maximum.accumulate(np.where(starts | fixed, np.arange(starts.shape[1]), 0), axis=1)
