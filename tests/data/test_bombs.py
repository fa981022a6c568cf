"""Small files that become large ones: what is held in memory stays a few records, and the limit has a name."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoestring.core.environment import file_bytes, record_bytes
from shoestring.core.errors import DataError, RecordError, UserError
from shoestring.core.reading import read_json
from shoestring.data.read.corpora import open_corpus
from shoestring.data.read.documents import Reading, Skipped
from shoestring.data.read.formats.parquet_pages import Page, read_page
from shoestring.data.tokenize.subwords import load_subwords

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOESTRING_RECORD_BYTES", "1MiB")
    monkeypatch.setenv("SHOESTRING_FILE_BYTES", "1MiB")


@pytest.fixture
def arrow_peak() -> Iterator[Callable[[], int]]:
    """The most bytes that pyarrow held at once."""
    pyarrow = pytest.importorskip("pyarrow")
    before = pyarrow.default_memory_pool()
    pool = pyarrow.proxy_memory_pool(before)
    pyarrow.set_memory_pool(pool)
    yield pool.max_memory
    pyarrow.set_memory_pool(before)


def write(path: Path, texts: list[str], **settings: Any) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"n": list(range(len(texts))), "text": texts}), path, **settings)


def test_a_text_that_a_table_repeats_is_read_row_by_row(tmp_path: Path, arrow_peak: Callable[[], int]) -> None:
    """100 MB of strings in a few kB: the rows of a batch would each have their own copy."""
    import pyarrow
    from pyarrow import parquet

    indices = pyarrow.array([0] * 100, pyarrow.int32())
    texts = pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array(["a" * MIB]))
    path = tmp_path / "bomb.parquet"
    parquet.write_table(
        pyarrow.table({"text": texts}), path, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=False
    )
    assert path.stat().st_size < 10_000
    written = arrow_peak()
    assert written < 8 * MIB
    found = [len(document.text) for document in open_corpus(f"parquet:{path}").documents()]
    assert found == [MIB] * 100
    assert arrow_peak() < 32 * MIB


def test_a_page_that_would_fill_the_memory_is_refused(tmp_path: Path, arrow_peak: Callable[[], int]) -> None:
    path = tmp_path / "bomb.parquet"
    write(path, ["a" * MIB] * 40, compression="zstd", use_dictionary=False, data_page_size=1 << 30)
    assert path.stat().st_size < 100_000
    held = arrow_peak()
    with pytest.raises(DataError) as refused:
        list(open_corpus(f"parquet:{path}").documents())
    assert "row group 1: a page of 41.9 MB" in str(refused.value)
    assert "at most 16.8 MB are read at once" in str(refused.value) and "SHOESTRING_RECORD_BYTES" in str(refused.value)
    assert arrow_peak() - held < MIB


def test_a_text_of_a_table_is_no_longer_than_a_record(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["short", "a" * (MIB + 1), "b"], compression="zstd")
    corpus = open_corpus(f"parquet:{tmp_path / 'a.parquet'}", Reading(on_error="skip"))
    skipped = Skipped()
    assert [document.text for document in corpus.documents(skipped)] == ["short", "b"]
    assert skipped.examples == [
        f"{tmp_path / 'a.parquet'}, row 2: a text of 1,048,577 characters; at most 1,048,576 are read, or set "
        "SHOESTRING_RECORD_BYTES"
    ]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_the_headers_of_pages_add_up_to_what_the_file_says(tmp_path: Path, compression: str, version: str) -> None:
    """With statistics and without, in both versions of pages: compared with the sums in the file's own metadata."""
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    texts = [f"text {number} " * (number % 90) for number in range(3000)]
    settings = {"compression": compression, "data_page_version": version, "row_group_size": 1000}
    write(
        path,
        texts,
        data_page_size=5000,
        dictionary_pagesize_limit=9000,
        write_page_checksum=True,
        write_batch_size=50,
        **settings,
    )
    metadata = parquet.ParquetFile(path).metadata
    with open(path, "rb") as file:
        for group in range(metadata.num_row_groups):
            for index in range(2):
                chunk = metadata.row_group(group).column(index)
                at = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
                end, pages = at + chunk.total_compressed_size, list[Page]()
                while at < end:
                    pages.append(read_page(file, at))
                    at += pages[-1].header_bytes + pages[-1].packed_bytes
                assert at == end and len(pages) > 3 * index
                assert sum(page.plain_bytes + page.header_bytes for page in pages) == chunk.total_uncompressed_size
                assert [page.is_dictionary for page in pages] == [True] + [False] * (len(pages) - 1)


@pytest.mark.parametrize("junk", [b"", b"\x15", b"\xff" * 40, b"\x15\x01\x15\x01\x00", b"\x1f" * 600, b"\x19\xfc" * 9])
def test_what_is_no_header_of_a_page_is_an_error_of_the_file(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(junk)
    with open(path, "rb") as file, pytest.raises(OSError, match="page") as refused:
        read_page(file, 0)
    assert refused.value.errno is None


PACKERS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


def zstd(raw: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard").ZstdCompressor().compress(raw))


@pytest.mark.parametrize(
    ("kind", "suffix"), [*(("text", suffix) for suffix in (*PACKERS, ".zst")), ("jsonl", ".gz"), ("csv", ".gz")]
)
def test_a_line_without_end_is_refused_in_little_memory(tmp_path: Path, kind: str, suffix: str) -> None:
    """30 MB of x in a few kB, with a limit of one; zstd decompresses a block at once, and xz has a window of 8 MB."""
    path = tmp_path / f"corpus{suffix}"
    path.write_bytes(PACKERS.get(suffix, zstd)(b"text\n" + b"x" * 30 * MIB))
    assert path.stat().st_size < 50_000
    corpus = open_corpus(f"{kind}:{path}", Reading(on_error="skip"))
    tracemalloc.start()
    with pytest.raises(DataError, match="no end of the line within 1,048,576 bytes; SHOESTRING_RECORD_BYTES sets"):
        list(corpus.documents())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (6 + {".zst": 31, ".xz": 9}.get(suffix, 0)) * MIB


@pytest.mark.parametrize("suffix", [*PACKERS, ".zst"])
def test_many_short_lines_are_streamed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"corpus.txt{suffix}"
    lines = [f"line {number} " + "of the same words " * 40 for number in range(1_000)]
    path.write_bytes(PACKERS.get(suffix, zstd)("\n".join(lines).encode()))
    documents = open_corpus(f"text:{path}").documents()
    assert all(document.text == line.strip() for document, line in zip(documents, lines, strict=True))


def test_several_frames_and_padding_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt.xz"
    path.write_bytes(lzma.compress(b"one\n") + b"\0" * 8 + lzma.compress(b"two\n") + b"\0" * 8192)
    assert [document.text for document in open_corpus(f"text:{path}").documents()] == ["one", "two"]


def test_a_file_that_asks_for_a_large_window_is_refused(tmp_path: Path) -> None:
    """4 GiB for a dictionary of xz, 2 GiB for a window of zstd, asked for by a header of a few bytes."""
    alone = bytearray(lzma.compress(b"text\n", lzma.FORMAT_ALONE))
    alone[1:5] = b"\xff\xff\xff\xff"
    files = {".xz": bytes(alone), ".zst": b"\x28\xb5\x2f\xfd\x00" + bytes([21 << 3]) + b"\x29\x00\x00text\n"}
    for suffix, raw in files.items():
        path = tmp_path / f"corpus.txt{suffix}"
        path.write_bytes(raw)
        with pytest.raises(DataError, match="packed with a large window: set SHOESTRING_RECORD_BYTES"):
            list(open_corpus(f"text:{path}").documents())


def test_a_document_of_blank_lines_and_a_row_of_many_lines_have_an_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"text\n" + b"\n" * 2 * MIB)
    with pytest.raises(DataError, match="line 1: no end of the document within 1,048,576 bytes"):
        list(open_corpus(f"text:{path}", Reading(end_line="<END>")).documents())
    path.write_bytes(b"text\n" + b'"a\n",' * MIB)
    with pytest.raises(DataError, match="line 2: no end of the row within 2,097,152 bytes"):
        list(open_corpus(f"csv:{path}").documents())


def test_deep_json_is_a_broken_record(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": ' + "[" * 100_000 + '\n{"text": "b"}\n')
    skipped = Skipped()
    texts = [each.text for each in open_corpus(f"jsonl:{path}", Reading(on_error="skip")).documents(skipped)]
    assert (texts, skipped.count) == (["b"], 1)


def test_a_packed_tokenizer_is_read_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json.gz"
    path.write_bytes(gzip.compress(b" " * 30 * MIB))
    tracemalloc.start()
    with pytest.raises(
        DataError, match=r"at most 1\.05 MB are read; the variable SHOESTRING_FILE_BYTES sets"
    ) as refused:
        load_subwords(f"file:{path}")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(path) in str(refused.value) and peak < 4 * MIB


def test_a_large_record_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps("x" * MIB))
    with pytest.raises(RecordError, match="SHOESTRING_FILE_BYTES"):
        read_json(path)


@pytest.mark.parametrize("text", ["", "many", "64", "-1MB", "0B", "1e30GB", "\x1b[31m"])
def test_a_limit_that_is_no_size_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SHOESTRING_RECORD_BYTES", text)
    with pytest.raises(UserError, match="SHOESTRING_RECORD_BYTES"):
        record_bytes()


def test_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOESTRING_RECORD_BYTES")
    monkeypatch.setenv("SHOESTRING_FILE_BYTES", "2GiB")
    assert (record_bytes(), file_bytes()) == (64 * MIB, 2 << 30)
