"""How many ids a tokenizer has, and how many tokens a text, by arithmetic: without numpy, so that a plan is quick."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from shoestring.core.errors import DataError
from shoestring.core.specs import TokenizerSpec

BYTE_SPECIALS = ("[PAD]", "[BOS]", "[EOS]", "[MASK]", "[CLS]", "[SEP]")
WORD_SPECIALS = ("<end>", "<unk>")
PIECES_END = "<|endoftext|>"
"""Of "bpe:N"."""
WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")
"""A word, or a punctuation mark, of a text in lower case."""
COUNTED_SECONDS = {"words": 1 / 68e6, "bytes": 1 / 690e6}
"""Seconds per byte of text that the tokenizers take: results/data-cpu.json."""
COMPILED_CHARACTERS = 1 << 23
"""Python finds the words of so many in about the second that compiled loops take to load."""

Count = Callable[[Sequence[str]], int]
"""From documents to the number of their tokens, without the end tokens."""


def tokenizer_spec(text: str) -> TokenizerSpec:
    """The text as a spec; raises DataError if it is not one."""
    spec = TokenizerSpec(text)
    if problem := spec.problem():
        raise DataError(f'data.tokenizer = "{text}": {problem}')
    return spec


def vocabulary_size(text: str, end: str | None = None, hides: bool = False) -> int:
    """How many ids the tokenizer will have, including the mask if tokens are hidden; the corpus is not read."""
    spec = tokenizer_spec(text)
    if spec.words is not None:
        return spec.words + len(WORD_SPECIALS) + hides
    if spec.pieces is not None:
        return spec.pieces + hides
    if spec == "bytes" and end is None:
        return 256 + len(BYTE_SPECIALS)
    from shoestring.data.tokenize.special_tokens import special_tokens
    from shoestring.data.tokenize.tokenizers import open_tokenizer  # reads the tokenizer's own files

    tokenizer = open_tokenizer(spec, end)
    return special_tokens(tokenizer).vocab_size if hides else tokenizer.vocab_size


def row_specials(text: str, end: str | None = None) -> int:
    """How many special tokens stand around the text of a row of a masked model, as [CLS] and [SEP]."""
    spec = tokenizer_spec(text)
    if spec.fitted is not None:
        return 0
    if spec == "bytes" and end is None:
        return 2
    from shoestring.data.tokenize.special_tokens import special_tokens
    from shoestring.data.tokenize.tokenizers import open_tokenizer  # reads the tokenizer's own files

    special = special_tokens(open_tokenizer(spec, end))
    return len(special.prefix) + len(special.suffix)


def text_room(length: int, specials: int) -> int:
    """Tokens of the text that a row of `length` holds beside its special tokens."""
    if specials >= length:
        raise DataError(
            f"data.length = {length}: the tokenizer puts {specials} special tokens around each row, which leaves no "
            f"room for text; use at least {specials + 1}"
        )
    return length - specials


def plain_count(spec: str) -> tuple[Count, float] | None:
    """How to count tokens, and the seconds per byte that the tokenizer takes; None if only the tokenizer can count."""
    if tokenizer_spec(spec).words is not None:
        return lambda documents: sum(len(WORD.findall(text.lower())) for text in documents), COUNTED_SECONDS["words"]
    if spec == "bytes":
        return lambda documents: sum(len(text.encode()) for text in documents), COUNTED_SECONDS["bytes"]
    return None


def in_batches(documents: Iterable[str], characters: int) -> Iterator[list[str]]:
    """The documents in lists of about so many characters."""
    batch: list[str] = []
    held = 0
    for document in documents:
        batch.append(document)
        held += len(document)
        if held >= characters:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch
