"""Sources: the same documents every time, and errors that say where."""

import gzip
import json
import os
import pickle
import random
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from shoestring.core.errors import DataError, StorageError
from shoestring.core.sections import Data
from shoestring.data.read import corpora
from shoestring.data.read.corpora import open_source, texts
from shoestring.data.read.documents import Corpus, Reading, Skipped

STORIES = Data(source="stories")


def source_of(path: Path, seed: int = 0) -> Corpus:
    return open_source(Data(source=f"text:{path}"), seed)


def documents(path: Path) -> list[str]:
    return list(texts(source_of(path)))


def test_stories_have_no_end_and_begin_again() -> None:
    source = open_source(STORIES, 4)
    assert source.endless
    first = list(texts(source, 20))
    assert first == list(texts(source, 20))
    assert len(set(first)) == 20
    other = set(texts(open_source(STORIES, 5), 20))
    assert not set(first) & other
    assert source.identity() != open_source(STORIES, 5).identity()
    assert source.identity() == open_source(STORIES, 4).identity()


def test_any_range_of_stories_can_be_read_alone() -> None:
    source = open_source(STORIES, 4)
    first = list(texts(source, 20))
    (part,) = source.parts
    assert part.size is None
    for begin, end in ((0, 20), (7, 13), (19, 20), (5, 5)):
        found = list(pickle.loads(pickle.dumps(part)).between(begin, end, Skipped()))
        assert [document.text for document in found] == first[begin:end]
        assert [document.place for document in found] == [f"stories, number {i}" for i in range(begin, end)]


@pytest.mark.parametrize(
    "setting",
    [{"column": "body"}, {"delimiter": ";"}, {"end_line": "x"}, {"split": "test"}, {"streaming": True}],
)
def test_stories_have_no_settings(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(DataError, match=rf'data\.source = "stories" is read without any of .*{name}'):
        open_source(replace(STORIES, **setting), 0)


def test_every_setting_reaches_the_reader(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id;body\n1;"one, two"\n')
    assert list(texts(open_source(Data(source=f"csv:{tmp_path}", column="body", delimiter=";"), 0))) == ["one, two"]
    (tmp_path / "a.txt").write_text("one\ntwo\n<END>\nthree\n<END>\n")
    assert list(texts(open_source(Data(source=f"text:{tmp_path}", end_line="<END>"), 0))) == ["one\ntwo", "three"]
    (tmp_path / "a.jsonl").write_text('{"body": "one"}\n[]\n{"body": "two"}\n')
    data = Data(source=f"jsonl:{tmp_path}", column="body")
    skipped = Skipped()
    found = open_source(replace(data, on_error="skip"), 0).documents(skipped)
    assert ([document.text for document in found], skipped.count) == (["one", "two"], 1)
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: not a JSON object"):
        list(open_source(data, 0).documents())


def test_no_setting_of_the_readers_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {
        "column": "body",
        "prompt": "ask",
        "completion": "answer",
        "delimiter": ";",
        "end_line": "<END>",
        "split": "test",
        "streaming": True,
        "on_error": "skip",
    }
    assert {field.name for field in fields(Reading)} == set(asked)
    seen: list[tuple[str, Reading]] = []
    monkeypatch.setattr(corpora, "open_corpus", lambda *given: seen.append(given))
    open_source(Data(source="hf:a:b", **asked), 0)
    open_source(Data(source="hf:a:b"), 0)
    assert seen == [("hf:a:b", Reading(**asked)), ("hf:a:b", Reading())]


def test_only_as_many_texts_are_read_as_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"one\ntwo\nb\xffd\n")
    assert list(texts(source_of(path), 2)) == ["one", "two"]
    assert list(texts(source_of(path), 0)) == []
    with pytest.raises(DataError, match="line 3"):
        list(texts(source_of(path), 3))


@pytest.mark.parametrize("name", ["corpus.txt", "corpus.txt.gz"])
def test_a_line_is_a_document_and_blank_ones_are_skipped(tmp_path: Path, name: str) -> None:
    content = "eins zwei\n\n  drei \r\n \t \nvier é 日\n\nlast".encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    source = source_of(path)
    assert not source.endless
    for _ in range(2):
        assert list(texts(source)) == ["eins zwei", "drei", "vier é 日", "last"]


def test_only_a_newline_ends_a_document(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes("one\x0bstill one\u2028still\rone\ntwo\n".encode())
    assert documents(path) == ["one\x0bstill one\u2028still\rone", "two"]


def test_the_identity_changes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("one\n")
    identities = [source_of(path).identity()]
    assert source_of(path, 1).identity() == identities[0], "a file does not depend on the seed"
    path.write_text("one two\n")
    identities.append(source_of(path).identity())
    os.utime(path, (1, 1))
    identities.append(source_of(path).identity())
    identities.append(open_source(Data(source=f"text:{path}", end_line="x"), 0).identity())
    identities.append(open_source(Data(source=f"paragraphs:{path}"), 0).identity())
    assert len({json.dumps(identity) for identity in identities}) == 5


@pytest.mark.parametrize("spec", ["", "story", "text", "text:", "json:a", "stories:3"])
def test_other_sources_are_refused(spec: str) -> None:
    with pytest.raises(DataError) as caught:
        open_source(Data(source=spec), 0)
    assert f'data.source = "{spec}": must be "stories", or one of text, paragraphs, jsonl' in str(caught.value)


def test_a_missing_file_or_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"there is no file or folder {tmp_path}/none.txt"):
        source_of(tmp_path / "none.txt")
    with pytest.raises(DataError, match=f"no file in the folder {tmp_path} ends in .txt"):
        source_of(tmp_path)


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
    source = source_of(path)
    path.unlink()
    with pytest.raises(StorageError, match="no such file"):
        list(source.documents())
