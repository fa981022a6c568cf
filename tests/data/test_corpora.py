"""Corpora: files found in order, parts that other processes can read, hub data sets, and samples without bias."""

import bz2
import contextlib
import gzip
import json
import multiprocessing
import os
import pickle
import random
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shoestring.core.errors import DataError, MissingExtra, StorageError
from shoestring.core.files import write_whole
from shoestring.data.read import corpora, hub
from shoestring.data.read.corpora import FilePart, find_files, open_corpus
from shoestring.data.read.density import Block, sample
from shoestring.data.read.documents import Corpus, Document, Part, Reading, Skipped

REAL_DATA = Path(__file__).parents[3] / "shared" / "data"


def read(spec: str, **settings: Any) -> tuple[list[Document], Skipped]:
    skipped = Skipped()
    return list(open_corpus(spec, Reading(**settings)).documents(skipped)), skipped


def texts(spec: str, **settings: Any) -> list[str]:
    return [document.text for document in read(spec, **settings)[0]]


def test_a_folder_is_read_in_the_order_of_paths(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/y.TXT", "c.text", "a.txt", "notes.md", ".hidden.txt", ".git/a.txt", "d.txt.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{name}\n")
    (tmp_path / "e.txt.gz").write_bytes(gzip.compress(b"e.txt.gz\n"))
    (tmp_path / "f.txt.bz2").write_bytes(bz2.compress(b"f.txt.bz2\n"))
    (tmp_path / "g.txt").mkdir()
    expected = ["a/y.TXT", "a/z.txt", "a.txt", "b.txt", "c.text", "e.txt.gz", "f.txt.bz2"]
    assert texts(f"text:{tmp_path}") == expected
    corpus = open_corpus(f"text:{tmp_path}")
    assert not corpus.endless
    assert [part.identity()["name"] for part in corpus.parts] == [str(tmp_path / name) for name in expected]
    assert next(corpus.documents()).place == f"{tmp_path}/a/y.TXT, line 1"


def test_a_pattern_takes_files_whatever_their_suffix(tmp_path: Path) -> None:
    for name in ("b.log", "a.log", "c.txt", "sub/d.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    assert texts(f"text:{tmp_path}/*.log") == ["a.log", "b.log"]
    assert texts(f"text:{tmp_path}/**/*.log") == ["a.log", "b.log", "sub/d.log"]
    assert texts(f"text:{tmp_path}/[bc].*") == ["b.log", "c.txt"]
    (tmp_path / "[x].log").write_text("by its own name\n")
    assert texts(f"text:{tmp_path}/[x].log") == ["by its own name"]


@pytest.mark.parametrize(
    ("kind", "path", "message"),
    [
        ("text", "none.txt", "there is no file or folder {}"),
        ("text", "*.none", "no file matches {}"),
        ("jsonl", "", r"no file in the folder {} ends in \.jsonl or \.ndjson"),
        ("parquet", "a.parquet.gz", "{} must be decompressed first"),
    ],
)
def test_a_path_that_matches_nothing_is_named(tmp_path: Path, kind: str, path: str, message: str) -> None:
    (tmp_path / "a.parquet.gz").touch()
    here = str(tmp_path / path)
    with pytest.raises(DataError, match=message.format(here.replace("*", r"\*"))):
        open_corpus(f"{kind}:{here}")


@pytest.mark.parametrize("spec", ["", "text", "text:", "json:a", "hf:", ":a", "stories:3", "store:"])
def test_other_sources_are_refused(spec: str) -> None:
    with pytest.raises(
        DataError, match=r"one of text, paragraphs, jsonl, csv, parquet, hf, store with .* a path or name"
    ):
        open_corpus(spec)


@pytest.mark.parametrize("spec", ["stories", "store:folder"])
def test_sources_that_are_no_files_are_not_read_as_such(spec: str) -> None:
    with pytest.raises(DataError, match=f'data.source = "{spec}": is not read from files'):
        open_corpus(spec)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("text", {"column": "tweet"}, "data.column does not apply to data.source"),
        ("paragraphs", {"end_line": "x"}, "data.end_line does not apply"),
        ("jsonl", {"delimiter": ";"}, "data.delimiter does not apply"),
        ("csv", {"split": "test"}, "data.split does not apply"),
        ("hf", {"delimiter": ";"}, "data.delimiter does not apply"),
        ("csv", {"delimiter": "||"}, "must be one character"),
        ("csv", {"delimiter": ""}, "must be one character"),
        ("csv", {"delimiter": "\n"}, "must be one character"),
        ("text", {"end_line": " "}, "data.end_line is blank"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, kind: str, settings: dict[str, Any], message: str
) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(DataError, match=message):
        open_corpus(f"{kind}:{tmp_path}/a", Reading(**settings))


def test_the_identity_changes_with_the_files_and_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    os.utime(path, (1, 1))
    spec = f"text:{tmp_path}"
    identities = [open_corpus(spec).identity()]
    assert open_corpus(spec).identity() == identities[0]
    identities.append(open_corpus(spec, Reading(end_line="x")).identity())
    os.utime(path, (2, 2))
    identities.append(open_corpus(spec).identity())
    path.write_text("one two\n")
    os.utime(path, (2, 2))
    identities.append(open_corpus(spec).identity())
    (tmp_path / "b.txt").write_text("three\n")
    identities.append(open_corpus(spec).identity())
    assert len({json.dumps(identity) for identity in identities}) == len(identities)


def test_a_file_that_goes_away_is_a_storage_error(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("one\n")
    corpus = open_corpus(f"text:{path}")
    path.unlink()
    with pytest.raises(StorageError, match="no such file"):
        list(corpus.documents())
    with pytest.raises(StorageError, match="no such file"):
        corpus.identity()


def test_broken_records_of_all_parts_are_counted_together(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_text('{"text": "good"}\n{}\n{"text": " "}\nbad\n')
    found, skipped = read(f"jsonl:{tmp_path}", on_error="skip")
    assert [document.text for document in found] == ["good"] * 3
    assert (skipped.count, skipped.empty, len(skipped.examples)) == (6, 3, 5)
    with pytest.raises(DataError, match=r"a.jsonl, line 2: no field"):
        read(f"jsonl:{tmp_path}")


def read_part(part: Part) -> tuple[list[Document], Skipped]:
    skipped = Skipped()
    return list(part.documents(skipped)), skipped


def read_elsewhere(corpus: Corpus, processes: int) -> tuple[list[Document], Skipped]:
    """All parts, read by other processes."""
    found: list[Document] = []
    skipped = Skipped()
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for part_found, part_skipped in pool.map(read_part, corpus.parts):
            found += part_found
            skipped.count += part_skipped.count
            skipped.empty += part_skipped.empty
            skipped.examples += part_skipped.examples
    return found, skipped


def test_two_processes_read_what_one_does(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\nbad\n')
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "two"}\n{"text": ""}\n'))
    (tmp_path / "c.jsonl").write_text('{"text": "three"}\n{"text": 4}\n')
    corpus = open_corpus(f"jsonl:{tmp_path}", Reading(on_error="skip"))
    skipped = Skipped()
    assert read_elsewhere(corpus, 2) == (list(corpus.documents(skipped)), skipped)
    assert (skipped.count, skipped.empty) == (2, 1)
    assert pickle.loads(pickle.dumps(corpus)) == corpus


# Samples


def write_lines(path: Path, kind: str, seed: int, documents: int) -> str:
    """A file of documents of very unequal lengths, sorted by length in part, and the source that names it."""
    generator = random.Random(seed)
    lengths = sorted(int(generator.paretovariate(1.1) * 3) % 900 for _ in range(documents // 2))
    lengths += [generator.randrange(40) for _ in range(documents - len(lengths))]
    bodies = [f"{number} {'é' * length}" for number, length in enumerate(lengths)]
    match kind:
        case "text":
            path.write_text("".join(f"{body}{generator.choice(('', chr(13)))}\n" for body in bodies), newline="")
        case "jsonl":
            path.write_text("\n".join(json.dumps({"text": body}, ensure_ascii=False) for body in bodies))
        case "paragraphs":
            path.write_text("".join(f"{body}\nmore\n{generator.choice(('', ' ')) * 2}\n\n" for body in bodies))
        case "ended":
            path.write_text("".join(f"{body}\n\nmore\n<END>\n" for body in bodies))
    return f"{'text' if kind == 'ended' else kind}:{path}"


@pytest.mark.parametrize("block", [1, 5, 64, 1000, 10**9])
@pytest.mark.parametrize("kind", ["text", "jsonl", "paragraphs", "ended"])
def test_every_document_begins_in_exactly_one_block(tmp_path: Path, kind: str, block: int) -> None:
    spec = write_lines(tmp_path / "a", kind, 0, 40 if block < 64 else 200)
    corpus = open_corpus(spec, Reading(end_line="<END>" if kind == "ended" else None))
    (part,) = corpus.parts
    assert part.size is not None
    found = [document.text for begin in range(0, part.size, block) for document in part.between(begin, begin + block)]
    assert found == [document.text for document in corpus.documents()]


def test_a_place_in_a_block_can_be_found(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\nthree\nfour\n")
    (part,) = open_corpus(f"text:{path}").parts
    assert [document.place for document in part.between(5, 9)] == [f"{path} from byte 8, line 1"]


def documents_and_letters(blocks: Sequence[Block]) -> tuple[list[float], list[float]]:
    found = [[document.text for document in block.documents()] for block in blocks]
    return [len(block) for block in found], [sum(map(len, block)) for block in found]


def test_estimates_have_no_bias_and_their_error_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "BLOCK_BYTES", 512)
    for index, count in enumerate((20, 300, 3)):
        write_lines(tmp_path / f"{index}.txt", "text", index, count)
    corpus = open_corpus(f"text:{tmp_path}")
    bodies = [document.text for document in corpus.documents()]
    truth = (len(bodies), sum(map(len, bodies)))
    trials, draws = 300, 12
    estimates = []
    for seed in range(trials):
        drawn = sample(corpus.parts, draws, seed)
        assert not drawn.exact and sum(block.draws for block in drawn.blocks) == draws
        estimates.append([drawn.total(sums) for sums in documents_and_letters(drawn.blocks)])
    for index, value in enumerate(truth):
        values = [estimate[index].value for estimate in estimates]
        mean = sum(values) / trials
        variance = sum((one - mean) ** 2 for one in values) / (trials - 1)
        assert abs(mean - value) < 3.5 * (variance / trials) ** 0.5, "documents that are long are taken too often"
        claimed = sum(estimate[index].error ** 2 for estimate in estimates) / trials
        assert claimed == pytest.approx(variance, rel=0.3)


def test_a_small_corpus_is_sampled_whole(tmp_path: Path) -> None:
    spec = write_lines(tmp_path / "a", "text", 0, 100)
    drawn = sample(open_corpus(spec).parts, 10, 0)
    assert drawn.exact and drawn.size == (tmp_path / "a").stat().st_size
    bodies = texts(spec)
    sums = documents_and_letters(drawn.blocks)
    assert [drawn.total(values) for values in sums] == [(len(bodies), 0), (sum(map(len, bodies)), 0)]


def test_what_cannot_be_cut_is_a_block_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "BLOCK_BYTES", 64)
    for index in range(4):
        lines = "".join(f"{index} {number}\n" for number in range(100))
        (tmp_path / f"{index}.txt.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "4.txt").write_text("plain\n" * 100)
    parts = open_corpus(f"text:{tmp_path}").parts
    drawn = sample(parts, 5, 0)
    assert not drawn.exact
    packed = [block for block in drawn.blocks if block.part is not parts[-1]]
    assert packed and all(block.size == block.part.size for block in packed)
    assert all(len(list(block.documents())) == 100 for block in packed)
    assert sample(parts, 5, 0) == drawn != sample(parts, 5, 1)


# Data sets of the hub


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The library, with its cache in a folder of the test and no network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("USE_TORCH", "0")  # it would be loaded by every process, and not be used
    module = pytest.importorskip("datasets")
    monkeypatch.setattr(module.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(module.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pytest.importorskip("huggingface_hub").constants, "HF_HUB_OFFLINE", True)
    module.disable_progress_bars()
    yield module
    module.enable_progress_bars()


def hub_folder(folder: Path) -> list[str]:
    """A data set as the hub stores it: shards of records."""
    folder.mkdir()
    bodies = [f"document {number} é" for number in range(30)]
    for shard in range(3):
        lines = [json.dumps({"id": 1, "text": body}) for body in bodies[10 * shard : 10 * shard + 10]]
        (folder / f"train-{shard}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "test-0.jsonl").write_text('{"id": 2, "text": "held out"}\n')
    return bodies


@pytest.mark.parametrize("streaming", [False, True])
def test_a_data_set_is_read_in_parts(
    tmp_path: Path, datasets: Any, streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "ROWS_OF_A_PART", 8)
    bodies = hub_folder(tmp_path / "set")
    spec = f"hf:{tmp_path}/set"
    corpus = open_corpus(spec, Reading(streaming=streaming))
    assert len(corpus.parts) == (3 if streaming else 4)
    found = list(corpus.documents())
    assert [document.text for document in found] == bodies
    assert found[12].place == (f"{spec}, shard 2, row 3" if streaming else f"{spec}, row 13")
    again = [pickle.loads(pickle.dumps(part)) for part in corpus.parts]
    assert [document for part in again for document in part.documents()] == found
    assert texts(spec, streaming=streaming, split="test") == ["held out"]
    assert texts(f"{spec}:default", streaming=streaming) == bodies


def test_another_process_reads_a_data_set_as_this_one_does(tmp_path: Path, datasets: Any) -> None:
    hub_folder(tmp_path / "set")
    corpus = open_corpus(f"hf:{tmp_path}/set", Reading(streaming=True))
    assert read_elsewhere(corpus, 1) == (list(corpus.documents()), Skipped())


@pytest.mark.parametrize("kind", ["parquet", "saved", "splits"])
def test_a_folder_of_a_stored_data_set_is_a_name_too(tmp_path: Path, datasets: Any, kind: str) -> None:
    one = datasets.Dataset.from_dict({"body": [f"document {number}" for number in range(20)]})
    folder = tmp_path / "set"
    match kind:
        case "parquet":
            folder.mkdir()
            one.to_parquet(folder / "train-00000.parquet")
        case "saved":
            one.save_to_disk(folder, num_shards=2)
        case "splits":
            datasets.DatasetDict(train=one, test=one.select(range(3))).save_to_disk(folder)
    assert texts(f"hf:{folder}", column="body") == one["body"][:]
    assert texts(f"hf:{folder}", column="body", streaming=True) == one["body"][:]
    if kind == "splits":
        assert len(texts(f"hf:{folder}", column="body", split="test")) == 3
    with pytest.raises(DataError, match=r'data.split = "other": .*split'):
        open_corpus(f"hf:{folder}", Reading(column="body", split="other"))
    with pytest.raises(DataError, match=r'no column "text"; the columns are "body"; set data.column'):
        open_corpus(f"hf:{folder}")


def test_the_identity_of_a_data_set_changes_with_its_files(tmp_path: Path, datasets: Any) -> None:
    hub_folder(tmp_path / "set")
    for streaming in (False, True):
        reading = Reading(streaming=streaming)
        before = open_corpus(f"hf:{tmp_path}/set", reading).identity()
        assert open_corpus(f"hf:{tmp_path}/set", reading).identity() == before
        (tmp_path / "set" / "train-2.jsonl").write_text(f'{{"id": 3, "text": "new {streaming}"}}\n')
        after = open_corpus(f"hf:{tmp_path}/set", reading)
        assert after.identity() != before
        assert [document.text for document in after.documents()][20:] == [f"new {streaming}"]


def test_rows_of_a_data_set_that_are_no_text_stop_or_are_counted(tmp_path: Path, datasets: Any) -> None:
    datasets.Dataset.from_dict({"text": ["one", None, " ", "two"]}).save_to_disk(tmp_path / "set")
    with pytest.raises(DataError, match=r'row 2: the field "text" holds null'):
        read(f"hf:{tmp_path}/set")
    found, skipped = read(f"hf:{tmp_path}/set", on_error="skip")
    assert [document.text for document in found] == ["one", "two"]
    assert (skipped.count, skipped.empty) == (1, 1)


def test_a_streamed_shard_that_breaks_stops_with_its_place(tmp_path: Path, datasets: Any) -> None:
    hub_folder(tmp_path / "set")
    corpus = open_corpus(f"hf:{tmp_path}/set", Reading(streaming=True))
    (tmp_path / "set" / "train-1.jsonl").unlink()
    with pytest.raises(DataError, match=r"shard 2, after row 0: FileNotFoundError"):
        list(corpus.documents())


def test_rows_are_sampled_where_they_are_stored(tmp_path: Path, datasets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "ROWS_OF_A_PART", 150)
    datasets.Dataset.from_dict({"text": ["x" * (1 + row % 7) for row in range(400)]}).save_to_disk(tmp_path / "set")
    parts = open_corpus(f"hf:{tmp_path}/set").parts
    assert [part.size for part in parts] == [150, 150, 100]
    drawn = sample(parts, 4, 0)
    counts, letters = documents_and_letters(drawn.blocks)
    assert counts == [block.size for block in drawn.blocks]
    assert drawn.total(counts) == (400, 0)
    assert drawn.total(letters).value == pytest.approx(1600, rel=0.1)
    hub_folder(tmp_path / "streamed")
    with pytest.raises(AssertionError, match="streamed parts cannot be sampled"):
        sample(open_corpus(f"hf:{tmp_path}/streamed", Reading(streaming=True)).parts, 4, 0)


@pytest.mark.parametrize("name", ["roneneldan/TinyStories", "wikimedia/wikipedia:20231101.en"])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_name_that_cannot_be_reached_says_what_to_do(datasets: Any, name: str, streaming: bool) -> None:
    with pytest.raises(DataError) as caught:
        open_corpus(f"hf:{name}", Reading(streaming=streaming))
    message = str(caught.value)
    assert f'data.source = "hf:{name}"' in message and "reach" in message
    assert "check the names and the network" in message and "hf:FOLDER" in message


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"needs datasets; .*'shoestring\[hf\]'"):
        open_corpus("hf:roneneldan/TinyStories")


# Real files


def real(name: str) -> Path:
    path = REAL_DATA / name
    if not path.exists():
        pytest.skip(f"no {path}")
    return path


@pytest.mark.realdata
def test_real_tweets_with_newlines() -> None:
    found, skipped = read(f"csv:{real('hate-speech-tweets')}", column="tweet")
    assert len(found) == 24_783
    assert sum("\n" in document.text for document in found) == 917
    assert max(len(document.text) for document in found) == 754
    assert skipped == Skipped()
    with gzip.open(real("hate-speech-tweets/labeled_data.csv.gz"), "rt", encoding="utf-8", newline="\n") as file:
        lines = file.read().split("\n")
    for document in random.Random(0).sample(found, 200):
        first = document.text.split("\n")[0].split('"')[0].removesuffix("\r")
        assert first in lines[document.number - 1], "the number is that of the first line"


@pytest.mark.realdata
def test_real_stories_that_an_end_line_ends() -> None:
    found, skipped = read(f"text:{real('tinystories/stories.txt.gz')}", end_line="<|endoftext|>")
    assert len(found) == 8_953
    assert sum(len(document.text.split()) for document in found) == 1_467_094 - 8_953, "an end line counts as a word"
    assert skipped == Skipped()


@pytest.mark.realdata
def test_real_text_a_line() -> None:
    found, skipped = read(f"text:{real('wikitext-2')}")
    assert len(found) + skipped.empty == 36_718 + 3_760 + 4_358
    assert sum(len(document.text.split()) for document in found) == 2_051_910 + 213_886 + 241_211
    assert len(read(f"text:{real('wikipedia')}/ja_paragraphs*")[0]) == 41_732
    assert [len(read(f"text:{real(f'hmm-sentences/sentences-{size}.txt')}")[0]) for size in (100, 200, 300)] == [
        500
    ] * 3


@pytest.mark.realdata
def test_real_paragraphs_and_records() -> None:
    found, _ = read(f"paragraphs:{real('tinystories/valid_sample.txt.gz')}")
    assert sum(len(document.text.split()) for document in found) == 154_689
    path = real("scaling/gemstones/runs_hot.jsonl")
    runs = [json.loads(line)["run_name"] for line in path.read_text().splitlines()]
    assert texts(f"jsonl:{path}", column="run_name") == runs


@pytest.mark.realdata
def test_a_sample_of_real_text_tells_how_much_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stories.txt"
    path.write_bytes(gzip.decompress(real("tinystories/stories.txt.gz").read_bytes()))
    part = FilePart(path, "text", Reading(end_line="<|endoftext|>"))
    monkeypatch.setattr(corpora, "BLOCK_BYTES", 1 << 14)
    drawn = sample([part], 60, 0)
    counts, letters = documents_and_letters(drawn.blocks)
    total = drawn.total(counts)
    assert abs(total.value - 8_953) < 3 * total.error < 0.2 * 8_953
    total = drawn.total(letters)
    assert abs(total.value - 7_300_000) < 3 * total.error < 0.1 * 7_300_000


# --- what a folder must not hide


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder with two files, one of them in a subfolder, that any user may read."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for file in ("a.txt", "below/b.txt"):
            write_whole(folder / file, "one\n")
        yield folder


@contextlib.contextmanager
def another_user() -> Iterator[None]:
    """Root may read everything."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.mark.parametrize("place", ["", "/**/*.txt", "/*/*.txt", "/**", "/below/*.txt", "/below/b.txt"])
def test_a_subfolder_that_cannot_be_read_is_an_error(open_folder: Path, place: str) -> None:
    """Not half a corpus, without a word."""
    below = open_folder / "below"
    assert open_folder / "below/b.txt" in find_files("text", f"{open_folder}{place}")
    below.chmod(0)
    try:
        with another_user(), pytest.raises(StorageError, match=rf"cannot read .*{below}.*: permission denied"):
            find_files("text", f"{open_folder}{place}")
    finally:
        below.chmod(0o755)


@pytest.mark.parametrize("place", ["", "/x.txt", "/*"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "nothing"])
def test_what_is_not_a_file_is_refused_at_once(open_folder: Path, kind: str, place: str) -> None:
    path = open_folder / "x.txt"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
            made.bind(str(path))
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "missing")
    nothing = kind == "nothing"
    with pytest.raises(
        (StorageError, DataError), match="no (such )?file" if nothing else f"is a (named )?{kind}, not a file"
    ):
        find_files("text", f"{open_folder}{place}")
