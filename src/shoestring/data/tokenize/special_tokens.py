"""What masking and classification need of a tokenizer: its mask, the ids around a row, and which ids start a word."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoestring.data.tokenize.subwords import SubwordTokenizer
from shoestring.data.tokenize.tokenizers import ByteTokenizer, Tokenizer, WordTokenizer
from shoestring.data.tokenize.vocabulary import text_room

_CLASS, _END = ("[CLS]", "<cls>"), ("[SEP]", "<sep>")
_SPACES = " \t\n\r"


class SpecialTokens(NamedTuple):
    """The ids that are not part of a text."""

    vocab_size: int
    """Including the mask: one more than the tokenizer's if that has no mask."""
    mask: int
    prefix: tuple[int, ...]
    """Ids before the text of a row, as [CLS] or <s>; empty if the tokenizer has none."""
    suffix: tuple[int, ...]
    """Ids after it, as [SEP] or </s>."""
    fixed: tuple[int, ...]
    """Ids that are neither hidden nor used as random replacements: the mask, and those around a row, among others."""

    @property
    def plain(self) -> NDArray[np.int64]:
        """All other ids."""
        return np.setdiff1d(np.arange(self.vocab_size), self.fixed)

    def room(self, length: int) -> int:
        """Tokens of the text that a row of `length` holds between prefix and suffix."""
        return text_room(length, len(self.prefix) + len(self.suffix))


def special_tokens(tokenizer: Tokenizer) -> SpecialTokens:
    """The special tokens of a tokenizer; a word tokenizer need not be fitted."""
    mask: int | None = None
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    fixed = set() if tokenizer.end is None else {tokenizer.end}
    match tokenizer:
        case ByteTokenizer():
            mask, before, after = (tokenizer.SPECIALS.index(name) for name in ("[MASK]", "[CLS]", "[SEP]"))
            prefix, suffix = (before,), (after,)
            fixed |= set(range(len(tokenizer.SPECIALS)))
        case WordTokenizer():
            fixed |= set(range(len(tokenizer.SPECIALS)))
        case SubwordTokenizer():
            mask, (prefix, suffix) = tokenizer.mask, _around(tokenizer)
            fixed |= {*tokenizer.specials, *prefix, *suffix}
    if mask is None:
        mask = tokenizer.vocab_size
    return SpecialTokens(max(tokenizer.vocab_size, mask + 1), mask, prefix, suffix, tuple(sorted(fixed | {mask})))


def _around(tokenizer: SubwordTokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the tokenizer itself adds before and after a text; without such a rule, its class and separator tokens.

    XLNet's closes a text with its class token. It is moved to the front, since encoders here classify by the first
    position.
    """
    prefix, suffix = tokenizer.added()
    class_token = _written(tokenizer, _CLASS)
    if not prefix and not suffix:
        return class_token, _written(tokenizer, _END)
    if not prefix and class_token and suffix[-1:] == class_token:
        return class_token, suffix[:-1]
    return prefix, suffix


def _written(tokenizer: SubwordTokenizer, names: tuple[str, ...]) -> tuple[int, ...]:
    """The id of the first of these names that is a special token; in a text it is read as that token."""
    for name in names:
        ids = tokenizer.encode(name).tolist()
        if len(ids) == 1 and ids[0] in tokenizer.specials:
            return (int(ids[0]),)
    return ()


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
