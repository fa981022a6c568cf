"""Pieces of bytes that are fitted to a corpus: most frequent pairs, every text back, a size that is known before."""

import itertools
import json
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers as library
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core.errors import DataError
from shoestring.core.recipe import fingerprint
from shoestring.core.sections import Data
from shoestring.core.specs import LEAST_PIECES, MOST_PIECES
from shoestring.data.read.corpora import open_source
from shoestring.data.read.density import measure_density
from shoestring.data.store import maker
from shoestring.data.store.prepare import prepare
from shoestring.data.store.store import Store
from shoestring.data.tokenize.pieces import END, first_of, fit_pieces
from shoestring.data.tokenize.subwords import SubwordTokenizer
from shoestring.data.tokenize.tokenizers import fit_tokenizer, open_tokenizer, read_tokenizer, tokenizer_identity
from shoestring.data.tokenize.vocabulary import PIECES_END, tokenizer_spec, vocabulary_size

STORY = "Once upon a time there was a cat. The cat sat on the mat, and the mat was flat."
TEXTS = [f"{STORY} It had {i} café{'s' * (i % 2)}.\n" for i in range(30)]


def merges_of(tokenizer: SubwordTokenizer) -> list[tuple[str, str]]:
    return [(left, right) for left, right in json.loads(tokenizer.to_dict()["json"])["model"]["merges"]]


def _joined(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    found, index = list[str](), 0
    while index < len(word):
        both = word[index : index + 2] == pair
        found.append("".join(pair) if both else word[index])
        index += 1 + both
    return tuple(found)


def test_every_merge_is_of_a_most_frequent_pair() -> None:
    merges = merges_of(_fitted())
    assert len(merges) > 50
    split = library.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    words = Counter(tuple(word) for text in TEXTS for word, _ in split(text))
    for merge in merges:
        pairs = Counter[tuple[str, str]]()
        for word, times in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += times
        assert pairs[merge] == max(pairs.values())
        words = Counter({_joined(word, merge): times for word, times in words.items()})


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_every_text_comes_back_byte_for_byte(text: str) -> None:
    tokenizer = _fitted()
    ids = tokenizer.encode(text)
    if PIECES_END not in text and "<|unused" not in text:
        assert tokenizer.decode(ids) == text
        assert END not in ids.tolist()
    assert len(ids) == 0 or ids.max() < tokenizer.vocab_size


@cache
def _fitted() -> SubwordTokenizer:
    return fit_pieces(600, TEXTS)


@pytest.mark.parametrize("size", [LEAST_PIECES, 700])
@pytest.mark.parametrize("texts", [[], ["a b"], TEXTS])
def test_the_size_is_known_before(size: int, texts: list[str]) -> None:
    spec = tokenizer_spec(f"bpe:{size}")
    tokenizer = fit_tokenizer(spec, texts)
    assert tokenizer.vocab_size == vocabulary_size(spec) == size
    assert tokenizer.end == END
    assert vocabulary_size(spec, hides=True) == size + 1


@pytest.mark.parametrize(
    ("spec", "said"),
    [("bpe:511", "N must be at least 512"), (f"bpe:{MOST_PIECES + 1}", "N must be at most"), ("bpe:", "must be")],
)
def test_other_sizes_are_refused(spec: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        tokenizer_spec(spec)


def test_another_end_is_refused() -> None:
    with pytest.raises(
        DataError, match=r'data\.end = "</s>": a tokenizer "bpe:N" ends a document with <\|endoftext\|>'
    ):
        tokenizer_identity("bpe:600", "</s>")
    assert tokenizer_identity("bpe:600", None) == "bpe:600"
    with pytest.raises(AssertionError):
        open_tokenizer("bpe:600")


def data_of(folder: Path, texts: list[str], **more: Any) -> Data:
    (folder / "corpus.txt").write_text("\n".join(text.strip() for text in texts) + "\n")
    data = Data(source=f"text:{folder / 'corpus.txt'}", tokenizer="bpe:600", folder=str(folder / "stores"), heldout=0.3)
    return replace(data, **more)


def test_a_store_is_fitted_to_its_training_documents_alone(tmp_path: Path) -> None:
    texts = [*TEXTS, *(f"zqzq{i} zqzq{i} zqzq{i}" for i in range(8))]
    store = prepare(data_of(tmp_path, texts), 0, None)
    assert store is not None
    kept = read_tokenizer(store.paths.tokenizer)
    training, held_out = (
        [kept.decode(part[:-1]) for part in _documents(store, name, kept.end)] for name in ("train", "heldout")
    )
    assert sorted([*training, *held_out]) == sorted(text.strip() for text in texts)
    assert fingerprint(kept.to_dict()) == fingerprint(fit_pieces(600, training).to_dict())
    assert fingerprint(kept.to_dict()) != fingerprint(fit_pieces(600, [*training, *held_out]).to_dict())
    assert store.manifest.vocab_size == 600


def _documents(store: Store, name: str, end: int | None) -> list[list[int]]:
    found, document = list[list[int]](), list[int]()
    for index in (int(i) for part in store.split(name, 1).stream() for i in part):
        document.append(index)
        if index == end:
            found.append(document)
            document = []
    return found


def test_duplicates_and_parts_make_the_same_tokenizer(tmp_path: Path) -> None:
    texts = [*TEXTS, *TEXTS[:9]]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    whole = prepare(data_of(tmp_path / "one", texts, unique=True), 0, None)
    other, store = data_of(tmp_path / "two", texts, unique=True), None
    for part in (0, 1, 0, 1, 0, 1):
        store = store or prepare(other, 0, None, part=(part, 2))
    assert whole is not None
    assert store is not None
    assert store.paths.tokenizer.read_text() == whole.paths.tokenizer.read_text()
    plain = prepare(replace(other, unique=False), 0, None)
    assert plain is not None
    assert plain.paths.tokenizer.read_text() != whole.paths.tokenizer.read_text()


def test_no_more_text_is_read_than_pieces_are_fitted_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maker, "FITTED_TEXT", 300)
    store = prepare(data_of(tmp_path, TEXTS, heldout=0.0), 0, None, processes=1)
    assert store is not None
    few = fit_pieces(600, first_of([text.strip() for text in TEXTS], 300, 10**6))
    assert fingerprint(read_tokenizer(store.paths.tokenizer).to_dict()) == fingerprint(few.to_dict())
    assert len(list(first_of(TEXTS, 300, 10**6))) == -(-300 // len(TEXTS[0]))


def test_pieces_are_fitted_to_fewer_texts_where_all_words_differ() -> None:
    same, other = ["a word " * 50] * 9, [f"{i}語" * 50 for i in range(9)]
    assert len(list(first_of(same, 10**6, 500))) == 9
    sizes = [len(text.encode()) for text in other]
    assert len(list(first_of(other, 10**6, 500))) == next(n for n in range(10) if sum(sizes[:n]) >= 500)


def test_the_density_of_a_corpus_is_near_its_tokens(tmp_path: Path) -> None:
    data = data_of(tmp_path, TEXTS * 20)
    density, store = measure_density(open_source(data, 0), data), prepare(data, 0, None)
    assert store is not None
    tokens = sum(split.tokens for split in store.manifest.splits.values())
    assert density.documents == len(TEXTS) * 20
    assert density.tokens == pytest.approx(tokens, rel=0.02)
