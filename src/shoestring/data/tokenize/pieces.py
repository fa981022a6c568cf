"""Byte-level pieces that are fitted to a corpus: `data.tokenizer = "bpe:N"`.

Byte-pair encoding by the `tokenizers` library, over the bytes of words as GPT-2 parts them. Every text can be written
in them and comes back byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shoestring.data.tokenize.subwords import SubwordTokenizer
from shoestring.data.tokenize.vocabulary import PIECES_END

END = 0
"""The id of the token that ends a document."""


def fit_pieces(size: int, documents: Iterable[str]) -> SubwordTokenizer:
    """A tokenizer of `size` ids, the same for the same documents in any order of threads.

    Where a text is too small for so many merges, the rest are ids that no text has, so that the size is known
    beforehand.
    """
    import tokenizers as library

    backend = library.Tokenizer(library.models.BPE())
    backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PIECES_END],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(documents, trainer)
    backend.add_special_tokens([f"<|unused {index}|>" for index in range(backend.get_vocab_size(), size)])
    return SubwordTokenizer(SubwordTokenizer.KIND, backend, backend.to_str(), END, None)


def first_of(texts: Iterable[str], most: int, distinct: int) -> Iterator[str]:
    """The first texts, of `most` characters together, or `distinct` bytes of different words; or a little more.

    What fitting takes grows with the different words, which are many where no spaces part them.
    """
    seen, size, known = 0, 0, set[str]()
    for text in texts:
        if seen >= most or size >= distinct:
            return
        new = set(text.split()) - known
        known |= new
        seen, size = seen + len(text), size + sum(len(word.encode()) for word in new)
        yield text
