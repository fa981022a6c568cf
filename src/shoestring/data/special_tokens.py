"""What masking and classification need to know of a tokenizer: mask, first and last token, and where words begin."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.data.subwords import SubwordTokenizer
from shoestring.data.tokenizers import ByteTokenizer, Tokenizer, WordTokenizer

_FIRST, _LAST = ("[CLS]", "<cls>"), ("[SEP]", "<sep>")
_SPACES = " \t\n\r"


class SpecialTokens(NamedTuple):
    """The ids that are no part of a text."""

    vocab_size: int
    """With the mask: one more than the tokenizer's where that has none of its own."""
    mask: int
    first: int | None
    """[CLS], which begins a row that is to be classified; None where the tokenizer has none."""
    last: int | None
    """[SEP], which ends it."""
    fixed: tuple[int, ...]
    """Ids that are neither hidden nor put in at random, the mask among them."""

    @property
    def plain(self) -> NDArray[np.int64]:
        """All other ids."""
        return np.setdiff1d(np.arange(self.vocab_size), self.fixed)


def special_tokens(tokenizer: Tokenizer) -> SpecialTokens:
    """Of any tokenizer; of one of words also before these are counted."""
    mask: int | None = None
    first: int | None = None
    last: int | None = None
    fixed = set() if tokenizer.end is None else {tokenizer.end}
    match tokenizer:
        case ByteTokenizer():
            mask, first, last = (tokenizer.SPECIALS.index(name) for name in ("[MASK]", "[CLS]", "[SEP]"))
            fixed |= set(range(len(tokenizer.SPECIALS)))
        case WordTokenizer():
            fixed |= set(range(len(tokenizer.SPECIALS)))
        case SubwordTokenizer():
            mask, first, last = tokenizer.mask, _written(tokenizer, _FIRST), _written(tokenizer, _LAST)
            fixed |= set(tokenizer.specials)
    if mask is None:
        mask = tokenizer.vocab_size
    return SpecialTokens(max(tokenizer.vocab_size, mask + 1), mask, first, last, tuple(sorted(fixed | {mask})))


def _written(tokenizer: SubwordTokenizer, names: tuple[str, ...]) -> int | None:
    """The first of these that it has: a special token that is written out in a text is read as that token."""
    for name in names:
        ids = tokenizer.encode(name).tolist()
        if len(ids) == 1 and ids[0] in tokenizer.specials:
            return int(ids[0])
    return None


def word_starts(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Whether each id begins a word, the mask's too: a space, which goes with the word after it, or a whole word."""
    starts = np.ones(special_tokens(tokenizer).vocab_size, dtype=np.bool_)
    match tokenizer:
        case ByteTokenizer():
            starts[:] = False
            starts[tokenizer.encode(_SPACES).astype(np.int64)] = True
        case SubwordTokenizer():
            starts[: tokenizer.vocab_size] = tokenizer.word_starts()
    return starts
