"""Sources: the same documents every time, and errors that say where."""

import gzip
import itertools
import os
import random
from pathlib import Path

import pytest

from shoestring.core.errors import DataError, StorageError
from shoestring.data.sources import open_source


def documents(path: Path) -> list[str]:
    return list(open_source(f"text:{path}", 0).documents())


def test_stories_have_no_end_and_begin_again() -> None:
    source = open_source("stories", 4)
    assert source.endless
    first = list(itertools.islice(source.documents(), 20))
    assert first == list(itertools.islice(source.documents(), 20))
    assert len(set(first)) == 20
    other = list(itertools.islice(open_source("stories", 5).documents(), 20))
    assert not set(first) & set(other)
    assert source.identity() != open_source("stories", 5).identity()
    assert source.identity() == open_source("stories", 4).identity()


@pytest.mark.parametrize("name", ["corpus.txt", "corpus.txt.gz"])
def test_a_line_is_a_document_and_blank_ones_are_skipped(tmp_path: Path, name: str) -> None:
    content = "eins zwei\n\n  drei \r\n \t \nvier é 日\n\nlast".encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    source = open_source(f"text:{path}", 0)
    assert not source.endless
    for _ in range(2):
        assert list(source.documents()) == ["eins zwei", "drei", "vier é 日", "last"]


def test_only_a_newline_ends_a_document(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes("one\x0bstill one\u2028still\rone\ntwo\n".encode())
    assert documents(path) == ["one\x0bstill one\u2028still\rone", "two"]


def test_the_identity_changes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("one\n")
    identities = [open_source(f"text:{path}", 0).identity()]
    assert open_source(f"text:{path}", 1).identity() == identities[0], "a file does not depend on the seed"
    path.write_text("one two\n")
    identities.append(open_source(f"text:{path}", 0).identity())
    os.utime(path, (1, 1))
    identities.append(open_source(f"text:{path}", 0).identity())
    assert len({str(identity) for identity in identities}) == 3


@pytest.mark.parametrize("spec", ["", "story", "text", "text:", "json:a", "stories:3"])
def test_other_sources_are_refused(spec: str) -> None:
    with pytest.raises(DataError) as caught:
        open_source(spec, 0)
    assert f'data.source = "{spec}": must be "stories" or "text:PATH"' in str(caught.value)


def test_a_missing_file_or_a_folder_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(DataError, match=f"there is no file {path}"):
            open_source(f"text:{path}", 0)


@pytest.mark.parametrize("name", ["corpus.txt", "corpus.txt.gz"])
def test_text_that_is_not_utf8_is_reported_with_file_and_line(tmp_path: Path, name: str) -> None:
    content = b"good\n\nbad \xe9 line\ngood\n"
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DataError, match=rf"{path}, line 3: not UTF-8"):
        documents(path)


def test_a_plain_file_called_gz_is_a_broken_gzip_file(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt.gz"
    path.write_text("not compressed\n")
    with pytest.raises(DataError, match=rf"{path}, after line 0: broken gzip"):
        documents(path)


def noise(lines: int) -> list[str]:
    generator = random.Random(0)
    return [" ".join(str(generator.random()) for _ in range(8)) for _ in range(lines)]


def test_a_truncated_gzip_file_is_reported_wherever_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt.gz"
    content = gzip.compress("\n".join(noise(30)).encode())
    for length in range(1, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=rf"{path}, after line \d+: broken gzip"):
            documents(path)


def test_a_damaged_gzip_file_is_reported_and_never_read_as_something_else(tmp_path: Path) -> None:
    path, expected = tmp_path / "corpus.txt.gz", noise(30)
    content = gzip.compress("\n".join(expected).encode())
    for at in range(0, len(content), 3):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        try:
            found = documents(path)
        except DataError:
            continue
        assert found == expected, f"byte {at}"


def test_a_file_that_goes_away_is_a_storage_error(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("one\n")
    source = open_source(f"text:{path}", 0)
    path.unlink()
    with pytest.raises(StorageError, match="no such file"):
        list(source.documents())
