"""What masking and classification need of a tokenizer: mask, first and last token, and which ids start a word."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.data.tokenize.subwords import SubwordTokenizer
from shoestring.data.tokenize.tokenizers import ByteTokenizer, Tokenizer, WordTokenizer

_FIRST, _LAST = ("[CLS]", "<cls>"), ("[SEP]", "<sep>")
_SPACES = " \t\n\r"


class SpecialTokens(NamedTuple):
    """The ids that are not part of a text."""

    vocab_size: int
    """Including the mask: one more than the tokenizer's if that has no mask."""
    mask: int
    first: int | None
    """[CLS], which starts a row to be classified; None if the tokenizer has none."""
    last: int | None
    """[SEP], which ends such a row."""
    fixed: tuple[int, ...]
    """Ids that are neither hidden nor used as random replacements, including the mask."""

    @property
    def plain(self) -> NDArray[np.int64]:
        """All other ids."""
        return np.setdiff1d(np.arange(self.vocab_size), self.fixed)


def special_tokens(tokenizer: Tokenizer) -> SpecialTokens:
    """The special tokens of a tokenizer; a word tokenizer need not be fitted."""
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
    """The id of the first of these names that is a special token; in a text it is read as that token."""
    for name in names:
        ids = tokenizer.encode(name).tolist()
        if len(ids) == 1 and ids[0] in tokenizer.specials:
            return int(ids[0])
    return None


def word_starts(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Whether each id starts a word, including the mask: a whole word, or a space, which belongs to the next word."""
    starts = np.ones(special_tokens(tokenizer).vocab_size, dtype=np.bool_)
    match tokenizer:
        case ByteTokenizer():
            starts[:] = False
            starts[tokenizer.encode(_SPACES).astype(np.int64)] = True
        case SubwordTokenizer():
            starts[: tokenizer.vocab_size] = tokenizer.word_starts()
    return starts
