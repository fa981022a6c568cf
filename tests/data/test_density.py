"""How much a corpus holds: exact where it is small, else within the error that is claimed, which is the right one."""

import gzip
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shoestring.core.errors import DataError
from shoestring.core.records import Density
from shoestring.core.sections import Data
from shoestring.data.read import density as densities
from shoestring.data.read.corpora import BLOCK_BYTES, ReadCorpus, open_source
from shoestring.data.read.density import FEW_BYTES, estimate_density, measure_density
from shoestring.data.read.documents import Document, Reading, Skipped
from shoestring.data.store.prepare import prepare
from shoestring.data.tokenize.tokenizers import ByteTokenizer
from shoestring.data.tokenize.vocabulary import COUNTED_SECONDS

REAL_DATA = Path(__file__).parents[3] / "shared" / "data"
FOREVER = 1e9


def write_corpus(path: Path, documents: list[str]) -> Data:
    path.write_bytes("".join(f"{text}\n" for text in documents).encode())
    return Data(source=f"text:{path}", folder=str(path.parent / "stores"), heldout=0.2)


def measured(data: Data, **settings: Any) -> Density:
    return measure_density(open_source(data, 0), data, **settings)


@pytest.mark.parametrize("tokenizer", ["bytes", "words:3"])
def test_a_small_corpus_is_counted_in_full(tmp_path: Path, tokenizer: str) -> None:
    documents = [f"{'é' * (i % 5)}x and {i}" for i in range(40)]
    data = replace(write_corpus(tmp_path / "corpus.txt", documents), tokenizer=tokenizer)
    density = measured(data)
    text_bytes = sum(len(text.encode()) for text in documents)
    tokens = text_bytes + 40 if tokenizer == "bytes" else 40 * 4
    assert (density.documents, density.total_documents) == (40, 40)
    assert density.text_bytes == text_bytes
    assert density.tokens == tokens
    assert density.tokens_per_document == tokens / 40
    assert density.tokens_per_gb == pytest.approx(tokens / text_bytes * 1e9)
    assert density.entries_per_gb == pytest.approx(40 / text_bytes * 1e9)
    errors = (density.total_documents_error, density.tokens_per_gb_error, density.entries_per_gb_error)
    assert errors == (0.0, 0.0, 0.0)
    store = prepare(data, 0, None)
    assert store is not None
    assert sum(split.tokens for split in store.manifest.splits.values()) == tokens


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_blank_and_broken_records_are_no_documents(tmp_path: Path, name: str) -> None:
    content = b"one\n\n  \ntwo\nb\xffd\nthree\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    data = Data(source=f"text:{tmp_path}", on_error="skip")
    density = measured(data)
    assert (density.documents, density.total_documents, density.tokens) == (3, 3, 11 + 3)
    with pytest.raises(DataError, match=r"a\.txt.*line 5: not UTF-8"):
        measured(replace(data, on_error="stop"))


@pytest.mark.parametrize("content", ["", "\n\n  \n"])
def test_an_empty_corpus_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text(content)
    with pytest.raises(DataError, match=f'data.source = "text:{path}": the corpus is empty'):
        measured(Data(source=f"text:{path}"))


def test_a_data_set_without_rows_is_refused() -> None:
    with pytest.raises(DataError, match="the corpus is empty"):
        measure_density(ReadCorpus("hf:a", Reading(), []), Data(source="hf:a"))


def test_stories_have_no_total() -> None:
    density = measured(Data(tokenizer="words:20"))
    assert (density.documents, density.total_documents, density.total_documents_error) == (1000, None, None)
    assert density.tokens_per_gb_error is None, "nobody measured it"


@dataclass(frozen=True)
class Streamed:
    """A part of unknown size."""

    documents_in_it: int
    size: int | None = None
    block: int | None = None

    def documents(self, skipped: Skipped | None = None) -> Iterator[Document]:
        return (Document("text", "row", number) for number in range(self.documents_in_it))


@pytest.mark.parametrize(("parts", "read", "total"), [((30, 5), 35, 35), ((600, 600), 1000, None)])
def test_what_is_streamed_is_read_from_its_beginning(parts: tuple[int, ...], read: int, total: int | None) -> None:
    """And is known in full where that came to its end."""
    corpus = ReadCorpus("hf:a", Reading(streaming=True), [Streamed(count) for count in parts])  # type: ignore[misc]
    density = measure_density(corpus, Data(source="hf:a"))
    assert (density.documents, density.total_documents, density.tokens) == (read, total, 5 * read)
    assert density.total_documents_error == (None if total is None else 0.0)


# Samples of what is large


class Truth(NamedTuple):
    total_documents: int
    tokens_per_gb: float
    entries_per_gb: float


def truth_of(lines: list[bytes], tokenizer: str) -> Truth:
    """A full count; words are those between spaces."""
    text_bytes = sum(map(len, lines))
    tokens = (text_bytes if tokenizer == "bytes" else sum(len(line.split()) for line in lines)) + len(lines)
    return Truth(len(lines), tokens / text_bytes * 1e9, len(lines) / text_bytes * 1e9)


class Large(NamedTuple):
    path: Path
    lines: list[bytes]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Large:
    """Eight megabytes whose documents and words grow longer towards the end, so that blocks differ."""
    chance = random.Random(0)
    words = [[f"{'abcdefghij'[:length]}" for length in range(1, longest)] for longest in (4, 7, 11)]
    lines: list[bytes] = []
    size = 0
    while size < 8_000_000:
        place = size / 8_000_000
        known = words[min(2, int(place * 3 + chance.random() / 2))]
        text = " ".join(chance.choices(known, k=1 + int(chance.expovariate(1) * (5 + 60 * place))))
        lines.append(text.encode())
        size += len(text) + 1
    path = tmp_path_factory.mktemp("large") / "large.txt"
    path.write_bytes(b"\n".join(lines))
    return Large(path, lines)


def check_estimates(data: Data, truth: Truth, seeds: range, sample_bytes: int) -> None:
    """Every estimate lies within 4 of its errors, and over the seeds they spread as much as claimed."""
    found = [measured(data, seed=seed, sample_bytes=sample_bytes, seconds=FOREVER) for seed in seeds]
    for name, true in truth._asdict().items():
        values = [float(getattr(density, name)) for density in found]
        claimed = [float(getattr(density, f"{name}_error")) for density in found]
        off = [(value - true) / error for value, error in zip(values, claimed)]
        assert max(map(abs, off)) < 4, (name, true, values, claimed)
        spread = (sum((value - true) ** 2 for value in values) / len(values)) ** 0.5
        error = (sum(one**2 for one in claimed) / len(claimed)) ** 0.5
        assert 1 / 5 < spread / error < 5, (name, spread, error)
        assert error < 0.3 * true, "an estimate, not a guess"
        assert len(set(values)) > 1, "another seed reads other blocks"


@pytest.mark.parametrize("tokenizer", ["bytes", "words:9"])
def test_a_sample_tells_how_much_there_is(large: Large, tokenizer: str) -> None:
    data = Data(source=f"text:{large.path}", tokenizer=tokenizer)
    seeds = range(12) if tokenizer == "bytes" else range(4)
    check_estimates(data, truth_of(large.lines, tokenizer), seeds, 24 * BLOCK_BYTES)


@pytest.mark.parametrize("kind", ["jsonl", "paragraphs", "ended"])
def test_a_sample_of_several_files_tells_how_much_there_is(large: Large, tmp_path: Path, kind: str) -> None:
    form = {"jsonl": b'{"text": "%s"}\n', "paragraphs": b"%s\n\n\n", "ended": b"%s\n<END>\n"}[kind]
    part = -(-len(large.lines) // 4)
    for number in range(4):
        lines = large.lines[number * part : (number + 1) * part]
        (tmp_path / f"{number}.{'jsonl' if kind == 'jsonl' else 'txt'}").write_bytes(b"".join(form % x for x in lines))
    data = Data(source=f"{'text' if kind == 'ended' else kind}:{tmp_path}")
    data = replace(data, end_line="<END>") if kind == "ended" else data
    check_estimates(data, truth_of(large.lines, "bytes"), range(4), 24 * BLOCK_BYTES)


def test_blocks_of_unequal_size_weigh_what_they_stand_for(tmp_path: Path) -> None:
    """Compressed files, each a block: the small ones hold short documents, the large ones long documents."""
    chance = random.Random(0)
    lines: list[bytes] = []
    for number in range(60):
        many, words = (100, 10) if number % 2 else (300, 1)
        found = [" ".join(str(chance.random()) for _ in range(words)).encode() for _ in range(many)]
        (tmp_path / f"{number}.txt.gz").write_bytes(gzip.compress(b"\n".join(found), 1))
        lines += found
    check_estimates(Data(source=f"text:{tmp_path}"), truth_of(lines, "bytes"), range(8), 50 * BLOCK_BYTES)


def test_a_sample_is_the_same_for_the_same_seed(large: Large) -> None:
    data = Data(source=f"text:{large.path}")
    settings = {"sample_bytes": 4 * BLOCK_BYTES, "seconds": FOREVER}
    one, two = (replace(measured(data, seed=3, **settings), seconds=0) for _ in range(2))
    assert one == two != replace(measured(data, seed=4, **settings), seconds=0)


def test_a_slow_tokenizer_reads_for_some_seconds_only(large: Large, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = itertools.count()
    sums = densities._sums
    monkeypatch.setattr(densities, "_sums", lambda *given: (next(blocks), sums(*given))[1])
    density = measured(Data(source=f"text:{large.path}"), sample_bytes=60 * BLOCK_BYTES, seconds=0)
    assert next(blocks) == 17, "as few as tell the spread"
    assert density.total_documents is not None and density.total_documents_error is not None
    assert abs(density.total_documents - len(large.lines)) < 4 * density.total_documents_error


def test_a_large_block_is_read_some_megabytes_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"some text, again and again\n" * 250_000, 1))
    sizes: list[int] = []
    encode = ByteTokenizer.encode_batch

    def watched(self: ByteTokenizer, texts: Sequence[str]) -> Any:
        sizes.append(sum(map(len, texts)))
        return encode(self, texts)

    monkeypatch.setattr(ByteTokenizer, "encode_batch", watched)
    assert measured(Data(source=f"text:{tmp_path}")).documents > 0
    assert max(sizes) < 1 << 22 < sum(sizes)


# Real files


def real(name: str) -> bytes:
    path = REAL_DATA / name
    if not path.is_file():
        pytest.skip(f"no {path}")
    return gzip.decompress(path.read_bytes())


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["wikitext-2/train.txt.gz", "wikipedia/ja_paragraphs.txt.gz"])
def test_a_sample_of_real_lines(tmp_path: Path, name: str) -> None:
    content = real(name)
    (tmp_path / "corpus.txt").write_bytes(content)
    lines = [line.decode().strip().encode() for line in content.split(b"\n") if line.strip()]
    check_estimates(Data(source=f"text:{tmp_path}/corpus.txt"), truth_of(lines, "bytes"), range(5), 24 * BLOCK_BYTES)


@pytest.mark.realdata
def test_a_sample_of_real_stories(tmp_path: Path) -> None:
    content = real("tinystories/stories.txt.gz")
    (tmp_path / "corpus.txt").write_bytes(content)
    data = Data(source=f"text:{tmp_path}/corpus.txt", end_line="<|endoftext|>")
    stories = [story.strip().encode() for story in content.decode().split("<|endoftext|>\n") if story.strip()]
    assert len(stories) == 8_953
    check_estimates(data, truth_of(stories, "bytes"), range(6), 24 * BLOCK_BYTES)


@pytest.mark.realdata
def test_a_compressed_file_is_counted_in_full() -> None:
    lines = [line.strip() for line in real("wikitext-2/valid.txt.gz").split(b"\n") if line.strip()]
    density = measured(Data(source=f"text:{REAL_DATA}/wikitext-2/valid.txt.gz"))
    assert (density.documents, density.total_documents, density.total_documents_error) == (len(lines), len(lines), 0)
    assert density.tokens == sum(map(len, lines)) + len(lines)


@pytest.mark.parametrize("tokenizer", ["bytes", "words:3"])
def test_an_estimate_counts_what_the_tokenizer_makes(tmp_path: Path, tokenizer: str) -> None:
    documents = [f"{'é' * (i % 5)}It's {i}, AND \u0130 too." for i in range(40)]
    data = replace(write_corpus(tmp_path / "corpus.txt", documents), tokenizer=tokenizer)
    whole, estimated = measured(data), estimate_density(open_source(data, 0), data)
    assert replace(estimated, seconds=whole.seconds) == whole
    assert estimated.seconds > whole.text_bytes * COUNTED_SECONDS[tokenizer.partition(":")[0]]


@pytest.mark.parametrize("tokenizer", ["bytes", "words:640"])
def test_an_estimate_of_few_documents_is_near(tmp_path: Path, tokenizer: str) -> None:
    generator = random.Random(0)
    documents = ["two words " * generator.randint(10, 90) for _ in range(FEW_BYTES // 100)]
    for data in (Data(tokenizer=tokenizer), write_corpus(tmp_path / "corpus.txt", documents)):
        data = replace(data, tokenizer=tokenizer)
        whole, estimated = measured(data), estimate_density(open_source(data, 0), data)
        assert estimated.documents < whole.documents / 4
        assert estimated.tokens_per_document == pytest.approx(whole.tokens_per_document, rel=0.05)
        if whole.total_documents is not None:
            assert estimated.total_documents == pytest.approx(whole.total_documents, rel=0.05)
            assert estimated.total_documents_error


@pytest.mark.parametrize(
    ("name", "key"), [("words", "words_encoded_mb_per_cpu_second"), ("bytes", "bytes_mb_per_cpu_second")]
)
def test_seconds_of_a_tokenizer_are_those_of_the_record(name: str, key: str) -> None:
    record = json.loads((Path(__file__).parents[2] / "results/data-cpu.json").read_text())["tokenizing"]
    assert COUNTED_SECONDS[name] * record[key] * 1e6 == pytest.approx(1, rel=0.01)
