"""Preparing a store: reproducible, restartable, split as asked, and refused early when it cannot work."""

import gzip
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

import shoestring
from shoestring.core.errors import DataError, RunError, StorageError
from shoestring.core.recipe import Data
from shoestring.data import prepare as preparing
from shoestring.data.prepare import estimate_bytes, measure_density, prepare, store_folder
from shoestring.data.sources import open_source
from shoestring.data.store import Store

REAL_DATA = Path(__file__).parents[2].parent / "shared" / "data"


def write_corpus(folder: Path, documents: list[str], name: str = "corpus.txt") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes("".join(f"{text}\n" for text in documents).encode())
    return path


def data_of(path: Path, folder: Path, tokenizer: str = "bytes", heldout: float = 0.2) -> Data:
    return Data(source=f"text:{path}", tokenizer=tokenizer, heldout=heldout, folder=str(folder))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != ".lock"}


def texts_of(store: Store, split: str) -> list[str]:
    """The documents of a split of numbers, read back from its tokens."""
    if not store.manifest.splits[split].documents:
        return []
    ids = [int(i) for part in store.split(split, 1).stream() for i in part]
    assert ids[-1] == store.manifest.end
    return store.tokenizer.decode(ids).split("[EOS]")[:-1]


def child(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(shoestring.__file__).parents[1])}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("tokenizer", ["bytes", "words:7"])
def test_the_same_store_is_made_twice_byte_for_byte(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "SHARD_TOKENS", 100)
    corpus = write_corpus(tmp_path, [f"the story {i * i} of {i}" for i in range(60)])
    one, two = (prepare(data_of(corpus, tmp_path / name, tokenizer), 0, None) for name in ("a", "b"))
    assert files_of(one.paths.folder) == files_of(two.paths.folder)
    assert len(files_of(one.paths.folder)) > 5
    assert one.paths.folder.name == two.paths.folder.name


def test_stories_are_the_same_store_twice(tmp_path: Path) -> None:
    one, two = (prepare(Data(tokenizer="words:50", folder=str(tmp_path / name)), 3, 40) for name in ("a", "b"))
    assert files_of(one.paths.folder) == files_of(two.paths.folder)
    assert sum(split.documents for split in one.manifest.splits.values()) == 40


def test_another_source_tokenizer_seed_count_or_share_has_another_folder(tmp_path: Path) -> None:
    corpus, other = (write_corpus(tmp_path / name, ["one", "two"]) for name in ("a", "b"))
    data = data_of(corpus, tmp_path)
    folders = [
        store_folder(data, 0, None),
        store_folder(data, 1, None),
        store_folder(data, 0, 1),
        store_folder(data_of(other, tmp_path), 0, None),
        store_folder(data_of(corpus, tmp_path, "words:3"), 0, None),
        store_folder(data_of(corpus, tmp_path, heldout=0.3), 0, None),
        store_folder(Data(folder=str(tmp_path)), 0, 5),
    ]
    assert len(set(folders)) == len(folders)
    assert store_folder(data_of(corpus, tmp_path), 0, None) == folders[0]


def test_a_store_that_is_there_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_of(write_corpus(tmp_path, ["one", "two", "three"]), tmp_path)
    first = prepare(data, 0, None)
    monkeypatch.setattr(preparing, "_write", None)
    assert prepare(data, 0, None).manifest == first.manifest


class Killed(Exception):
    pass


def stop(count: int) -> None:
    raise Killed


def test_a_preparation_that_broke_starts_again_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "SHARD_TOKENS", 200)
    corpus = write_corpus(tmp_path, [f"document {i}" for i in range(1500)])
    broken, whole = data_of(corpus, tmp_path / "broken"), data_of(corpus, tmp_path / "whole")
    with pytest.raises(Killed):
        prepare(broken, 0, None, stop)
    folder = store_folder(broken, 0, None)
    assert list(folder.glob("train-*.tok")), "it must have been in the middle"
    with pytest.raises(DataError, match="no manifest"):
        Store(folder)
    again = prepare(broken, 0, None)
    assert files_of(again.paths.folder) == files_of(prepare(whole, 0, None).paths.folder)


def test_a_killed_process_leaves_neither_a_lock_nor_a_half_store(tmp_path: Path) -> None:
    code = """
import os, sys
from shoestring.core.recipe import Data
from shoestring.data import prepare as preparing
preparing.SHARD_TOKENS = 200
data = Data(source=f"text:{sys.argv[1]}", heldout=0.2, folder=sys.argv[2])
preparing.prepare(data, 0, None, lambda count: os._exit(9))
"""
    corpus = write_corpus(tmp_path, [f"document {i}" for i in range(100)])
    killed = child(code, corpus, tmp_path / "killed")
    assert killed.returncode == 9, killed.stderr
    data = data_of(corpus, tmp_path / "killed")
    assert list(store_folder(data, 0, None).glob("train-*.tok"))
    store = prepare(data, 0, None)
    whole = prepare(data_of(corpus, tmp_path / "whole"), 0, None)
    assert store.manifest.splits["train"].tokens == whole.manifest.splits["train"].tokens
    assert texts_of(store, "train") == texts_of(whole, "train")


def test_what_a_killed_process_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_corpus(tmp_path, [f"document {i}" for i in range(100)])
    data = data_of(corpus, tmp_path / "stores")
    folder = store_folder(data, 0, None)
    folder.mkdir(parents=True)
    (folder / ".train-00000.tok.1234.tmp").write_bytes(b"half a shard")
    prepare(data, 0, None)
    assert {path.suffix for path in folder.iterdir() if path.name != ".lock"} == {".tok", ".json"}


def test_a_second_process_is_told_who_prepares_the_store(tmp_path: Path) -> None:
    code = """
import sys
from shoestring.core.errors import RunError
from shoestring.core.recipe import Data
from shoestring.data.prepare import prepare
try:
    prepare(Data(source=f"text:{sys.argv[1]}", heldout=0.2, folder=sys.argv[2]), 0, None)
except RunError as error:
    print(error)
"""
    corpus = write_corpus(tmp_path, [f"document {i}" for i in range(50)])
    data = data_of(corpus, tmp_path / "stores")
    seen = []

    def meanwhile(count: int) -> None:
        seen.append(child(code, corpus, tmp_path / "stores"))
        with pytest.raises(RunError, match="in use"):
            prepare(data, 0, None)

    store = prepare(data, 0, None, meanwhile)
    assert seen[0].returncode == 0, seen[0].stderr
    assert f"the store {store.paths.folder} is in use by process {os.getpid()} on " in seen[0].stdout
    assert sorted(texts_of(store, "train") + texts_of(store, "heldout")) == sorted(f"document {i}" for i in range(50))


@pytest.mark.parametrize("heldout", [0.02, 0.1, 0.25, 0.3, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_any_number_of_documents_has_the_share_asked_for_within_one(tmp_path: Path, heldout: float, seed: int) -> None:
    corpus = write_corpus(tmp_path, [str(i) for i in range(3_000)])
    store = prepare(data_of(corpus, tmp_path / "stores", heldout=heldout), seed, None)
    train, held = ([int(text) for text in texts_of(store, split)] for split in ("train", "heldout"))
    assert train == sorted(train)
    assert held == sorted(held)
    assert sorted(train + held) == list(range(3_000)), "disjoint and complete"
    chosen = set(held)
    excess = list(itertools.accumulate((i in chosen) - heldout for i in range(3_000)))
    assert max(map(abs, excess)) <= 1 + 1e-6, "from the first document on"
    assert max(excess) - min(excess) <= 2 + 1e-6, "between any two"


def test_a_rhythm_of_the_corpus_is_not_held_out(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, [str(i) for i in range(2_000)])
    store = prepare(data_of(corpus, tmp_path / "stores", heldout=0.5), 0, None)
    odd = [int(text) % 2 for text in texts_of(store, "heldout")]
    assert 400 < sum(odd) < 600, "every second document is not always the one held out"


def test_who_is_held_out_does_not_depend_on_how_many_are_read(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, [str(i) for i in range(300)])
    data = data_of(corpus, tmp_path / "stores")
    held = set(texts_of(prepare(data, 0, None), "heldout"))
    for count in (1, 2, 17, 150, 299):
        store = prepare(data, 0, count)
        read = {str(i) for i in range(count)}
        assert set(texts_of(store, "heldout")) == held & read
        assert set(texts_of(store, "train")) == read - held


def test_another_seed_holds_others_out(tmp_path: Path) -> None:
    data = data_of(write_corpus(tmp_path, [str(i) for i in range(300)]), tmp_path / "stores", heldout=0.02)
    assert len({tuple(texts_of(prepare(data, seed, None), "heldout")) for seed in range(6)}) > 1


def test_words_are_counted_on_training_documents_alone(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, [f"common w{i}" for i in range(40)])
    store = prepare(data_of(corpus, tmp_path / "stores", "words:1000"), 0, None)
    ids = [int(i) for part in store.split("heldout", 1).stream() for i in part]
    assert set(ids) == {0, 1, 2}, "the end, an unknown word and the common one"


def test_more_documents_than_there_are_is_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "free_bytes", lambda _: 1_000_000)
    data = data_of(write_corpus(tmp_path, ["one", "two", "three"]), tmp_path)
    store = prepare(data, 0, 10**9)
    assert store.manifest.source["documents"] == 3


def test_progress_counts_the_documents(tmp_path: Path) -> None:
    seen: list[int] = []
    prepare(data_of(write_corpus(tmp_path, [str(i) for i in range(2500)]), tmp_path), 0, None, seen.append)
    assert seen == [1000, 2000, 2500]


@pytest.mark.parametrize("text", ["", "\n\n  \n"])
def test_an_empty_corpus_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text(text)
    data = data_of(path, tmp_path)
    with pytest.raises(DataError, match=f'data.source = "text:{path}": the corpus is empty'):
        prepare(data, 0, None)
    with pytest.raises(DataError, match="the corpus is empty"):
        measure_density(open_source(data.source, 0), data)


def test_a_corpus_shorter_than_a_row_says_what_it_needs(tmp_path: Path) -> None:
    store = prepare(data_of(write_corpus(tmp_path, ["tiny"]), tmp_path), 0, None)
    for split in ("train", "heldout"):
        with pytest.raises(
            DataError, match=rf"its {split} part holds \d tokens in \d documents, and one row needs 257"
        ):
            store.split(split, 256)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*none\.txt"):
        prepare(data_of(tmp_path / "none.txt", tmp_path), 0, None)


def test_bad_text_is_reported_with_its_line_and_leaves_no_store(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"good\n" * 500 + b"b\xffd\n")
    data = data_of(path, tmp_path)
    with pytest.raises(DataError, match=rf"{path}, line 501: not UTF-8"):
        prepare(data, 0, None)
    assert not (store_folder(data, 0, None) / "manifest.json").exists()


@pytest.mark.parametrize("damage", ["cut", "middle", "not gzip"])
def test_a_broken_gzip_file_is_reported(tmp_path: Path, damage: str) -> None:
    content = gzip.compress("\n".join(f"{i * 7919 % 1009} {i}" for i in range(2000)).encode())
    broken = {
        "cut": content[: len(content) // 2],
        "middle": content[:2000] + b"\xff" * 64 + content[2064:],
        "not gzip": b"plain text\n",
    }[damage]
    path = tmp_path / "corpus.txt.gz"
    path.write_bytes(broken)
    with pytest.raises(DataError, match=rf"{path}.*broken gzip"):
        prepare(data_of(path, tmp_path), 0, None)


def test_a_disk_too_small_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of(write_corpus(tmp_path, [f"document {i}" for i in range(400)]), tmp_path)
    folder = store_folder(data, 0, None)
    whole = prepare(data_of(Path(data.source[5:]), tmp_path / "other"), 0, None).manifest.bytes
    monkeypatch.setattr(preparing, "free_bytes", lambda _: whole // 2)
    with pytest.raises(StorageError, match=r"cannot prepare 400 documents.*are free; choose another data\.folder"):
        prepare(data, 0, None)
    assert not list(folder.glob("*.tok"))
    monkeypatch.setattr(preparing, "free_bytes", lambda _: whole * 2)
    assert prepare(data, 0, None).manifest.bytes == whole


def test_a_source_without_end_needs_a_number_of_documents(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'"stories" has no end; give data\.documents'):
        prepare(Data(folder=str(tmp_path)), 0, None)


def test_the_estimate_of_a_store_is_close_to_its_size(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, [f"a document with the number {i}" for i in range(3_000)])
    for tokenizer in ("bytes", "words:100", "words:100000"):
        data = data_of(corpus, tmp_path / "stores", tokenizer)
        store = prepare(data, 0, None)
        tokens = sum(split.tokens for split in store.manifest.splits.values())
        assert estimate_bytes(tokens, 3_000, data) == pytest.approx(store.manifest.bytes, rel=0.01)


@pytest.mark.parametrize("tokenizer", ["bytes", "words:3"])
def test_density_of_a_whole_corpus_is_a_full_count(tmp_path: Path, tokenizer: str) -> None:
    documents = [f"{'é' * (i % 5)}x and {i}" for i in range(40)]
    data = data_of(write_corpus(tmp_path, documents), tmp_path, tokenizer)
    density = measure_density(open_source(data.source, 0), data)
    text_bytes = sum(len(text.encode()) for text in documents)
    tokens = text_bytes + 40 if tokenizer == "bytes" else 40 * 4
    assert (density.documents, density.total_documents) == (40, 40)
    assert density.text_bytes == text_bytes
    assert density.tokens == tokens
    assert density.tokens_per_document == tokens / 40
    assert density.tokens_per_gb == pytest.approx(tokens / text_bytes * 1e9)
    assert density.entries_per_gb == pytest.approx(40 / text_bytes * 1e9)
    store = prepare(data, 0, None)
    assert sum(split.tokens for split in store.manifest.splits.values()) == tokens


@pytest.mark.parametrize("sample", [1, 39, 40, 41])
def test_density_of_a_sample_knows_how_many_there_are(tmp_path: Path, sample: int) -> None:
    data = data_of(write_corpus(tmp_path, [f"{i:04d}" for i in range(40)]), tmp_path)
    density = measure_density(open_source(data.source, 0), data, sample)
    assert density.documents == min(sample, 40)
    assert density.tokens == 5 * min(sample, 40)
    assert density.total_documents == 40


def test_density_of_stories_has_no_total() -> None:
    data = Data(tokenizer="words:20")
    density = measure_density(open_source("stories", 0), data, 30)
    assert (density.documents, density.total_documents) == (30, None)


def count_words(text: str) -> int:
    """Words with at most one apostrophe inside, and single marks, by walking over the characters."""
    count, at = 0, 0

    def past_letters(at: int) -> int:
        while at < len(text) and (text[at].isalnum() or text[at] == "_"):
            at += 1
        return at

    while at < len(text):
        after = past_letters(at)
        if after > at:
            apostrophe = text[after : after + 1] == "'" and past_letters(after + 1) > after + 1
            at = past_letters(after + 1) if apostrophe else after
            count += 1
        else:
            count += not text[at].isspace()
            at += 1
    return count


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["wikitext-2/valid.txt.gz", "tinystories/valid_sample.txt.gz"])
def test_real_text_has_the_tokens_of_an_independent_count(tmp_path: Path, name: str) -> None:
    path = REAL_DATA / name
    if not path.is_file():
        pytest.skip(f"no {path}")
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        documents = [line.strip() for line in file if line.strip()]
    store = prepare(data_of(path, tmp_path, "words:500", heldout=0.02), 0, None)
    splits = store.manifest.splits.values()
    assert sum(split.documents for split in splits) == len(documents)
    assert sum(split.text_bytes for split in splits) == sum(len(text.encode()) for text in documents)
    assert sum(split.tokens for split in splits) == sum(count_words(text.lower()) + 1 for text in documents)
    assert len(store.tokenizer.to_dict()["words"]) == 500
    ends = sum(int((part == store.manifest.end).sum()) for part in store.split("train", 64).stream())
    assert ends == store.manifest.splits["train"].documents
