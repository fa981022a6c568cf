"""Fast words and bytes: equal to the regular expression and to the tokenizers, on any text."""

import gzip
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.data.tokenize import word_counts
from shoestring.data.tokenize.fast_words import WordCounter, WordEncoder
from shoestring.data.tokenize.tokenizers import ByteTokenizer, WordTokenizer, words_of
from shoestring.data.tokenize.word_counts import WordCounts

REAL_DATA = Path(__file__).parents[3] / "shared" / "data"
REAL_TEXTS = [
    "enwik/enwik5.gz",
    "hate-speech-tweets/labeled_data.csv.gz",
    "hmm-sentences/sentences-300.txt",
    "tinyshakespeare/input.txt.gz",
    "tinystories/stories.txt.gz",
    "tinystories/valid_sample.txt.gz",
    "wikipedia/en_paragraphs.txt.gz",
    "wikipedia/ja_paragraphs.txt.gz",
    "wikitext-2/test.txt.gz",
    "wikitext-2/train.txt.gz",
    "wikitext-2/valid.txt.gz",
]

checked = settings(max_examples=100, deadline=None)
TRICKY = st.text(alphabet="aB'’`_1 .!?\t\n\x00\x1c\x85éÉİΣςſKßǅ\u0301\u0307²日。\u3000ー𝐀😀", max_size=30)
TEXTS = st.lists(st.one_of(TRICKY, st.text()), max_size=6)


def counted(counter: WordCounter) -> dict[str, int]:
    return dict(zip(*counter.counted(), strict=True))


def check(documents: Sequence[str], size: int, batch: int) -> None:
    """Counts, ids and lengths are those of the slow tokenizers."""
    parts = [slice(at, at + batch) for at in range(0, len(documents), batch)] or [slice(0)]
    slow = WordTokenizer.fit(size, documents)
    counter = WordCounter()
    for part in parts:
        counter.add(documents[part])
    counts = counted(counter)
    assert counts == Counter(word for text in documents for word in words_of(text))
    assert WordTokenizer.of_counts(size, counts).words == slow.words
    encoder = WordEncoder(slow.words, len(slow.SPECIALS), slow.unknown)
    for tokenizer, encode in ((slow, encoder.encode_batch), (ByteTokenizer(), ByteTokenizer().encode_batch)):
        expected = [tokenizer.encode(text) for text in documents]
        ids, sizes = zip(*[encode(documents[part]) for part in parts])
        assert np.concatenate(sizes).tolist() == [len(tokens) for tokens in expected]
        assert np.array_equal(np.concatenate(ids), np.concatenate([*expected, []]))


@checked
@given(TEXTS, st.integers(1, 40), st.integers(1, 6))
def test_any_text_has_the_words_of_the_regular_expression(documents: list[str], size: int, batch: int) -> None:
    check(documents, size, batch)


@checked
@given(TEXTS, st.lists(TRICKY, max_size=8), st.integers(2, 9))
def test_any_vocabulary_is_looked_up_as_in_a_dictionary(documents: list[str], words: list[str], first: int) -> None:
    slow = WordTokenizer(8, words)
    shift = first - len(slow.SPECIALS)
    ids, sizes = WordEncoder(words, first, first + 1000).encode_batch(documents)
    assert ids.dtype == np.uint32 and sizes.dtype == np.int64
    expected = [token for text in documents for token in slow.encode(text).tolist()]
    assert ids.tolist() == [first + 1000 if token == slow.unknown else token + shift for token in expected]


def test_characters_of_every_plane() -> None:
    codes = [*range(0x3100), *range(0x3100, 0xD800, 13), *range(0xE000, sys.maxunicode + 1, 13)]
    check(["".join(map(chr, codes)), "".join(f"{chr(code)}'" for code in codes)], 100_000, batch=2)


def test_a_document_ends_its_last_word() -> None:
    ids, sizes = WordEncoder(["don't", "don", "'", "t"], 2, 1).encode_batch(
        ["don", "'t", "", "don'", "t", "don't", " "]
    )
    assert ids.tolist() == [3, 4, 5, 3, 4, 5, 2]
    assert sizes.tolist() == [1, 2, 0, 2, 1, 1, 0]


def test_nothing_has_no_words() -> None:
    counter = WordCounter()
    assert counter.counted() == ([], [])
    counter.add([])
    counter.add(["", " \t"])
    assert (len(counter), counter.counted()) == (0, ([], []))
    counter.add(["a"])
    assert (len(counter), counter.counted()) == (1, (["a"], [1]))
    for encode in (WordEncoder([], 2, 1).encode_batch, ByteTokenizer().encode_batch):
        ids, sizes = encode([])
        assert (ids.tolist(), sizes.tolist()) == ([], [])
    assert WordEncoder([], 2, 1).encode_batch(["a b"])[0].tolist() == [1, 1]


def test_the_table_grows_with_the_words() -> None:
    words = [f"{'long' * (index % 97)}{index}" for index in range(20_000)]
    documents = [" ".join(words[at : at + 100] + words[: at // 100]) for at in range(0, len(words), 100)]
    check([*documents, "x" * 1_000_000], 30_000, batch=7)


def test_words_of_equal_hash_stay_apart() -> None:
    """A Thue–Morse word and its complement have the same polynomial hash modulo 2^64, whatever the factor."""
    one, other = "a", "b"
    while len(one) < 2048:
        one, other = one + other, other + one
    counter = WordCounter()
    counter.add([f"{one} {other} {one}"])
    assert counter._table.keys[0] == counter._table.keys[1], "else this test shows nothing"
    assert counted(counter) == {one: 2, other: 1}
    ids, _ = WordEncoder([other, one], 2, 1).encode_batch([f"{one} {other}"])
    assert ids.tolist() == [3, 2]
    assert WordEncoder([other], 2, 1).encode_batch([one])[0].tolist() == [1]


def test_threads_share_an_encoder() -> None:
    encoder = WordEncoder([str(number) for number in range(500)], 2, 1)
    documents = [" ".join(str(number * step % 700) for number in range(2000)) for step in range(1, 9)]
    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(lambda text: encoder.encode_batch([text])[0].tolist(), documents)]
    assert found == [encoder.encode_batch([text])[0].tolist() for text in documents]


@pytest.mark.realdata
@pytest.mark.parametrize("name", REAL_TEXTS)
def test_real_text(name: str) -> None:
    path = REAL_DATA / name
    if not path.is_file():
        pytest.skip(f"no {path}")
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = content.decode().split("\n")
    check(lines[:: 1 + len(content) // 400_000], 5000, batch=1000)


@checked
@given(st.lists(TEXTS, max_size=5), st.integers(0, 60))
def test_counts_are_the_same_wherever_compiled_loops_take_over(batches: list[list[str]], limit: int) -> None:
    counts = WordCounts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_counts, "COMPILED_CHARACTERS", limit)
        for batch in batches:
            counts.add(batch)
    expected = Counter(word for batch in batches for text in batch for word in words_of(text))
    assert counts.counted() == (list(expected), list(expected.values()))
