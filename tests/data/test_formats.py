"""Formats: the same documents through every compression, and broken records that stop or are counted."""

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from shoestring.core.errors import DataError, MissingExtra
from shoestring.data.read import lines
from shoestring.data.read.documents import Document, Reading, Skipped, documents
from shoestring.data.read.formats import FORMATS
from shoestring.data.read.lines import open_file

TEXTS = ["one two", "drei é 日本 🎈", "a, \"b\"; 'c'", "last \\n one"]
COMPRESSIONS = ["", ".gz", ".bz2", ".xz", ".zst"]


def compress(content: bytes, suffix: str) -> bytes:
    match suffix:
        case ".gz":
            return gzip.compress(content)
        case ".bz2":
            return bz2.compress(content)
        case ".xz":
            return lzma.compress(content, preset=0)
        case ".zst":
            return bytes(pytest.importorskip("zstandard").ZstdCompressor().compress(content))
    return content


def encode(kind: str, texts: list[str]) -> bytes:
    """A file of one of the formats that are text."""
    match kind:
        case "text":
            return "\n".join(texts).encode()
        case "paragraphs":
            return "\n\n".join(texts).encode()
        case "jsonl":
            return "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts).encode()
    file = io.StringIO(newline="")
    csv.writer(file).writerows([["id", "text"], *(["1", text] for text in texts)])
    return file.getvalue().encode()


def write_parquet(path: Path, columns: dict[str, Any], **settings: Any) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path, **settings)


def read(path: Path, kind: str, **settings: Any) -> tuple[list[Document], Skipped]:
    reading, skipped = Reading(**settings), Skipped()
    with open_file(path) as file:
        records = FORMATS[kind].records(file, str(path), reading)
        return list(documents(records, f"{path}, {FORMATS[kind].unit}", reading, skipped)), skipped


def texts(path: Path, kind: str, **settings: Any) -> list[str]:
    return [document.text for document in read(path, kind, **settings)[0]]


@pytest.mark.parametrize("suffix", COMPRESSIONS)
@pytest.mark.parametrize("kind", ["text", "paragraphs", "jsonl", "csv"])
def test_a_file_is_read_through_every_compression(tmp_path: Path, kind: str, suffix: str) -> None:
    path = tmp_path / f"corpus.txt{suffix}"
    path.write_bytes(compress(encode(kind, TEXTS), suffix))
    found, skipped = read(path, kind)
    assert [document.text for document in found] == TEXTS
    assert skipped == Skipped()
    lines = {"text": [1, 2, 3, 4], "paragraphs": [1, 3, 5, 7], "jsonl": [1, 2, 3, 4], "csv": [2, 3, 4, 5]}
    assert [document.place for document in found] == [f"{path}, line {line}" for line in lines[kind]]


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
def test_parquet_is_read_through_every_compression(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "corpus.parquet"
    many = [f"{text} {number}" for number in range(200) for text in TEXTS]
    write_parquet(path, {"id": list(range(800)), "text": many}, compression=compression, row_group_size=300)
    found, skipped = read(path, "parquet")
    assert [document.text for document in found] == many
    assert [document.place for document in found] == [f"{path}, row {row}" for row in range(1, 801)]
    assert skipped == Skipped()


@pytest.mark.parametrize("kind", ["large_string", "dictionary", "string_view"])
def test_parquet_holds_text_in_more_than_one_type(tmp_path: Path, kind: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    plain = pyarrow.array(TEXTS)
    array = plain.dictionary_encode() if kind == "dictionary" else plain.cast(getattr(pyarrow, kind)())
    write_parquet(tmp_path / "a.parquet", {"text": array})
    assert texts(tmp_path / "a.parquet", "parquet") == TEXTS


@pytest.mark.parametrize("kind", ["text", "paragraphs", "jsonl", "csv"])
@pytest.mark.parametrize("block", [1, 2, 3, 7, 64])
def test_documents_do_not_depend_on_how_the_file_is_read(
    tmp_path: Path, kind: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "corpus"
    path.write_bytes(b"\xef\xbb\xbf" + encode(kind, TEXTS) + b"\n\n")
    expected = read(path, kind)
    assert [document.text for document in expected[0]] == TEXTS, "a byte order mark is no part of it"
    monkeypatch.setattr(lines, "BLOCK", block)
    assert read(path, kind) == expected


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_end_lines_end_documents_of_several_lines(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "stories.txt"
    path.write_bytes(ending.join(["", "one", "", " two ", "<END>", "three", "<END>", "", "<END>", "four", ""]).encode())
    found, skipped = read(path, "text", end_line="<END>")
    assert [(document.text, document.number) for document in found] == [("one\n\n two", 2), ("three", 6), ("four", 10)]
    assert (skipped.count, skipped.empty) == (0, 1)


def test_blank_lines_separate_paragraphs(tmp_path: Path) -> None:
    path = tmp_path / "paragraphs.txt"
    path.write_bytes(b"\n\none\ntwo\r\n \t\r\n\n\n three\nfour \n")
    found, skipped = read(path, "paragraphs")
    assert [(document.text, document.number) for document in found] == [("one\ntwo", 3), ("three\nfour", 8)]
    assert skipped == Skipped()


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes("one\x0bstill one\u2028still\rone\ntwo\n".encode())
    assert texts(path, "text") == ["one\x0bstill one\u2028still\rone", "two"]


def test_csv_fields_hold_newlines_quotes_and_a_great_deal(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.csv", ["first\nsecond\r\n\nthird", 'she said "no"', "x" * 300_000, "last\u2028one"]
    path.write_bytes(encode("csv", rows))
    found, _ = read(path, "csv")
    assert [document.text for document in found] == rows
    assert [document.number for document in found] == [2, 6, 7, 8]


def test_csv_with_another_delimiter_and_column(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("tweet\tlabel\none, two\t3\n\nthree\t4\n")
    assert texts(path, "csv", column="tweet", delimiter="\t") == ["one, two", "three"]


@pytest.mark.parametrize("kind", ["text", "paragraphs", "jsonl", "csv"])
def test_an_empty_file_has_no_documents(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "empty"
    path.touch()
    assert read(path, kind) == ([], Skipped())


def test_documents_of_white_space_are_counted_apart(tmp_path: Path) -> None:
    for kind in ("text", "jsonl", "csv"):
        (tmp_path / kind).write_bytes(encode(kind, ["one", " ", "two", "\u3000\t", ""]))
        found, skipped = read(tmp_path / kind, kind)
        assert [document.text for document in found] == ["one", "two"]
        assert (skipped.count, skipped.empty) == (0, 2 if kind == "text" else 3), "the last line of text has no end"
    write_parquet(tmp_path / "parquet", {"text": ["one", " ", "two", "\n", ""]})
    found, skipped = read(tmp_path / "parquet", "parquet")
    assert [document.text for document in found] == ["one", "two"]
    assert (skipped.count, skipped.empty) == (0, 3)


GOOD = {"text": b"good", "paragraphs": b"good\n", "jsonl": b'{"text": "good"}', "csv": b"1,good"}
BROKEN = [
    ("text", b"bad \xe9 line", "not UTF-8"),
    ("text", b"bad \0 line", "NUL"),
    ("text", b"\xed\xa0\x80", "not UTF-8"),  # a surrogate, encoded
    ("paragraphs", b"bad\nmore \xff\n", "not UTF-8"),
    ("paragraphs", b"bad\nmore \0\n", "NUL"),
    ("jsonl", b'{"text": "bad', "not JSON (Unterminated string starting at, character 10)"),
    ("jsonl", b'{"text": "bad"} {}', "not JSON"),
    ("jsonl", b"[" * 100_000, "not JSON"),
    ("jsonl", b'["bad"]', "not a JSON object"),
    ("jsonl", b'{"txt": "bad", "id": 3}', 'no field "text"; the fields are "txt", "id"'),
    ("jsonl", b'{"text": 3}', "holds a number, not text"),
    ("jsonl", b'{"text": null}', "holds null, not text"),
    ("jsonl", b'{"text": ["bad"]}', "holds a list, not text"),
    ("jsonl", b'{"text": "bad \xe9"}', "not UTF-8"),
    ("jsonl", b'{"text": "bad \0"}', "NUL"),
    ("jsonl", b'{"text": "bad \\u0000"}', "NUL"),
    ("jsonl", b'{"text": "bad \\ud83c"}', "surrogate"),
    ("csv", b"1", "a row of 1 fields, while the header has 2"),
    ("csv", b"1,one,two", "a row of 3 fields, while the header has 2"),
    ("csv", b'1,"one\ntwo" three', "not CSV"),
    ("csv", b"1,bad \xe9", "not UTF-8"),
    ("csv", b'1,"one\nbad \xe9"', "not UTF-8"),
    ("csv", b"1,bad \0", "NUL"),
]


@pytest.mark.parametrize(("kind", "record", "why"), BROKEN, ids=[f"{kind}-{why}" for kind, _, why in BROKEN])
def test_a_broken_record_stops_or_is_counted(tmp_path: Path, kind: str, record: bytes, why: str) -> None:
    header = b"id,text\n" if kind == "csv" else b""
    path = tmp_path / "corpus.gz"
    path.write_bytes(gzip.compress(header + b"\n".join([GOOD[kind], record, GOOD[kind], record, GOOD[kind]])))
    line = {"text": 2, "paragraphs": 4, "jsonl": 2, "csv": 3}[kind]
    with pytest.raises(DataError) as caught:
        read(path, kind)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert why in str(caught.value) and 'data.on_error = "skip"' in str(caught.value)

    found, skipped = read(path, kind, on_error="skip")
    assert [document.text for document in found] == ["good"] * 3
    assert (skipped.count, skipped.empty) == (2, 0)
    assert skipped.examples[0].startswith(f"{path}, line {line}: ") and why in skipped.examples[0]


def test_broken_rows_of_parquet_stop_or_are_counted(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    array = pyarrow.array([b"good", b"bad \xe9", None, b"a \0", b"good"], type=pyarrow.binary()).view(pyarrow.string())
    write_parquet(path, {"text": array})
    with pytest.raises(DataError, match=rf"{path}, row 2: not UTF-8"):
        read(path, "parquet")
    found, skipped = read(path, "parquet", on_error="skip")
    assert [(document.text, document.number) for document in found] == [("good", 1), ("good", 5)]
    assert skipped.count == 3
    reasons = ["not UTF-8 text (unexpected end of data)", 'the field "text" holds null, not text']
    reasons.append("holds a NUL character")
    assert skipped.examples == [f"{path}, row {row}: {why}" for row, why in zip((2, 3, 4), reasons)]


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_a_column_that_is_not_there_always_stops(tmp_path: Path, on_error: str) -> None:
    csv_path, parquet_path = tmp_path / "a.csv", tmp_path / "a.parquet"
    csv_path.write_text("id,tweet\n1,one\n")
    with pytest.raises(
        DataError, match=r'a.csv, line 1: no column "text"; the columns are "id", "tweet"; set data.column'
    ):
        read(csv_path, "csv", on_error=on_error)
    csv_path.write_text("text,text\n1,one\n")
    with pytest.raises(DataError, match=r'more than one column "text"'):
        read(csv_path, "csv", on_error=on_error)
    write_parquet(parquet_path, {"id": [1], "tweet": ["one"]})
    with pytest.raises(DataError, match=r'a.parquet: no column "text"; the columns are "id", "tweet"; set data.column'):
        read(parquet_path, "parquet", on_error=on_error)
    with pytest.raises(DataError, match=r'the column "id" holds int64, not text'):
        read(parquet_path, "parquet", on_error=on_error, column="id")


def test_a_quote_that_never_ends_is_named_by_the_line_it_begins_in(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,text\n1,one\n2,"two\n3,three\n4,four\n')
    with pytest.raises(DataError, match="line 3: not CSV"):
        read(path, "csv")
    found, skipped = read(path, "csv", on_error="skip")
    assert [document.text for document in found] == ["one"]
    assert skipped.count == 1


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [(kind, "") for kind in FORMATS] + [("text", suffix) for suffix in COMPRESSIONS[1:]],
)
def test_a_file_is_read_no_further_than_a_block_ahead(tmp_path: Path, kind: str, suffix: str) -> None:
    path, generator = tmp_path / f"corpus{suffix}", random.Random(0)
    bodies = [generator.randbytes(500).hex() for _ in range(3000)]
    if kind == "parquet":
        pages = {"data_page_size": 1 << 16, "write_batch_size": 64}  # of which a whole one is read
        write_parquet(path, {"text": bodies}, compression="none", use_dictionary=False, **pages)
    else:
        path.write_bytes(compress(encode(kind, bodies), suffix))
    reading, given = Reading(), 0
    with open_file(path) as opened:
        file = Watched(opened)
        for document in documents(FORMATS[kind].records(file, str(path), reading), "", reading, Skipped()):
            given += len(document.text)
            assert file.seen - given < 6 * lines.BLOCK
    assert given == 3000 * 1000 > 20 * lines.BLOCK


class Watched:
    """A file that knows how much of it was read."""

    def __init__(self, file: Any):
        self._file, self.seen = file, 0

    def read(self, size: int = -1) -> bytes:
        found: bytes = self._file.read(size)
        self.seen += len(found)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("kind", ["text", "paragraphs", "jsonl", "csv"])
def test_a_record_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOESTRING_RECORD_BYTES", "256KiB")
    path = tmp_path / "corpus"
    path.write_bytes(b"text\n" + b"x" * (1 << 19))
    with pytest.raises(
        DataError, match=r"line 2: no end of the line within 262,144 bytes; SHOESTRING_RECORD_BYTES sets"
    ):
        read(path, kind, on_error="skip")


def test_documents_of_lines_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOESTRING_RECORD_BYTES", "4KiB")
    path = tmp_path / "corpus"
    path.write_bytes(b"one line\n" * 1000)
    with pytest.raises(DataError, match="line 1: no end of the document within 4,096 bytes"):
        read(path, "text", end_line="<END>")
    with pytest.raises(DataError, match="line 1: no end of the document"):
        read(path, "paragraphs")
    path.write_bytes(b'text\n"one\n' + b"two\n" * 2000)
    with pytest.raises(DataError, match=r"line 2: not CSV \(field larger"):
        read(path, "csv")


def noise(lines: int) -> list[str]:
    generator = random.Random(0)
    return [" ".join(str(generator.random()) for _ in range(8)) for _ in range(lines)]


@pytest.mark.parametrize("suffix", COMPRESSIONS[1:])
def test_a_truncated_file_is_reported_wherever_it_ends(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"corpus.txt{suffix}"
    content = compress("\n".join(noise(30)).encode(), suffix)
    for length in range(1, len(content), 37):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=rf"{path}, after line \d+: broken \w+ file"):
            read(path, "text", on_error="skip")


@pytest.mark.parametrize("suffix", COMPRESSIONS[1:])
def test_a_plain_file_with_the_suffix_of_a_compression_is_broken(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"corpus.txt{suffix}"
    path.write_text("not compressed\n" * 100)
    with pytest.raises(DataError, match=rf"{path}, after line 0: broken {lines.COMPRESSIONS[suffix]} file"):
        read(path, "text")


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_a_damaged_file_is_never_read_as_something_else(tmp_path: Path, suffix: str) -> None:
    path, expected = tmp_path / f"corpus.txt{suffix}", noise(10)
    content = compress("\n".join(expected).encode(), suffix)
    for at in range(0, len(content), 11):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        try:
            found = texts(path, "text")
        except DataError:
            continue
        assert found == expected, f"byte {at}"


@pytest.mark.parametrize("suffix", COMPRESSIONS[1:])
def test_a_file_of_several_compressed_streams_is_read_to_its_end(tmp_path: Path, suffix: str) -> None:
    path, lines = tmp_path / f"corpus.txt{suffix}", noise(3000)
    pieces = ["\n".join(lines[begin : begin + 1000]) + "\n" for begin in range(0, 3000, 1000)]
    path.write_bytes(b"".join(compress(piece.encode(), suffix) for piece in pieces))
    assert texts(path, "text") == lines


def test_zstd_frames_that_are_to_be_passed_over_are(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt.zst"
    note = struct.pack("<II", 0x184D2A50, 5) + b"hello"
    path.write_bytes(note + compress(b"one\n", ".zst") + note + compress(b"two\n", ".zst") + note)
    assert texts(path, "text") == ["one", "two"]


def test_zstd_windows_may_be_long(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "corpus.txt.zst"
    parameters = zstandard.ZstdCompressionParameters(window_log=28)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()  # of unknown size: keeps the window
    path.write_bytes(packer.compress(b"one\n") + packer.flush())
    assert texts(path, "text") == ["one"]


@pytest.mark.parametrize("damage", ["truncated", "foreign", "page"])
def test_a_broken_parquet_file_always_stops(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, {"text": noise(100)}, compression="snappy", use_dictionary=False)
    content = path.read_bytes()
    match damage:
        case "truncated":
            path.write_bytes(content[: len(content) // 2])
        case "foreign":
            path.write_bytes(b"one\ntwo\nthree\n")
        case "page":
            path.write_bytes(content[:40] + b"\xff" * 400 + content[440:])
    with pytest.raises(DataError, match=rf"{path}, after row \d+: broken parquet file"):
        read(path, "parquet", on_error="skip")


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("zstandard", "pyarrow"):
        monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "a.zst").touch()
    with pytest.raises(MissingExtra, match=r"a.zst needs zstandard; .*'shoestring\[data\]'"):
        read(tmp_path / "a.zst", "text")
    (tmp_path / "a.parquet").touch()
    with pytest.raises(MissingExtra, match=r"a.parquet needs pyarrow; .*'shoestring\[data\]'"):
        read(tmp_path / "a.parquet", "parquet")


def test_broken_records_are_counted_and_few_are_kept_as_examples() -> None:
    skipped = Skipped()
    for number in range(9):
        skipped.add(f"a, line {number}", "bad")
    assert skipped.count == 9
    assert skipped.examples == [f"a, line {number}: bad" for number in range(5)]
