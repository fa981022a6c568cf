"""Random shift of the windows: each epoch cuts the stream of tokens at other places.

Row i of an epoch is the window of `length + 1` tokens from offset + i · length. At offset 0 these are the rows of
`StoreRows`; the random offset of an epoch moves all of them together, so within an epoch no token is predicted twice.
"""

from __future__ import annotations

from shoestring.core.errors import DataError
from shoestring.core.seeds import derive
from shoestring.data.order import Index


def shifted_starts(tokens: int, length: int, seed: int, epoch: int) -> int:
    """The offset in [0, length) at which the first row of an epoch starts: a function of the seed and the epoch.

    A stream of fewer than two rows is shifted less, so that one row always remains.
    """
    if length < 1:
        raise DataError(f"a row of {length:,} predictions cannot be cut; it needs at least one")
    if tokens < length + 1:
        raise DataError(f"one row needs {length + 1:,} tokens, and there are {tokens:,}")
    return derive(seed, "shift", epoch) % min(length, tokens - length)


def row_count(tokens: int, length: int, offset: int) -> int:
    """How many rows an epoch with this offset has: as many as without it, or one fewer."""
    _check_offset(length, offset)
    return max(0, (tokens - 1 - offset) // length)


def row_start(rows: Index, length: int, offset: int) -> Index:
    """Where in the stream each of `rows` starts."""
    _check_offset(length, offset)
    return offset + rows * length


def epochs_to_read_every_latent(max_length: int, latents: int) -> int:
    """Epochs of random shift in which a Perceiver AR predicts every token once in expectation.

    It predicts only the last `latents` of a row's `max_length` positions, so an epoch predicts a token with the
    probability latents / max_length. As offsets are drawn anew each epoch, some tokens come twice by then and up to a
    share of 1/e not yet.
    """
    if not 1 <= latents <= max_length:
        raise DataError(f"{latents:,} latents do not fit a row of {max_length:,}; they must be 1 to {max_length:,}")
    return -(-max_length // latents)


def _check_offset(length: int, offset: int) -> None:
    if not 0 <= offset < length:
        raise DataError(f"an offset of {offset:,} is not in a row of {length:,} predictions")
