"""The passes of a unit against naive ones: counts, hashes, words, tokens, and what occurs again."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core.errors import DataError
from shoestring.data.read.corpora import FilePart
from shoestring.data.read.documents import Document, Reading, Skipped
from shoestring.data.store import map_stage as passes
from shoestring.data.store.map_stage import (
    Job,
    UnitEntry,
    batches,
    count_documents,
    merged_ledger,
    read_json,
    resolve_duplicates,
    run_pass,
)
from shoestring.data.store.shards import Shard, dtype_for
from shoestring.data.store.store import SplitEntry, StorePaths, write_tokenizer
from shoestring.data.store.work_units import Piece, Unit, unit_heldout
from shoestring.data.tokenize.prompts import with_ends
from shoestring.data.tokenize.tokenizers import ByteTokenizer, Tokenizer, WordTokenizer

TEXTS = [f"Some text, number {i} é {'la ' * (i % 5)}.".strip() for i in range(50)]


def job_in(folder: Path, heldout: float = 0.2, unique: bool = False) -> Job:
    return Job(folder=folder / "store", heldout=heldout, unique=unique)


def unit_of(folder: Path, texts: list[str], number: int = 0, **reading: Any) -> Unit:
    path = folder / f"{number}.txt"
    path.write_bytes("".join(f"{text}\n" for text in texts).encode())
    return Unit(number, (Piece(FilePart(path, "text", Reading(**reading))),))


def split(texts: list[str], job: Job, unit: int) -> dict[str, list[str]]:
    """The documents of each split, by the definition."""
    held_out = unit_heldout(job.heldout, unit)
    found: dict[str, list[str]] = {"train": [], "heldout": []}
    for index, text in enumerate(texts):
        found["heldout" if held_out(index) else "train"].append(text)
    return found


def tokens_of(job: Job, unit: Unit, tokenizer: Tokenizer) -> UnitEntry:
    write_tokenizer(StorePaths(job.folder).tokenizer, tokenizer)
    assert run_pass("tokens", job, unit) == unit.number
    return UnitEntry.read(job.result("tokens", unit.number))


def read_back(job: Job, entry: SplitEntry) -> tuple[list[int], list[int]]:
    """All tokens of a unit's split, and where its documents end."""
    ids: list[int] = []
    ends: list[int] = []
    for known in entry.shards:
        shard = Shard(job.folder / known.name)
        assert (shard.tokens, shard.documents, shard.seal) == (known.tokens, known.documents, known.seal)
        assert shard.path.stat().st_size == known.bytes
        ends += [len(ids) + end for end in shard.document_ends().tolist()]
        ids += shard.ids(0, shard.tokens).tolist()
    return ids, ends


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), WordTokenizer.fit(9, TEXTS), WordTokenizer(70_000, ["some"])])
@pytest.mark.parametrize(("shard_tokens", "batch"), [(1 << 26, 1 << 21), (1, 1), (40, 30), (200, 1 << 21)])
def test_tokens_are_those_of_each_document_and_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, shard_tokens: int, batch: int
) -> None:
    monkeypatch.setattr(passes, "SHARD_TOKENS", shard_tokens)
    monkeypatch.setattr(passes, "BATCH_CHARACTERS", batch)
    passes._tokenizer.cache_clear()
    job, unit = job_in(tmp_path), unit_of(tmp_path, TEXTS, 3)
    entry = tokens_of(job, unit, tokenizer)
    for name, texts in split(TEXTS, job, 3).items():
        assert texts, "both splits have documents"
        documents = [[*tokenizer.encode(text).tolist(), tokenizer.end] for text in texts]
        ids, ends = read_back(job, entry.splits[name])
        assert ids == [token for document in documents for token in document]
        assert ends == np.cumsum([len(document) for document in documents]).tolist()
        assert entry.splits[name].tokens == len(ids)
        assert entry.splits[name].documents == len(texts)
        assert entry.splits[name].text_bytes == sum(len(text.encode()) for text in texts)
        shards = entry.splits[name].shards
        assert [shard.name for shard in shards] == [f"{name}-00003-{i:05}.tok" for i in range(len(shards))]
        assert {Shard(job.folder / shard.name).itemsize for shard in shards} == {
            dtype_for(tokenizer.vocab_size).itemsize
        }
        assert all(shard.tokens >= shard_tokens for shard in shards[:-1]), "only the last one may be smaller"
        if batch == 1:
            longest = max(map(len, documents))
            assert all(shard.tokens < shard_tokens + longest for shard in shards)
    assert entry.ledger == {"broken": 0, "empty": 0, "duplicates": 0, "examples": []}


def test_a_unit_without_documents_has_no_shards(tmp_path: Path) -> None:
    job, unit = job_in(tmp_path, unique=True), unit_of(tmp_path, ["", " "])
    assert count_documents(job, [unit], 5) == [0]
    run_pass("hash", job, unit)
    resolve_duplicates(job, [unit])
    run_pass("words", job, unit)
    assert read_json(job.result("words", 0)) == [[], []]
    entry = tokens_of(job, unit, ByteTokenizer())
    assert [(split.tokens, split.documents, split.shards) for split in entry.splits.values()] == [(0, 0, ())] * 2
    assert entry.ledger["empty"] == 2
    assert not list(job.folder.glob("*.tok"))


def test_a_unit_of_one_split_only(tmp_path: Path) -> None:
    job = job_in(tmp_path, heldout=0.01)
    entry = tokens_of(job, unit_of(tmp_path, ["one"]), ByteTokenizer())
    assert sorted(split.documents for split in entry.splits.values()) == [0, 1]
    assert len(list(job.folder.glob("*.tok"))) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=8), st.sampled_from([np.uint16, np.uint32]))
def test_ends_close_every_document_also_an_empty_one(documents: list[list[int]], dtype: type) -> None:
    ids = np.array([token for document in documents for token in document], dtype=dtype)
    sizes = np.array([len(document) for document in documents], dtype=np.int64)
    found = with_ends(ids, sizes, 77)
    assert found.dtype == dtype
    assert found.tolist() == [token for document in documents for token in [*document, 77]]


@pytest.mark.parametrize("characters", [1, 40, 500, 1 << 21])
def test_batches_are_the_documents_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, characters: int) -> None:
    monkeypatch.setattr(passes, "BATCH_CHARACTERS", characters)
    job, unit = job_in(tmp_path), unit_of(tmp_path, TEXTS)
    found = list(batches(job, unit, Skipped()))
    assert [text for batch in found for text in batch.texts] == TEXTS
    held_out = unit_heldout(job.heldout, 0)
    assert [held for batch in found for held in batch.held_out] == [held_out(i) for i in range(len(TEXTS))]
    longest = max(map(len, TEXTS))
    for batch in found[:-1]:
        assert characters <= sum(map(len, batch.texts)) < characters + longest
    assert len(found) > 1 or characters > sum(map(len, TEXTS))


def test_words_are_counted_in_training_documents_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "BATCH_CHARACTERS", 100)
    job, unit = job_in(tmp_path), unit_of(tmp_path, TEXTS, 2)
    run_pass("words", job, unit)
    words, counts = read_json(job.result("words", 2))
    training = split(TEXTS, job, 2)["train"]
    expected = Counter(word for text in training for word in text.lower().replace(",", " ,").replace(".", " .").split())
    assert dict(zip(words, counts, strict=True)) == expected
    assert len(words) == len(expected)
    assert "é" in (job.result("words", 2)).read_text(encoding="utf-8")


def test_documents_are_counted_up_to_the_limit(tmp_path: Path) -> None:
    unit = unit_of(tmp_path, [*TEXTS, "", "  "])
    job = job_in(tmp_path)
    other = Unit(1, unit.pieces)
    assert count_documents(job, [unit, other], len(TEXTS) + 7) == [len(TEXTS), 8], "and one, which says that it is cut"
    assert read_json(job.result("count", 0)) == len(TEXTS)
    assert not job.result("count", 1).exists(), "a unit that was not read to its end is not known"
    assert count_documents(job, [unit, other], len(TEXTS)) == [len(TEXTS)]
    assert count_documents(job, [unit, other], 10**9) == [len(TEXTS)] * 2


def test_a_pass_that_fails_leaves_no_result(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    path = tmp_path / "0.txt"
    path.write_bytes(b"good\nb\xffd\n")
    unit = Unit(0, (Piece(FilePart(path, "text", Reading())),))
    write_tokenizer(StorePaths(job.folder).tokenizer, ByteTokenizer())
    for name in passes.PASSES:
        with pytest.raises(DataError, match="line 2: not UTF-8"):
            run_pass(name, job, unit)
    assert not job.work.exists() or not list(job.work.iterdir())


def test_the_ledger_counts_what_was_left_out(tmp_path: Path) -> None:
    job = job_in(tmp_path, unique=True)
    path = tmp_path / "a.jsonl"
    lines = [*(json.dumps({"text": text}) for text in ("a", "b", "a", " ", "c", "b", "a")), "bad", "[]", "{}"] * 2
    path.write_text("\n".join(lines))
    unit = Unit(4, (Piece(FilePart(path, "jsonl", Reading(on_error="skip"))),))
    run_pass("hash", job, unit)
    resolve_duplicates(job, [unit])
    entry = tokens_of(job, unit, ByteTokenizer())
    assert sum(split.documents for split in entry.splits.values()) == 3
    examples = entry.ledger.pop("examples")
    assert entry.ledger == {"broken": 6, "empty": 2, "duplicates": 9}
    assert [example.partition(": ")[0] for example in examples] == [
        f"{path}, line {number}" for number in (8, 9, 10, 18, 19)
    ]


def test_ledgers_add_up() -> None:
    def entry(broken: int, examples: list[str]) -> UnitEntry:
        ledger = {"broken": broken, "empty": 10 * broken, "duplicates": 100 * broken, "examples": examples}
        return UnitEntry(splits={}, ledger=ledger)

    found = merged_ledger([entry(1, ["a"]), entry(0, []), entry(7, list("bcdef"))])
    assert found == {"broken": 8, "empty": 80, "duplicates": 800, "examples": list("abcde")}
    assert merged_ledger([]) == {"broken": 0, "empty": 0, "duplicates": 0, "examples": []}


# What occurs again


class Numbers:
    """A part whose documents are given."""

    size = block = None

    def __init__(self, texts: list[str]):
        self._texts = texts

    def documents(self, skipped: Skipped | None = None) -> Any:
        return (Document(text, "number", index) for index, text in enumerate(self._texts))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.sampled_from("abcdefg"), max_size=12), st.integers(0, 12)), min_size=1, max_size=5),
    st.sampled_from([1, 2, 7, 1 << 23]),
)
def test_the_first_of_equal_documents_stays(
    tmp_path_factory: pytest.TempPathFactory, corpus: list[tuple[list[str], int]], most: int
) -> None:
    job = job_in(tmp_path_factory.mktemp("again"), unique=True)
    made = [Unit(n, (Piece(Numbers(texts)),), limit) for n, (texts, limit) in enumerate(corpus)]  # type: ignore[arg-type]
    for unit in made:
        run_pass("hash", job, replace(unit, limit=None))  # more than is read later
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "ROUND_HASHES", most)
        resolve_duplicates(job, made)
    seen: set[str] = set()
    for unit, (texts, limit) in zip(made, corpus):
        texts = texts[:limit]
        expected = []
        for text in texts:
            expected.append(text in seen)
            seen.add(text)
        assert np.load(job.result("again", unit.number)).tolist() == expected
        kept = [text for batch in batches(job, unit, Skipped()) for text in batch.texts]
        assert kept == [text for text, again in zip(texts, expected) if not again]
        assert sum(batch.dropped for batch in batches(job, unit, Skipped())) == sum(expected)


def test_leaving_out_what_occurs_again_holds_nobody_else_out(tmp_path: Path) -> None:
    texts = [str(i % 30) for i in range(90)]
    plain, unique = job_in(tmp_path / "a"), job_in(tmp_path / "b", unique=True)
    unit = unit_of(tmp_path, texts)
    run_pass("hash", unique, unit)
    resolve_duplicates(unique, [unit])
    (all_of_them,), (first,) = (list(batches(job, unit, Skipped())) for job in (plain, unique))
    assert first.texts == texts[:30]
    assert first.held_out == all_of_them.held_out[:30]


def test_documents_that_differ_in_anything_are_not_equal(tmp_path: Path) -> None:
    texts = ["a", "A", "a.", "á", "a\u0301", "aa", "b"]
    job, unit = job_in(tmp_path, unique=True), unit_of(tmp_path, texts)
    run_pass("hash", job, unit)
    hashes = np.load(job.result("hash", 0))
    assert hashes.shape == (len(texts), 2)
    assert len({tuple(row) for row in hashes.tolist()}) == len(texts)
    resolve_duplicates(job, [unit])
    assert not np.load(job.result("again", 0)).any()


@pytest.mark.parametrize("most", [1, 3, 1 << 23])
def test_hashes_are_equal_in_both_halves_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(passes, "ROUND_HASHES", most)
    job = job_in(tmp_path, unique=True)
    job.work.mkdir(parents=True)
    hashes = [[(1, 2), (1, 3), (4, 2), (1, 2)], [(4, 3), (1, 3), (2**64 - 1, 0)], [(2**64 - 1, 0)]]
    made = [Unit(number, ()) for number in range(3)]
    for unit, rows in zip(made, hashes):
        with open(job.result("hash", unit.number), "wb") as file:
            np.save(file, np.array(rows, dtype="<u8"))
    resolve_duplicates(job, made)
    found = [np.load(job.result("again", unit.number)).tolist() for unit in made]
    assert found == [[False, False, False, True], [False, True, False], [True]]
