"""Preparing a store: the same bytes however it is made, split as asked, and refused early when it cannot work."""

import contextlib
import gzip
import itertools
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoestring
from shoestring.core.errors import DataError, Fault, RunError, StorageError
from shoestring.core.files import folder_bytes, sweep, whole_file
from shoestring.core.records import Density
from shoestring.core.sections import Data
from shoestring.data.read.corpora import ReadCorpus
from shoestring.data.read.documents import Document, Reading, Skipped
from shoestring.data.store import maker, pool
from shoestring.data.store import map_stage as passes
from shoestring.data.store import prepare as preparing
from shoestring.data.store import work_units as units
from shoestring.data.store.prepare import _worth, estimate_bytes, prepare, store_folder, with_all_passes
from shoestring.data.store.store import Store
from shoestring.data.tokenize.tokenizers import _opened

REAL_DATA = Path(__file__).parents[2].parent / "shared" / "data"
Run = tuple[str, int]
"""A pass, and the unit it was made of."""


def write_corpus(folder: Path, documents: list[str], name: str = "corpus.txt") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes("".join(f"{text}\n" for text in documents).encode())
    return path


def data_of(path: Path, folder: Path, tokenizer: str = "bytes", heldout: float = 0.2, **more: Any) -> Data:
    kind = "jsonl" if path.suffix == ".jsonl" else "text"
    return Data(source=f"{kind}:{path}", tokenizer=tokenizer, heldout=heldout, folder=str(folder), **more)


def make(data: Data, seed: int = 0, documents: int | None = None, **more: Any) -> Store:
    """The whole store; in this process, which sees the small sizes of a test."""
    store = prepare(data, seed, documents, **{"processes": 1} | more)
    assert store is not None
    return store


def files_of(folder: Path) -> dict[str, bytes]:
    """All that lies in a store's folder, but for its locks."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".lock")}


def ids_of(store: Store, split: str) -> list[int]:
    if not store.manifest.splits[split].documents:
        return []
    return [int(i) for part in store.split(split, 1).stream() for i in part]


def texts_of(store: Store, split: str) -> list[str]:
    """The documents of a split of bytes, read back from its tokens."""
    ids = ids_of(store, split)
    assert not ids or ids[-1] == store.manifest.end
    return store.tokenizer.decode(ids).split("[EOS]")[:-1]


def child(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(**command(code, *arguments), capture_output=True, check=False)


def command(code: str, *arguments: object) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(Path(shoestring.__file__).parents[1])}
    return {"args": [sys.executable, "-c", code, *map(str, arguments)], "env": environment, "text": True}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units and shards of a few documents."""
    monkeypatch.setattr(units, "UNIT_BYTES", 400)
    monkeypatch.setattr(units, "UNIT_STORIES", 16)
    monkeypatch.setattr(passes, "SHARD_TOKENS", 100)
    monkeypatch.setattr(passes, "BATCH_CHARACTERS", 50)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Every pass of a unit that is made in this process."""
    seen: list[Run] = []
    run_pass = passes.run_pass

    def watched(name: str, job: passes.Job, unit: units.Unit) -> int:
        seen.append((name, unit.number))
        return run_pass(name, job, unit)

    monkeypatch.setattr(maker, "run_pass", watched)
    return seen


# The same store


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("tokenizer", ["bytes", "words:7"])
def test_the_same_store_is_made_twice_byte_for_byte(tmp_path: Path, tokenizer: str) -> None:
    corpus = write_corpus(tmp_path, [f"the story {i * i} of {i}" for i in range(60)])
    one, two = (make(data_of(corpus, tmp_path / name, tokenizer)) for name in ("a", "b"))
    assert files_of(one.paths.folder) == files_of(two.paths.folder)
    assert len(files_of(one.paths.folder)) > 5
    assert one.paths.folder.name == two.paths.folder.name


@pytest.mark.usefixtures("small")
def test_stories_are_the_same_store_twice(tmp_path: Path) -> None:
    one, two = (make(Data(tokenizer="words:50", folder=str(tmp_path / name)), 3, 40) for name in ("a", "b"))
    assert files_of(one.paths.folder) == files_of(two.paths.folder)
    assert sum(split.documents for split in one.manifest.splits.values()) == 40


def test_another_source_tokenizer_seed_count_or_share_has_another_folder(tmp_path: Path) -> None:
    corpus, other = (write_corpus(tmp_path / name, ["one", "two"]) for name in ("a", "b"))
    data = data_of(corpus, tmp_path)
    folders = [
        store_folder(data, 0, None),
        store_folder(Data(folder=str(tmp_path)), 1, 5),
        store_folder(data, 0, 1),
        store_folder(data_of(other, tmp_path), 0, None),
        store_folder(data_of(corpus, tmp_path, "words:3"), 0, None),
        store_folder(data_of(corpus, tmp_path, heldout=0.3), 0, None),
        store_folder(replace(data, unique=True), 0, None),
        store_folder(replace(data, end_line="x"), 0, None),
        store_folder(replace(data, on_error="skip"), 0, None),
        store_folder(replace(data, source=f"paragraphs:{corpus}"), 0, None),
        store_folder(Data(folder=str(tmp_path)), 0, 5),
    ]
    assert len(set(folders)) == len(folders)
    assert store_folder(data_of(corpus, tmp_path), 0, None) == folders[0]
    assert store_folder(data, 1, None) == folders[0], "a seed matters to the stories alone"
    assert store_folder(replace(data, length=7, packing="pad", random_offset=True), 0, None) == folders[0], (
        "rows come later"
    )
    os.utime(corpus, (1, 1))
    assert store_folder(data, 0, None) not in folders


def test_a_store_that_is_there_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_of(write_corpus(tmp_path, ["one", "two", "three"]), tmp_path)
    first = make(data)
    before = {path: path.stat().st_mtime_ns for path in first.paths.folder.iterdir()}
    monkeypatch.setattr(preparing, "Maker", None)
    monkeypatch.setattr(preparing, "estimate_density", None)
    assert make(data).manifest == first.manifest
    assert make(data, part=(1, 3)).manifest == first.manifest
    assert {path: path.stat().st_mtime_ns for path in first.paths.folder.iterdir()} == before


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("tokenizer", ["bytes", "words:20"])
def test_tokens_are_those_of_every_document_in_order(tmp_path: Path, tokenizer: str) -> None:
    documents = [f"{'é' * (i % 5)} text {i}, and {'more ' * (i % 7)}.".strip() for i in range(80)]
    corpus = write_corpus(tmp_path, documents)
    plain, store = (make(data_of(corpus, tmp_path / "stores", spec)) for spec in ("bytes", tokenizer))
    texts = {split: texts_of(plain, split) for split in ("train", "heldout")}
    assert sorted([*texts["train"], *texts["heldout"]]) == sorted(documents)
    for name, entry in store.manifest.splits.items():
        assert texts[name] == [text for text in documents if text in set(texts[name])], "in the order of the corpus"
        expected = [[*store.tokenizer.encode(text).tolist(), store.manifest.end] for text in texts[name]]
        rows = store.split(name, 5)
        assert ids_of(store, name) == [token for document in expected for token in document]
        numbers = rows.segments(np.zeros(1, dtype=np.int64), entry.tokens)[0]
        assert numbers.tolist() == [n for n, document in enumerate(expected, start=1) for _ in document]
        assert (entry.documents, entry.tokens) == (len(expected), sum(map(len, expected)))
        assert entry.text_bytes == sum(len(text.encode()) for text in texts[name])
        assert rows.bytes_per_token == entry.text_bytes / entry.tokens
        assert len(entry.shards) > 3


# However it is made


def whole_corpus(folder: Path, tokenizer: str, **more: Any) -> Data:
    """Some plain files, large and small, and compressed ones, with documents that occur again."""
    chance = random.Random(7)
    known = [f"{' '.join(chance.choices(['one', 'two', 'é', 'and', 'so', 'on'], k=9))} {i % 90}" for i in range(150)]
    write_corpus(folder / "corpus", known[:60], "a.txt")
    for name, part in (("b", known[60:90]), ("c", known[90:110]), ("d", known[:10] + known[110:])):
        (folder / "corpus" / f"{name}.txt.gz").write_bytes(gzip.compress("\n".join(part).encode(), mtime=0))
    return data_of(folder / "corpus", folder / "stores", tokenizer, **more)


EVERYTHING = [
    ("bytes", {}, None),
    ("words:12", {}, None),
    ("bytes", {"unique": True}, 120),
    ("words:12", {"unique": True}, 120),
]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("tokenizer", "more", "documents", "order"),
    [
        *((*asked, order) for asked, order in zip(EVERYTHING, itertools.cycle([(0, 1, 2), (2, 1, 0)]))),
        *((*EVERYTHING[-1], order) for order in [(2, 0, 1), (1, 1, 0, 0, 2)]),
    ],
)
def test_parts_in_any_order_make_the_same_store(
    tmp_path: Path,
    runs: list[Run],
    tokenizer: str,
    more: dict[str, Any],
    documents: int | None,
    order: tuple[int, ...],
) -> None:
    data = whole_corpus(tmp_path, tokenizer, **more)
    expected = files_of(make(data, 0, documents).paths.folder)
    at_once = Counter(runs)
    runs.clear()
    elsewhere = replace(data, folder=str(tmp_path / "elsewhere"))
    folder = store_folder(elsewhere, 0, documents)
    store, calls = None, 0
    for part in itertools.chain.from_iterable(itertools.repeat(order, 5)):
        assert not (folder / "manifest.json").exists()
        with pytest.raises(DataError, match="no manifest"):
            Store(folder)
        calls += 1
        if (store := prepare(elsewhere, 0, documents, part=(part, 3), processes=1)) is not None:
            break
    assert store is not None
    rounds = 1 + tokenizer.startswith("words") + bool(documents) + bool(more)
    assert calls <= rounds * len(order), "a pass of all parts for each that needs all before it"
    assert files_of(folder) == expected
    assert not (folder / ".work").exists()
    assert Counter(runs) == at_once, "every pass of every unit once"
    assert set(Counter(runs).values()) == {1}
    for part in range(3):
        assert make(elsewhere, 0, documents, part=(part, 3)).manifest == store.manifest


@pytest.mark.usefixtures("small")
def test_words_wait_for_the_counts_of_all_parts(tmp_path: Path, runs: list[Run]) -> None:
    data = whole_corpus(tmp_path, "words:12")
    folder = store_folder(data, 0, None)
    for part in (0, 2):
        assert prepare(data, 0, None, part=(part, 3), processes=1) is None
        assert {name for name, _ in runs} == {"words"}
        assert not (folder / "tokenizer.json").exists() and not list(folder.glob("*.tok"))
    assert prepare(data, 0, None, part=(1, 3), processes=1) is None, "the tokens of the others are missing"
    assert {unit % 3 for name, unit in runs if name == "tokens"} == {1}
    before = list(runs)
    assert prepare(data, 0, None, part=(1, 3), processes=1) is None
    assert runs == before, "nothing to do but to wait"


@pytest.mark.usefixtures("small")
def test_a_part_without_units_waits_for_the_others(tmp_path: Path, runs: list[Run]) -> None:
    data = data_of(write_corpus(tmp_path, [str(i) for i in range(40)]), tmp_path / "stores")
    assert prepare(data, 0, None, part=(5, 7), processes=1) is None
    assert not runs
    store = prepare(data, 0, None, part=(0, 7), processes=1)
    assert store is not None and len(runs) == 1
    assert make(data, part=(5, 7)).manifest == store.manifest


@pytest.mark.usefixtures("small")
def test_a_part_is_made_by_one_process_at_a_time(tmp_path: Path) -> None:
    data = whole_corpus(tmp_path, "bytes")
    seen: list[Store | None] = []

    def meanwhile(count: int) -> None:
        with pytest.raises(RunError, match="in use"):
            prepare(data, 0, None, part=(0, 2), processes=1)
        seen.append(prepare(data, 0, None, part=(1, 2), processes=1))

    prepare(data, 0, None, meanwhile, part=(0, 2), processes=1)
    assert seen[0] is None, "other parts may be made by others"
    assert make(data).manifest.source["documents"] == 160


@pytest.mark.usefixtures("small")
def test_the_last_two_parts_may_end_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = whole_corpus(tmp_path, "bytes")
    expected = files_of(make(data).paths.folder)
    elsewhere = replace(data, folder=str(tmp_path / "elsewhere"))
    run_pass = passes.run_pass
    last = len(units.divide(preparing.open_source(data, 0), None)) - 1
    monkeypatch.setattr(maker, "run_pass", lambda *given: run_pass(*given))
    prepare(elsewhere, 0, None, part=((last + 1) % 2, 2), processes=1)

    def and_then_the_other(name: str, job: passes.Job, unit: units.Unit) -> int:
        number = run_pass(name, job, unit)
        if number == last:  # its result is there, and the other part sees that all are
            monkeypatch.setattr(maker, "run_pass", run_pass)
            assert prepare(elsewhere, 0, None, part=((last + 1) % 2, 2), processes=1) is not None
        return number

    monkeypatch.setattr(maker, "run_pass", and_then_the_other)
    prepare(elsewhere, 0, None, part=(last % 2, 2), processes=1)
    assert files_of(store_folder(elsewhere, 0, None)) == expected


@pytest.mark.usefixtures("small")
def test_what_another_part_is_writing_is_left_alone(tmp_path: Path) -> None:
    data = whole_corpus(tmp_path, "bytes")
    begun = store_folder(data, 0, None) / "train-00000-00000.tok"
    seen: list[bool] = []

    def meanwhile(count: int) -> None:
        if not seen:
            with whole_file(begun) as file, contextlib.suppress(RunError):
                file.write(b"half a sh")
                make(data, part=(0, 1))
            seen.append(begun.read_bytes() == b"half a sh")

    prepare(data, 0, None, meanwhile, part=(1, 3), processes=1)
    assert seen == [True]


def compressed_corpus(folder: Path, tokenizer: str, **more: Any) -> Data:
    """Compressed files, each a unit where `units.UNIT_BYTES` says so to the process that divides the corpus."""
    folder.mkdir()
    for name in "abcde":
        lines = [f"{name if i % 3 else 'again'} {i} of some words" for i in range(200)]
        (folder / f"{name}.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    return data_of(folder, folder / "stores", tokenizer, **more)


def test_several_processes_make_the_same_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "UNIT_BYTES", 1)
    data = compressed_corpus(tmp_path / "corpus", "words:12", unique=True)
    one = make(data, 0, 850)
    seen: list[int] = []
    monkeypatch.setattr(passes, "PASSES", {})  # in this process, so that others do it
    elsewhere = replace(data, folder=str(tmp_path / "other"))
    other = make(elsewhere, 0, 850, progress=seen.append, processes=2)
    assert files_of(other.paths.folder) == files_of(one.paths.folder)
    assert not (other.paths.folder / ".work").exists()
    assert len(seen) == 5 and seen == sorted(seen)
    assert seen[-1] == sum(split.documents for split in other.manifest.splits.values())


def test_what_goes_wrong_in_another_process_is_reported_as_in_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "UNIT_BYTES", 1)
    monkeypatch.setattr(preparing, "_check_room", lambda *_: None)  # it would stop at it first
    data = compressed_corpus(tmp_path / "corpus", "bytes")
    path = tmp_path / "corpus" / "c.txt.gz"
    path.write_bytes(gzip.compress(b"good\n\xff\n"))
    with pytest.raises(DataError, match=rf"{path}, line 2: not UTF-8.*data\.on_error") as caught:
        make(data, processes=2)
    with pytest.raises(DataError) as here:
        make(data, processes=1)
    assert str(caught.value) == str(here.value)
    assert not (store_folder(data, 0, None) / "manifest.json").exists()
    path.write_bytes(gzip.compress(b"good\n"))
    assert make(data).manifest.source["documents"] == 4 * 200 + 1


@dataclass(frozen=True)
class Deadly:
    """A part whose reader dies, as one does that takes too much memory."""

    path: Path
    size: int = 1
    block: int | None = None

    def documents(self, skipped: Skipped | None = None) -> Iterator[Document]:
        if self.path.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return iter([Document("some text", "part", 1)])

    def identity(self) -> dict[str, Any]:
        return {"name": str(self.path)}


def test_a_process_that_dies_is_noticed_and_the_rest_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "UNIT_BYTES", 1)
    monkeypatch.setattr(preparing, "_check_room", lambda *_: None)  # it would die in this process
    parts: Any = [Deadly(tmp_path / name) for name in ("none", "none", "here")]
    monkeypatch.setattr(preparing, "open_source", lambda *_: ReadCorpus("text:x", Reading(), parts))
    (tmp_path / "here").touch()
    data = data_of(tmp_path / "x", tmp_path / "stores")
    with pytest.raises(Fault, match=r"a process that prepared .* died; run the same command again"):
        make(data, processes=2)
    (tmp_path / "here").unlink()
    assert make(data).manifest.source["documents"] == 3


# Cut off in the middle


class Killed(Exception):
    """In place of a signal."""


def stop(count: int) -> None:
    raise Killed


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("tokenizer", "more", "documents"), EVERYTHING)
def test_a_preparation_that_broke_resumes_and_ends_the_same(
    tmp_path: Path, runs: list[Run], tokenizer: str, more: dict[str, Any], documents: int | None
) -> None:
    data = whole_corpus(tmp_path, tokenizer, **more)
    expected = files_of(make(data, 0, documents).paths.folder)
    at_once = Counter(runs)
    runs.clear()
    broken = replace(data, folder=str(tmp_path / "broken"))
    folder = store_folder(broken, 0, documents)
    for _ in range(3):
        with pytest.raises(Killed):
            make(broken, 0, documents, progress=stop)
        assert list(folder.glob("*.tok")), "it must have been in the middle"
        with pytest.raises(DataError, match="no manifest"):
            Store(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*.tok")}
    make(broken, 0, documents)
    assert files_of(folder) == expected
    assert Counter(runs) == at_once, "what was finished is not made again"
    assert {path: path.stat().st_mtime_ns for path in before} == before


SMALL = """
import os, sys
from shoestring.core.recipe import Data
from shoestring.data.store import map_stage as passes
from shoestring.data.store import work_units as units
from shoestring.data.store.prepare import prepare
units.UNIT_BYTES, passes.SHARD_TOKENS, passes.BATCH_CHARACTERS = 400, 100, 50
data = Data(source=f"text:{sys.argv[1]}", heldout=0.2, folder=sys.argv[2])
"""
"""A process of its own, with the sizes of `small`."""


@pytest.mark.usefixtures("small")
def test_a_killed_process_leaves_neither_a_lock_nor_a_half_store(tmp_path: Path) -> None:
    code = f"{SMALL}\nprepare(data, 0, None, lambda count: os._exit(9), processes=1)"
    corpus = write_corpus(tmp_path, [f"document {i}" for i in range(100)])
    killed = child(code, corpus, tmp_path / "killed")
    assert killed.returncode == 9, killed.stderr
    data = data_of(corpus, tmp_path / "killed")
    assert list(store_folder(data, 0, None).glob("train-*.tok"))
    store, whole = make(data), make(data_of(corpus, tmp_path / "whole"))
    assert store.manifest.splits["train"].tokens == whole.manifest.splits["train"].tokens
    assert files_of(store.paths.folder) == files_of(whole.paths.folder)


@pytest.mark.usefixtures("small")
def test_a_process_killed_at_any_moment_leaves_what_it_finished(tmp_path: Path, runs: list[Run]) -> None:
    """The passes over some fifty units are cut off three times, each time a little after some more results."""
    slowly = "import dataclasses, time\nos.fsync = lambda _: time.sleep(0.004)"  # as on a slow disk, on any disk
    code = f"{SMALL}\n{slowly}\nprepare(dataclasses.replace(data, unique=True), 0, 1400, processes=1)"
    corpus = write_corpus(tmp_path, [f"document {i % 1000}" for i in range(1500)])
    data = data_of(corpus, tmp_path / "killed", unique=True)
    folder = store_folder(data, 0, 1400)
    chance = random.Random(0)

    def results() -> list[Path]:
        return [path for path in (folder / ".work").glob("*") if not path.name.startswith(".")]

    for _ in range(3):
        process = subprocess.Popen(**command(code, corpus, tmp_path / "killed"), stderr=subprocess.PIPE)
        wanted = len(results()) + chance.randrange(4, 24)
        while len(results()) < wanted and process.poll() is None:
            time.sleep(0.004)
        time.sleep(chance.random() * 0.01)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it must have been in the middle"
        assert not (folder / "manifest.json").exists()
    kept = {path.name for path in results() if not path.name.startswith("again")}
    assert len(kept) > 12
    whole = files_of(make(replace(data, folder=str(tmp_path / "whole")), 0, 1400).paths.folder)
    runs.clear()
    assert files_of(make(data, 0, 1400).paths.folder) == whole
    assert not kept & {f"{name}-{unit:05d}" for name, unit in runs}, "what was finished is not made again"


def alive(session: int) -> list[int]:
    """The processes of a session that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, own = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it has just ended
            continue
        if int(own) == session and state != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc to look for processes in")
def test_no_process_outlives_the_one_that_is_killed(tmp_path: Path) -> None:
    code = f"{SMALL}\nprepare(data, 0, None, processes=2)"
    corpus = write_corpus(tmp_path, [f"document {i}" for i in range(30_000)])
    process = subprocess.Popen(**command(code, corpus, tmp_path / "stores"), start_new_session=True)
    try:
        folder = store_folder(data_of(corpus, tmp_path / "stores"), 0, None)
        while len(list((folder / ".work").glob("tokens-*"))) < 5 and process.poll() is None:
            time.sleep(0.01)
        assert len(alive(process.pid)) > 2
        process.kill()
        process.wait()
        until = time.monotonic() + 10
        while (left := alive(process.pid)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not left
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("name", [".train-00000-00000.tok.1234.tmp", ".work/.tokens-00000.1234.tmp"])
def test_what_a_killed_process_left_is_removed(tmp_path: Path, name: str) -> None:
    corpus = write_corpus(tmp_path, [f"document {i}" for i in range(100)])
    data = data_of(corpus, tmp_path / "stores")
    folder = store_folder(data, 0, None)
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_bytes(b"half a file")
    make(data)
    assert {path.suffix for path in folder.iterdir() if path.name != ".lock"} == {".tok", ".json"}


def test_results_are_removed_also_where_that_was_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_of(write_corpus(tmp_path, ["one", "two", "three"]), tmp_path / "stores")
    with monkeypatch.context() as patch:
        patch.setattr(maker, "remove", lambda *_: stop(0))
        with pytest.raises(Killed):
            make(data)
    store = make(data)
    assert not (store.paths.folder / ".work").exists()


def test_a_second_process_is_told_who_prepares_the_store(tmp_path: Path) -> None:
    code = """
import sys
from shoestring.core.errors import RunError
from shoestring.core.recipe import Data
from shoestring.data.store.prepare import prepare
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
            make(data)

    store = make(data, progress=meanwhile)
    assert seen[0].returncode == 0, seen[0].stderr
    assert f"the store {store.paths.folder} is in use by process {os.getpid()} on " in seen[0].stdout
    assert sorted(texts_of(store, "train") + texts_of(store, "heldout")) == sorted(f"document {i}" for i in range(50))


# Who is held out


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("heldout", [0.02, 0.1, 0.25, 0.3, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_any_number_of_documents_has_the_share_asked_for_within_one_a_unit(
    tmp_path: Path, heldout: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "UNIT_BYTES", 6_000)
    monkeypatch.setattr(passes, "BATCH_CHARACTERS", 1 << 21)
    corpus = write_corpus(tmp_path, [f"{i:05}" for i in range(3_000)])
    store = make(data_of(corpus, tmp_path / "stores", heldout=heldout), seed)
    assert len(store.manifest.splits["train"].shards) == 3, "1,000 documents each"
    train, held = ([int(text) for text in texts_of(store, split)] for split in ("train", "heldout"))
    assert train == sorted(train)
    assert held == sorted(held)
    assert sorted(train + held) == list(range(3_000)), "disjoint and complete"
    chosen = set(held)
    for unit in range(0, 3_000, 1_000):
        excess = list(itertools.accumulate((i in chosen) - heldout for i in range(unit, unit + 1_000)))
        assert max(map(abs, excess)) <= 1 + 1e-6, "from the first document on"
        assert max(excess) - min(excess) <= 2 + 1e-6, "between any two"


def test_a_rhythm_of_the_corpus_is_not_held_out(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, [str(i) for i in range(2_000)])
    store = make(data_of(corpus, tmp_path / "stores", heldout=0.5))
    odd = [int(text) % 2 for text in texts_of(store, "heldout")]
    assert 400 < sum(odd) < 600, "every second document is not always the one held out"


@pytest.mark.usefixtures("small")
def test_who_is_held_out_does_not_depend_on_how_many_are_read(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, [str(i) for i in range(300)])
    data = data_of(corpus, tmp_path / "stores")
    counts = (1, 2, 17, 150, 299)
    stores = [make(data, 0, count) for count in counts]
    read = [{split: set(texts_of(store, split)) for split in ("train", "heldout")} for store in stores]
    for fewer, more, count in zip(read, read[1:], counts):
        assert len(fewer["train"] | fewer["heldout"]) == count
        assert all(fewer[split] <= more[split] for split in fewer)
    assert max(map(int, read[2]["train"])) > 100, "drawn over the whole file"


@pytest.mark.usefixtures("small")
def test_stories_held_out_do_not_depend_on_how_many_are_read(tmp_path: Path) -> None:
    data = Data(folder=str(tmp_path), heldout=0.2)
    held = texts_of(make(data, 0, 60), "heldout")
    for count in (1, 16, 17, 40):
        found = texts_of(make(data, 0, count), "heldout")
        assert found == held[: len(found)]
        assert abs(len(found) - 0.2 * count) <= -(-count // 16)


def test_every_seed_holds_the_same_out(tmp_path: Path) -> None:
    data = data_of(write_corpus(tmp_path, [str(i) for i in range(300)]), tmp_path / "stores", heldout=0.02)
    assert len({tuple(texts_of(make(data, seed), "heldout")) for seed in range(6)}) == 1


@pytest.mark.usefixtures("small")
def test_words_are_counted_on_training_documents_alone(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, [f"common w{i}" for i in range(100)])
    store = make(data_of(corpus, tmp_path / "stores", "words:1000"))
    assert len(store.manifest.splits["heldout"].shards) > 1
    assert set(ids_of(store, "heldout")) == {0, 1, 2}, "the end, an unknown word and the common one"
    known = store.manifest.splits["train"].documents
    assert set(ids_of(store, "train")) == {0, *range(2, 2 + known + 1)}, "every word of the others"


@pytest.mark.usefixtures("small")
def test_words_are_those_of_all_units_together(tmp_path: Path) -> None:
    texts = [f"only{i // 10} {'often ' * (i % 3)}" for i in range(120)]
    store = make(data_of(write_corpus(tmp_path, texts), tmp_path / "stores", "words:6"))
    words = Counter(word for text in texts for word in text.split())
    kept = store.tokenizer.to_dict()["words"]
    assert len(kept) == 6 and kept[0] == "often"
    assert all(words[word] >= 5 for word in kept[1:])
    assert kept[1:] == sorted(kept[1:]) or len({words[word] for word in kept[1:]}) == 1


# How many, and which


@pytest.mark.usefixtures("small")
def test_a_number_of_documents_is_drawn_over_all_files(tmp_path: Path) -> None:
    data = whole_corpus(tmp_path, "bytes")
    everything = Counter(text for split in ("train", "heldout") for text in texts_of(make(data), split))
    assert everything.total() == 160
    before: dict[str, list[str]] = {"train": [], "heldout": []}
    for documents in (1, 59, 60, 61, 110, 149):
        store = make(data, 0, documents)
        found = {split: texts_of(store, split) for split in store.manifest.splits}
        assert sum(map(len, found.values())) == store.manifest.source["documents"] == documents
        assert Counter(found["train"] + found["heldout"]) <= everything
        assert all(found[split][: len(texts)] == texts for split, texts in before.items()), "fewer are some of more"
        before = found


@pytest.mark.usefixtures("small")
def test_more_documents_than_there_are_is_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "free_bytes", lambda _: 1_000_000)
    data = whole_corpus(tmp_path, "bytes")
    store, everything = make(data, 0, 10**9), make(data)
    assert store.manifest.source["documents"] == 160
    assert store.manifest.splits == everything.manifest.splits
    assert store.manifest.fingerprint == everything.manifest.fingerprint


@pytest.mark.usefixtures("small")
def test_documents_that_occur_again_are_left_out_in_all_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"document {i * i % 83}" for i in range(150)]
    data = data_of(write_corpus(tmp_path, texts), tmp_path / "stores", unique=True)
    store = make(data)
    first = list(dict.fromkeys(texts))
    train, held = (texts_of(store, split) for split in ("train", "heldout"))
    assert sorted(train + held) == sorted(first)
    for found in (train, held):
        assert found == [text for text in first if text in set(found)], "the first of equals stays, in its place"
    assert store.manifest.ledger == {
        "broken": 0,
        "empty": 0,
        "duplicates": len(texts) - len(first),
        "examples": [],
    }
    assert store.manifest.source["documents"] == len(first)
    monkeypatch.setattr(passes, "ROUND_HASHES", 4)
    again = make(replace(data, folder=str(tmp_path / "rounds")))
    assert files_of(again.paths.folder) == files_of(store.paths.folder)
    limited = make(data, 0, 100)
    assert limited.manifest.source["documents"] == len(set(texts[:100])), "counted before they are left out"
    assert limited.manifest.ledger["duplicates"] == 100 - len(set(texts[:100]))


def messy_corpus(folder: Path) -> tuple[Path, dict[str, int]]:
    """Every ninth record is no JSON, the one behind it is blank, and that behind it holds a number."""
    wrong = {0: "bad", 1: '{"text": " "}', 2: '{"text": 3}'}
    lines = [wrong.get(i % 9) or json.dumps({"text": f"text {i % 25}"}) for i in range(90)]
    texts = [json.loads(line)["text"] for line in lines if line.startswith('{"text": "t')]
    counts = {"broken": 20, "empty": 10, "duplicates": len(texts) - len(set(texts))}
    return write_corpus(folder, lines, "corpus.jsonl"), counts


@pytest.mark.usefixtures("small")
def test_the_ledger_says_what_was_left_out(tmp_path: Path) -> None:
    corpus, counts = messy_corpus(tmp_path)
    data = data_of(corpus, tmp_path / "stores", on_error="skip", unique=True)
    ledger = make(data).manifest.ledger
    examples = ledger.pop("examples")
    assert ledger == counts
    assert len(examples) == 5
    assert examples[0] == f"{corpus} from byte 0, line 1: not JSON (Expecting value, character 1)"
    assert all("corpus.jsonl from byte" in example for example in examples)
    assert make(replace(data, unique=False)).manifest.ledger["duplicates"] == 0
    with pytest.raises(DataError, match=r"line \d+: (not JSON|the field).*data\.on_error = \"skip\""):
        make(replace(data, on_error="stop"))


@pytest.mark.usefixtures("small")
def test_the_ledger_is_the_same_for_more_documents_than_there_are(tmp_path: Path) -> None:
    corpus, _ = messy_corpus(tmp_path)
    with corpus.open("a") as file:
        file.write("bad\n")
    data = data_of(corpus, tmp_path / "stores", on_error="skip", unique=True)
    assert make(data, 0, 1000).manifest.ledger == make(data).manifest.ledger


def test_documents_that_are_not_drawn_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "_check_room", lambda *_: None)  # it looks at places all over the corpus
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"good\n" * 50_000 + b"b\xffd\n")
    assert make(data_of(path, tmp_path), 0, 10).manifest.source["documents"] == 10


def test_progress_counts_the_documents(tmp_path: Path, small: None) -> None:
    seen: list[int] = []
    corpus = write_corpus(tmp_path, [f"{i:03}" for i in range(250)])
    make(data_of(corpus, tmp_path), progress=seen.append)
    assert seen == [100, 200, 250], "after every unit"
    data = replace(data_of(corpus, tmp_path), folder=str(tmp_path / "broken"))
    with pytest.raises(Killed):
        make(data, progress=stop)
    seen.clear()
    make(data, progress=seen.append)
    assert seen == [200, 250], "with those that were there"


# Tokenizers made elsewhere


def subwords(path: Path, *ends: str, merges: int = 9) -> str:
    """A small byte-level tokenizer in a file; returns the data.tokenizer that names it."""
    import tokenizers as library

    backend = library.Tokenizer(library.models.BPE())
    backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=256 + merges,
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[*ends],
        show_progress=False,
    )
    backend.train_from_iterator(["the story of the other story, and so on"] * 3, trainer)
    path.write_text(backend.to_str(), encoding="utf-8")
    _opened.cache_clear()
    return f"file:{path}"


STORIES = [f"the story {i} of é\x1f, and so on {'again ' * (i % 4)}".strip() for i in range(60)]


@pytest.mark.usefixtures("small")
def test_a_store_keeps_its_subword_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    spec = subwords(path, "</s>", "<stop>")
    data = data_of(write_corpus(tmp_path, STORIES), tmp_path / "stores", spec)
    store = make(data)
    import tokenizers as library

    backend = library.Tokenizer.from_file(str(path))
    path.unlink()
    opened = Store(store.paths.folder)
    end = backend.token_to_id("</s>")
    assert (opened.manifest.end, opened.manifest.vocab_size) == (end, backend.get_vocab_size())
    assert opened.manifest.tokenizer == spec
    found = []
    for name, entry in opened.manifest.splits.items():
        ids = ids_of(opened, name)
        texts = opened.tokenizer.decode(ids).split("</s>")[:-1]
        assert ids == [i for text in texts for i in [*backend.encode(text).ids, end]]
        assert (entry.documents, entry.text_bytes) == (len(texts), sum(len(text.encode()) for text in texts))
        found += texts
    assert sorted(found) == sorted(STORIES)
    tokens = sum(split.tokens for split in opened.manifest.splits.values())
    assert tokens < sum(len(text.encode()) + 1 for text in STORIES), "longer pieces than bytes"


@pytest.mark.usefixtures("small")
def test_another_tokenizer_behind_the_same_path_has_another_folder(tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    data = data_of(write_corpus(tmp_path, STORIES), tmp_path / "stores", subwords(path, "</s>", "<stop>"))
    folders = [store_folder(data, 0, None), store_folder(replace(data, end="<stop>"), 0, None)]
    named = make(replace(data, end="<stop>"))
    assert named.manifest.end == 1 != make(data).manifest.end
    subwords(path, "</s>", "<stop>", merges=2)
    folders.append(store_folder(data, 0, None))
    assert len(set(folders)) == 3
    assert make(data).paths.folder == folders[2]
    copied = tmp_path / "copied.json"
    copied.write_bytes(path.read_bytes())
    assert (
        store_folder(replace(data, tokenizer=f"file:{copied}"), 0, None).name.rpartition("-")[2]
        == (folders[2].name.rpartition("-")[2])
    ), "the same tokenizer in another place"


def test_a_tokenizer_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path, other = tmp_path / "made.json", tmp_path / "other.json"
    data = data_of(write_corpus(tmp_path, STORIES), tmp_path / "stores", subwords(path, "</s>"))
    subwords(other, "</s>", merges=2)
    before = store_folder(data, 0, None)
    os.replace(other, path)
    assert store_folder(data, 0, None) != before


def test_a_tokenizer_without_an_end_has_to_be_told_one(tmp_path: Path) -> None:
    data = data_of(write_corpus(tmp_path, STORIES), tmp_path / "stores", subwords(tmp_path / "made.json", "<stop>"))
    with pytest.raises(DataError, match=r"cannot tell which of its tokens ends a document; name one in data\.end"):
        make(data)
    with pytest.raises(DataError, match=r'data\.end = "<none>": .* has no such token'):
        make(replace(data, end="<none>"))
    assert not (tmp_path / "stores").exists()
    assert make(replace(data, end="<stop>")).manifest.end == 0
    with pytest.raises(DataError, match=r'data\.end = "<stop>": bytes end a document with \[EOS\]'):
        make(replace(data, tokenizer="bytes", end="<stop>"))
    with pytest.raises(StorageError, match=r"none\.json: no such file"):
        make(replace(data, tokenizer=f"file:{tmp_path}/none.json"))


def test_words_have_an_end_of_their_own(tmp_path: Path) -> None:
    data = data_of(write_corpus(tmp_path, STORIES), tmp_path / "stores", "words:9", end="</s>")
    with pytest.raises(DataError, match=r'data\.end = "</s>"'):
        make(data)


# What cannot work


@pytest.mark.parametrize("text", ["", "\n\n  \n"])
def test_an_empty_corpus_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=f'data.source = "text:{path}": the corpus is empty'):
        make(data_of(path, tmp_path))


def test_a_few_long_documents_are_a_corpus(tmp_path: Path) -> None:
    data = data_of(write_corpus(tmp_path, [letter * 2_000_000 for letter in "abc"]), tmp_path / "stores")
    for seed in (0, 2):  # which read blocks in which none begins
        assert make(data, seed).manifest.source["documents"] == 3


def test_a_corpus_shorter_than_a_row_says_what_it_needs(tmp_path: Path) -> None:
    store = make(data_of(write_corpus(tmp_path, ["tiny"]), tmp_path))
    for split in ("train", "heldout"):
        with pytest.raises(
            DataError, match=rf"its {split} part holds \d tokens in \d documents?, and one row needs 257"
        ):
            store.split(split, 256)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*none\.txt"):
        make(data_of(tmp_path / "none.txt", tmp_path))


def test_bad_text_is_reported_with_its_line_and_leaves_no_store(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"good\n" * 500 + b"b\xffd\n")
    data = data_of(path, tmp_path)
    with pytest.raises(DataError, match=rf"{path}, line 501: not UTF-8"):
        make(data)
    assert not (store_folder(data, 0, None) / "manifest.json").exists()


@pytest.mark.usefixtures("small")
def test_bad_text_in_a_slice_is_reported_where_it_can_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "_check_room", lambda *_: None)  # it reads the file as one block
    path = tmp_path / "corpus.txt"
    content = b"good\n" * 500 + b"b\xffd\n" + b"good\n" * 500
    path.write_bytes(content)
    data = data_of(path, tmp_path)
    with pytest.raises(DataError, match=rf"{path} from byte (\d+), line (\d+): not UTF-8") as caught:
        make(data)
    words = str(caught.value).replace(",", " ").replace(":", " ").split()
    start, line = int(words[words.index("byte") + 1]), int(words[words.index("line") + 1])
    assert content[start:].split(b"\n")[line - 1] == b"b\xffd"
    folder = store_folder(data, 0, None)
    assert not (folder / "manifest.json").exists()
    assert list((folder / ".work").glob("tokens-*")), "the units before it are kept"


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
        make(data_of(path, tmp_path))


def test_a_disk_too_small_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of(write_corpus(tmp_path, [f"document {i}" for i in range(400)]), tmp_path)
    folder = store_folder(data, 0, None)
    whole = make(data_of(Path(data.source[5:]), tmp_path / "other")).manifest.bytes
    monkeypatch.setattr(preparing, "free_bytes", lambda _: whole // 2)
    with pytest.raises(StorageError, match=r"cannot prepare 400 documents.*are free; choose another data\.folder"):
        make(data)
    assert not folder.exists()
    with pytest.raises(StorageError, match="cannot prepare 300 documents"):
        make(data, 0, 300)
    assert make(data, 0, 100).manifest.bytes < whole // 2
    monkeypatch.setattr(preparing, "free_bytes", lambda _: whole * 2)
    assert make(data).manifest.bytes == whole


@pytest.mark.usefixtures("small")
def test_a_disk_that_held_the_first_half_has_room_for_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_of(write_corpus(tmp_path, [f"document {i}" for i in range(400)]), tmp_path / "stores")
    disk = 2 * make(replace(data, folder=str(tmp_path / "other"))).manifest.bytes
    monkeypatch.setattr(preparing, "free_bytes", lambda folder: disk - folder_bytes(folder))
    many = itertools.count()
    with pytest.raises(Killed):
        make(data, progress=lambda _: stop(0) if next(many) == 9 else None)
    make(data)


def test_a_source_without_end_needs_a_number_of_documents(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'"stories" has no end; set data\.documents'):
        make(Data(folder=str(tmp_path)))


def test_the_estimate_of_a_store_is_close_to_its_size(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, [f"a document with the number {i}" for i in range(3_000)])
    for tokenizer in ("bytes", "words:100", "words:100000"):
        data = data_of(corpus, tmp_path / "stores", tokenizer)
        store = make(data)
        tokens = sum(split.tokens for split in store.manifest.splits.values())
        assert estimate_bytes(tokens, 3_000, data) == pytest.approx(store.manifest.bytes, rel=0.01)


# Real text


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
    store = make(data_of(path, tmp_path, "words:500", heldout=0.02))
    splits = store.manifest.splits.values()
    assert sum(split.documents for split in splits) == len(documents)
    assert sum(split.text_bytes for split in splits) == sum(len(text.encode()) for text in documents)
    assert sum(split.tokens for split in splits) == sum(count_words(text.lower()) + 1 for text in documents)
    assert len(store.tokenizer.to_dict()["words"]) == 500
    ends = sum(int((part == store.manifest.end).sum()) for part in store.split("train", 64).stream())
    assert ends == store.manifest.splits["train"].documents


@pytest.mark.realdata
@pytest.mark.usefixtures("small")
def test_real_files_of_a_folder_are_one_corpus_cut_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"sentences-{size}.txt" for size in (100, 200, 300)]
    folder = REAL_DATA / "hmm-sentences"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    lines = [line for name in names for line in (folder / name).read_text().split("\n") if line]
    monkeypatch.setattr(units, "UNIT_BYTES", 5_000)
    monkeypatch.setattr(passes, "BATCH_CHARACTERS", 1_000)
    pieces = [-(-(folder / name).stat().st_size // 5_000) for name in names]
    store = make(data_of(folder / "sentences-*.txt", tmp_path, unique=True))
    found = [text for split in ("train", "heldout") for text in texts_of(store, split)]
    assert sorted(found) == sorted(set(lines))
    assert store.manifest.ledger["duplicates"] == len(lines) - len(set(lines))
    assert len({entry.name[:11] for entry in store.manifest.splits["train"].shards}) == sum(pieces)


@pytest.mark.parametrize(
    ("tokenizer", "unique", "megabytes", "times"),
    [("bytes", False, None, 3.25), ("words:9", True, None, 3.25), ("bytes", False, 60, 1.80), ("bytes", False, 1, 1.0)],
)
def test_a_sample_is_prepared_by_all_passes_and_as_many_processes_as_there_are_units_and_cores(
    tokenizer: str, unique: bool, megabytes: int | None, times: float
) -> None:
    """Two seconds of one process on four cores, so many times as fast; a unit has 2^25 bytes, and 60 MB are two."""
    total = None if megabytes is None else megabytes * 1000
    found = Density(documents=10, text_bytes=10_000, tokens=1, seconds=2.0, total_documents=total)
    data = Data(source="stories", tokenizer=tokenizer, unique=unique)
    known = with_all_passes(found, data, cores=4)
    alone = 2.0 * (1 + unique + tokenizer.startswith("words"))
    assert known.seconds == pytest.approx(alone / times, rel=0.002)
    assert known.alone_seconds == (None if megabytes == 1 else alone)


def test_one_pool_of_all_processes_serves_every_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first pass has two units left of three, as one that was cut has."""
    sizes, ran = [], []

    class Inline:
        def submit(self, work: Any, name: str, job: passes.Job, unit: units.Unit) -> Future[int]:
            ran.append(name)
            done: Future[int] = Future()
            done.set_result(work(name, job, unit))
            return done

        def shutdown(self, cancel_futures: bool) -> None:
            assert cancel_futures

    def start(processes: int) -> Inline:
        sizes.append(processes)
        return Inline()

    monkeypatch.setattr(units, "UNIT_STORIES", 16)
    data = Data(source="stories", tokenizer="bytes", unique=True, heldout=0.2, folder=str(tmp_path / "whole"))
    expected = make(data, 0, 48)
    data = replace(data, folder=str(tmp_path / "cut"))
    with monkeypatch.context() as patch:
        patch.setattr(maker, "run_pass", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            make(data, 0, 48)
    folder = store_folder(data, 0, 48)
    job = passes.Job(folder=folder, heldout=0.2, unique=True)
    passes.run_pass("hash", job, units.divide(preparing.open_source(data, 0), 48)[0])
    monkeypatch.setattr(maker, "start_pool", start)
    store = make(data, 0, 48, processes=4)
    assert (sizes, ran) == ([4], ["hash"] * 2 + ["tokens"] * 3)
    assert store.manifest == expected.manifest


def test_a_small_corpus_is_prepared_by_one_process_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a second a document on four cores: two documents take two seconds; eight take 2.5, and 2.7 to start."""
    sample = Density(documents=10, text_bytes=10_000, tokens=1, seconds=10.0, total_documents=None)
    known = with_all_passes(sample, Data(source="stories", tokenizer="bytes"), cores=4)
    assert [known.seconds_for(count) for count in (2, 8)] == pytest.approx([2.0, 5.16], abs=0.01)
    monkeypatch.setattr("shoestring.data.store.prepare._cores", lambda: 4)
    assert [_worth(seconds) for seconds in (2.0, 8.0, None)] == [1, 4, 4]
    monkeypatch.setattr("shoestring.data.store.prepare._cores", lambda: 1)
    assert _worth(1e9) == 1


def test_the_sockets_of_a_killed_pool_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(pool, "SOCKET_BYTES", 4096)
    pid = os.fork()
    if pid == 0:
        try:
            multiprocessing.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]
            pool._sweepable_sockets.__wrapped__()
            Path(get_temp_dir(), "listener").touch()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert [path.name for path in tmp_path.rglob("listener")] == ["listener"]
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_whole_leaves_no_sockets_of_a_pool_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(pool, "SOCKET_BYTES", 4096)
    left = tmp_path / "tmp" / ".shoestring-0123456789ab.tmp"
    data = data_of(write_corpus(tmp_path, ["a tree", "the sun", "a moon", "the sea"] * 5), tmp_path / "stores")
    for _ in ("made", "whole"):
        left.with_name(f"{left.name}.d").mkdir(parents=True)
        (left.with_name(f"{left.name}.d") / "listener").touch()
        left.touch()
        make(data)
        assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("length", [58, 59, 300])
def test_sockets_of_a_pool_have_paths_that_the_system_takes(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a Slurm job's TMPDIR may be long."""
    given = Path("/" + "t" * (length - 1))
    monkeypatch.setenv("TMPDIR", str(given))
    chosen = pool.socket_folder()
    assert chosen == (given if length == 58 else Path("/tmp"))  # noqa: S108
    longest = tmp_path / "x"
    path = chosen / ".shoestring-0123456789ab.tmp.d" / "listener-01234567"
    named = str(longest) + "y" * (len(str(path)) - len(str(longest)))
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(named)  # of the same length, in a folder that is there


@pytest.mark.parametrize(
    "cause", [EOFError(), ConnectionResetError(), BrokenPipeError()], ids=lambda each: type(each).__name__
)
def test_a_server_of_processes_that_dies_is_noticed(
    cause: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An EOFError would be taken for the end of a person's input."""

    class Dead:
        def submit(self, *_: object) -> None:
            raise cause

        def shutdown(self, **_: object) -> None:
            pass

    monkeypatch.setattr(units, "UNIT_BYTES", 16)
    monkeypatch.setattr(maker, "start_pool", lambda _: Dead())
    data = data_of(write_corpus(tmp_path, ["a tree", "the sun", "a moon", "the sea"] * 5), tmp_path / "stores")
    with pytest.raises(Fault, match=r"a process that prepared .* died; run the same command again"):
        make(data, processes=2)
