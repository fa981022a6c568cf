"""Tokenizers: ids as promised, and the N most frequent words by an independent count."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core.errors import DataError, StorageError
from shoestring.data.tokenize import tokenizers
from shoestring.data.tokenize.tokenizers import (
    ByteTokenizer,
    SymbolTokenizer,
    Tokenizer,
    WordTokenizer,
    open_tokenizer,
    read_tokenizer,
    tokenizer_fingerprint,
    tokenizer_identity,
)
from shoestring.data.tokenize.vocabulary import tokenizer_spec, vocabulary_size

checked = settings(max_examples=50, deadline=None)
TEXTS = st.text(alphabet="ab'cé_1 .!\t日", max_size=30)


def is_word(text: str, at: int) -> bool:
    return at < len(text) and (text[at].isalnum() or text[at] == "_")


def split_words(text: str) -> list[str]:
    """Words, at most one apostrophe inside, and single marks, by walking over the characters."""
    found, at = [], 0
    text = text.lower()
    while at < len(text):
        start = at
        if is_word(text, at):
            while is_word(text, at):
                at += 1
            if text[at : at + 1] == "'" and is_word(text, at + 1):
                at += 1
                while is_word(text, at):
                    at += 1
            found.append(text[start:at])
        else:
            at += 1
            if not text[start].isspace():
                found.append(text[start])
    return found


def most_frequent(texts: list[str], size: int) -> list[str]:
    counts = Counter(word for text in texts for word in split_words(text))
    ranked: list[str] = []
    while counts and len(ranked) < size:
        highest = max(counts.values())
        ranked.append(min(word for word, count in counts.items() if count == highest))
        del counts[ranked[-1]]
    return ranked


@checked
@given(st.text())
def test_bytes_give_back_any_text(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids.dtype == np.uint32
    assert ids.tolist() == [byte + 6 for byte in text.encode("utf-8")]


def test_bytes_have_the_ids_of_the_perceiver() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.vocab_size == 262
    assert tokenizer.end == 2
    assert tokenizer.encode("Hi é").tolist() == [78, 111, 38, 201, 175]
    assert tokenizer.decode(range(6)) == "[PAD][BOS][EOS][MASK][CLS][SEP]"
    assert tokenizer.decode([6 + 0xE9]) == "\ufffd", "a broken character must not stop the reading"


@checked
@given(st.lists(TEXTS, max_size=6), st.integers(1, 12))
def test_words_are_the_most_frequent_with_ties_in_alphabetical_order(texts: list[str], size: int) -> None:
    tokenizer = WordTokenizer.fit(size, texts)
    assert list(tokenizer.words) == most_frequent(texts, size)
    assert tokenizer.vocab_size == size + 2


@checked
@given(st.lists(TEXTS, max_size=4), TEXTS, st.integers(1, 8))
def test_words_get_their_place_and_others_are_unknown(texts: list[str], text: str, size: int) -> None:
    tokenizer = WordTokenizer.fit(size, texts)
    known = most_frequent(texts, size)
    words = split_words(text)
    ids = tokenizer.encode(text)
    assert ids.dtype == np.uint32
    assert ids.tolist() == [known.index(word) + 2 if word in known else 1 for word in words]
    assert tokenizer.decode(ids) == " ".join(word if word in known else "<unk>" for word in words)


def test_ids_without_a_word_are_unknown_and_the_end_has_a_name() -> None:
    tokenizer = WordTokenizer.fit(10, ["one two two"])
    assert tokenizer.end == 0
    assert tokenizer.decode([3, 2, 1, 0, 11]) == "one two <unk> <end> <unk>"
    assert tokenizer.encode("").tolist() == []


@pytest.mark.parametrize("spec", ["bytes", "words:1", "words:3", "words:500"])
@pytest.mark.parametrize("texts", [[], ["a b c d e"]])
def test_the_size_of_the_vocabulary_is_known_beforehand(spec: str, texts: list[str]) -> None:
    words = tokenizer_spec(spec).words
    tokenizer = open_tokenizer(spec) if words is None else WordTokenizer.fit(words, texts)
    assert tokenizer.vocab_size == vocabulary_size(spec)
    assert tokenizer.spec == spec
    assert tokenizer.encode("a b ? z").max() < tokenizer.vocab_size


@pytest.mark.parametrize(
    "spec", ["", "words", "words:", "words:0", "words:-3", "words:2.5", "byte", "bytes:3", "bpe:x", "file:", "hf:"]
)
def test_other_tokenizers_are_refused_by_name(spec: str) -> None:
    for refuse in (tokenizer_spec, vocabulary_size, open_tokenizer, lambda s: tokenizer_identity(s, None)):
        with pytest.raises(DataError) as caught:
            refuse(spec)
        message = str(caught.value)
        assert f'data.tokenizer = "{spec}": must be "bytes", "words:N" with N at least 1, "bpe:N"' in message


def test_bytes_have_an_end_of_their_own() -> None:
    assert open_tokenizer("bytes").spec == "bytes"
    with pytest.raises(DataError, match=r'data\.end = "</s>": bytes end a document with \[EOS\]'):
        open_tokenizer("bytes", "</s>")


def test_bytes_lie_in_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Path] = []
    monkeypatch.setattr(Path, "iterdir", lambda path: looked.append(path) or iter([]))
    open_tokenizer("bytes")
    assert not looked


@checked
@given(st.lists(st.tuples(TEXTS, st.integers(1, 3)), max_size=6), st.integers(1, 12))
def test_counts_added_up_elsewhere_give_the_same_words(texts: list[tuple[str, int]], size: int) -> None:
    counts: Counter[str] = Counter()
    for text, times in texts:
        for word in split_words(text):
            counts[word] += times
    expected = WordTokenizer.fit(size, [text for text, times in texts for _ in range(times)])
    assert WordTokenizer.of_counts(size, counts).words == expected.words
    backwards = dict(sorted(counts.items(), reverse=True))
    assert WordTokenizer.of_counts(size, backwards).words == expected.words, "in whatever order they come"


def check_batch(tokenizer: Tokenizer, texts: list[str]) -> None:
    ids, sizes = tokenizer.encode_batch(texts)
    assert sizes.dtype == np.int64
    assert len(sizes) == len(texts) and int(sizes.sum()) == len(ids)
    for text, part in zip(texts, np.split(ids, np.cumsum(sizes)[:-1])):
        assert part.tolist() == tokenizer.encode(text).tolist()


@checked
@given(st.lists(TEXTS, max_size=8), st.lists(TEXTS, max_size=3), st.booleans())
def test_a_batch_is_its_documents_one_behind_the_other(texts: list[str], known: list[str], compiled: bool) -> None:
    check_batch(ByteTokenizer(), texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizers, "COMPILED_CHARACTERS", 0 if compiled else 1 << 22)
        tokenizer = WordTokenizer.fit(5, known)
        check_batch(tokenizer, texts)
        assert (tokenizer._encoder is not None) == compiled


@checked
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=1, max_size=5))
def test_symbols_are_their_numbers(rows: list[list[int]]) -> None:
    tokenizer = SymbolTokenizer(7)
    texts = [" ".join(map(str, row)) for row in rows]
    check_batch(tokenizer, texts)
    assert [tokenizer.encode(text).tolist() for text in texts] == rows
    assert [tokenizer.decode(row) for row in rows] == texts
    assert tokenizer.end is None


def test_symbols_may_have_names_and_there_are_no_others() -> None:
    tokenizer = SymbolTokenizer(3, ["a", "b", "."])
    assert tokenizer.encode("b a .").tolist() == [1, 0, 2]
    assert tokenizer.decode([1, 0, 2]) == "b a ."
    with pytest.raises(DataError, match='"c" is not one of the 3 symbols'):
        tokenizer.encode("a c")


def test_the_fingerprint_tells_tokenizers_apart() -> None:
    tokenizers = [
        ByteTokenizer(),
        WordTokenizer(3, ["a", "b"]),
        WordTokenizer(4, ["a", "b"]),
        WordTokenizer(3, ["b", "a"]),
        WordTokenizer(3, ["a"]),
        WordTokenizer(3, ["a", "c"]),
        SymbolTokenizer(3),
        SymbolTokenizer(4),
        SymbolTokenizer(3, ["a", "b", "c"]),
    ]
    assert len({tokenizer_fingerprint(t) for t in tokenizers}) == len(tokenizers)
    assert tokenizer_fingerprint(WordTokenizer(3, ("a", "b"))) == tokenizer_fingerprint(tokenizers[1])


def test_the_identity_is_known_before_the_words_are() -> None:
    assert tokenizer_identity("bytes", None) == "bytes"
    assert tokenizer_identity("words:30", None) == "words:30"


@pytest.mark.parametrize(
    "tokenizer",
    [
        ByteTokenizer(),
        WordTokenizer(4, ["é", '"', "\\", "日"]),
        SymbolTokenizer(5, ["é", '"', "\\", "日", "x"]),
    ],
)
def test_a_tokenizer_reads_back_from_its_file(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "tokenizer.json"
    for ascii_only in (True, False):
        path.write_text(json.dumps(tokenizer.to_dict(), ensure_ascii=ascii_only), encoding="utf-8")
        read = read_tokenizer(path)
        assert tokenizer_fingerprint(read) == tokenizer_fingerprint(tokenizer)
        assert (read.spec, read.vocab_size, read.end) == (tokenizer.spec, tokenizer.vocab_size, tokenizer.end)
        assert read.encode('é " \\ 日 x').tolist() == tokenizer.encode('é " \\ 日 x').tolist()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"3",
        b"{}",
        b'{"spec": 3}',
        b'{"spec": null}',
        b'{"spec": ["words:3"]}',
        b'{"spec": "words:3"}',
        b'{"spec": "words:3", "words": 5}',
        b'{"spec": "words:3", "words": [[]]}',
        b'{"spec": "other"}',
        b'{"spec": "subwords"}',
        b'{"spec": "subwords", "json": "{}", "end": 0, "mask": null}',
        b'{"spec": "symbols:"}',
        b'{"spec": "symbols:3"}',
        b"\xff\xfe",
    ],
)
def test_a_file_that_is_no_tokenizer_is_a_data_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(DataError):
        read_tokenizer(path)


def test_a_missing_tokenizer_file_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such file"):
        read_tokenizer(tmp_path / "tokenizer.json")
