"""Units: every document in exactly one of them, whatever their size, and held out by its number there."""

import gzip
import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoestring.core.sections import Data
from shoestring.data.read.corpora import FilePart, ReadCorpus, open_corpus, open_source, texts
from shoestring.data.read.documents import Corpus, Part, Reading, Skipped
from shoestring.data.read.hub import RowsPart, ShardPart
from shoestring.data.store import work_units as units
from shoestring.data.store.work_units import Piece, Unit, divide, is_heldout, limited, unit_heldout

KINDS = ("text", "paragraphs", "jsonl", "ended")
BODIES = st.lists(
    st.lists(st.text("aé日\r\t ", max_size=12) | st.just("x" * 70), max_size=3).map("\n".join), max_size=12
)


def file_of(kind: str, bodies: list[str], ends: list[str]) -> tuple[bytes, Reading]:
    """A file of documents, some of them blank, with what a file of its kind may have between them and at its end."""
    if kind == "text":
        lines = [line for body in bodies for line in body.split("\n")]
        return "".join(f"{line}{end}\n" for line, end in zip(lines, itertools.cycle(ends))).encode(), Reading()
    if kind == "jsonl":
        lines = [json.dumps({"text": body}, ensure_ascii=False) for body in bodies]
        return "\n".join(f"{line}{end}" for line, end in zip(lines, itertools.cycle(ends))).encode(), Reading()
    if kind == "paragraphs":
        return "\n\n".join(f"{body}\n{end}" for body, end in zip(bodies, itertools.cycle(ends))).encode(), Reading()
    between = "".join(f"{body}\n<END>{end}\n" for body, end in zip(bodies, itertools.cycle(ends)))
    return between.encode(), Reading(end_line="<END>")


def documents_of(kind: str, content: bytes) -> list[str]:
    """The documents of a file, taken apart by hand."""
    text = content.decode()
    if kind == "text":
        found = text.split("\n")
    elif kind == "jsonl":
        found = [json.loads(line)["text"] for line in text.split("\n") if line.strip()]
    else:
        end, found = "" if kind == "paragraphs" else "<END>", [""]
        for line in text.split("\n"):
            if line.strip() == end:
                found.append("")
            else:
                found[-1] += line.removesuffix("\r") + "\n"
    return [document if kind == "jsonl" else document.strip() for document in found if document.strip()]


def read(unit: Unit, skipped: Skipped | None = None) -> list[str]:
    return [document.text for document in unit.documents(Skipped() if skipped is None else skipped)]


def write_corpus(path: Path, content: bytes, kind: str, reading: Reading) -> Corpus:
    path.write_bytes(content)
    return open_corpus(f"{'text' if kind == 'ended' else kind}:{path}", reading)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50, deadline=None)
@given(BODIES, st.lists(st.sampled_from(["", "\r", " ", "\n", "\n\n"]), min_size=1, max_size=3), st.integers(1, 90))
@example(["one", "two"], [""], 1)
@example(["a" * 70], [""], 7)
def test_a_cut_loses_and_repeats_no_document(
    tmp_path_factory: pytest.TempPathFactory, kind: str, bodies: list[str], ends: list[str], size: int
) -> None:
    content, reading = file_of(kind, bodies, ends)
    corpus = write_corpus(tmp_path_factory.mktemp("units") / "a", content, kind, reading)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "UNIT_BYTES", size)
        made = divide(corpus, None)
    assert [unit.number for unit in made] == list(range(len(made)))
    assert len(made) == max(1, -(-len(content) // size))
    whole, apart = Skipped(), Skipped()
    found = [text for unit in made for text in read(unit, apart)]
    assert found == documents_of(kind, content)
    assert found == [document.text for document in corpus.documents(whole)]
    assert apart == whole, "empty records are counted once, too"


@pytest.mark.parametrize("kind", ["text", "jsonl"])
@pytest.mark.parametrize("size", [1, 3, 10, 64])
def test_broken_records_are_counted_once(tmp_path: Path, kind: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = (b"good\n", b"b\xffd\n") if kind == "text" else (b'{"text": "good"}\n', b'{"text": 3}\n')
    content = (good + bad + b"\n" + bad + good + good) * 6
    corpus = write_corpus(tmp_path / "a", content, kind, Reading(on_error="skip"))
    monkeypatch.setattr(units, "UNIT_BYTES", size)
    skipped = Skipped()
    found = [text for unit in divide(corpus, None) for text in read(unit, skipped)]
    assert found == ["good"] * 18
    assert (skipped.count, skipped.empty) == (12, 6 if kind == "text" else 0)
    assert len(skipped.examples) == 5


def test_a_byte_order_mark_inside_a_file_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where files were joined that each had one."""
    corpus = write_corpus(tmp_path / "a", "\ufeffone\n\ufefftwo\nthree\n".encode(), "text", Reading())
    assert list(texts(corpus)) == ["one", "\ufefftwo", "three"]
    for size in range(1, 20):
        monkeypatch.setattr(units, "UNIT_BYTES", size)
        assert [text for unit in divide(corpus, None) for text in read(unit)] == ["one", "\ufefftwo", "three"], size


# Which parts make a unit


def sized(folder: Path, sizes: list[int], packed: list[bool]) -> list[Part]:
    """Files of so many bytes; what is called .gz cannot be cut."""
    found: list[Part] = []
    for number, (size, whole) in enumerate(zip(sizes, packed)):
        path = folder / f"{number:02}.txt{'.gz' if whole else ''}"
        path.write_bytes(b"x" * size)
        found.append(FilePart(path, "text", Reading()))
    return found


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=12), st.integers(1, 40))
def test_small_parts_are_read_together_and_large_ones_in_slices(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[int, bool]], most: int
) -> None:
    parts = sized(tmp_path_factory.mktemp("parts"), [size for size, _ in files], [packed for _, packed in files])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "UNIT_BYTES", most)
        made = divide(ReadCorpus("text:a", Reading(), parts), None)
    pieces = [piece for unit in made for piece in unit.pieces]
    assert all(unit.pieces for unit in made)
    expected = []
    for part, (size, packed) in zip(parts, files):
        if size > most and not packed:
            expected += [Piece(part, at, min(at + most, size)) for at in range(0, size, most)]
        else:
            expected.append(Piece(part))
    assert pieces == expected, "everything once, in the order of the corpus"
    for unit in made:
        sizes = [piece.part.size or 0 for piece in unit.pieces]
        assert len(sizes) == 1 or sum(sizes[:-1]) < most, "a unit that is full takes no more"


def test_what_is_streamed_is_a_unit_each() -> None:
    parts = [ShardPart("hf:a", None, "1", shard, Reading(streaming=True)) for shard in range(4)]
    made = divide(ReadCorpus("hf:a", Reading(streaming=True), parts), None)
    assert [unit.pieces for unit in made] == [(Piece(part),) for part in parts]


def test_a_data_set_of_millions_of_rows_has_more_than_one_unit() -> None:
    parts = [RowsPart("hf:a", None, "1", row, row + 100_000, Reading()) for row in range(0, 2_000_000, 100_000)]
    made = divide(ReadCorpus("hf:a", Reading(), parts), None)
    assert len(made) > 1, "some gigabytes would be read by one process"
    assert [piece.part for unit in made for piece in unit.pieces] == parts


def test_units_do_not_depend_on_the_settings_of_the_machine(tmp_path: Path) -> None:
    """What other processes and machines get is the unit itself, and it says all that there is to say."""
    for name in ("a.txt.gz", "b.txt.gz"):
        (tmp_path / name).write_bytes(gzip.compress(f"{name} one\n{name} two\n".encode()))
    (tmp_path / "c.txt").write_text("one\ntwo\nthree\n")
    corpus = open_corpus(f"text:{tmp_path}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "UNIT_BYTES", 8)
        made = divide(corpus, None)
    assert len(made) == 4
    sent = pickle.loads(pickle.dumps(made))
    assert sent == made
    assert [text for unit in sent for text in read(unit)] == list(texts(corpus))


# Only the first documents


@pytest.mark.parametrize("documents", [1, 9, 10, 11, 25, 30])
def test_stories_are_read_in_ranges(documents: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "UNIT_STORIES", 10)
    source = open_source(Data(), 3)
    made = divide(source, documents)
    assert [len(read(unit)) for unit in made] == [min(10, documents - at) for at in range(0, documents, 10)]
    assert [text for unit in made for text in read(unit)] == list(texts(source, documents))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.integers(1, 40))
def test_limits_take_the_first_documents_of_all_units(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], documents: int
) -> None:
    folder = tmp_path_factory.mktemp("limits")
    names = iter(range(100))
    made = []
    for number, count in enumerate(counts):
        path = folder / f"{number}.txt"
        path.write_text("".join(f"{next(names)}\n" for _ in range(count)))
        made.append(Unit(number, (Piece(FilePart(path, "text", Reading())),)))
    found = limited(made, counts, documents)
    assert [text for unit in found for text in read(unit)] == [str(i) for i in range(min(documents, sum(counts)))]
    assert [(unit.number, unit.pieces) for unit in found] == [(u.number, u.pieces) for u in made[: len(found)]]
    assert len(found) == len(made) or sum(counts[: len(found) - 1]) < documents <= sum(counts[: len(found)])


def test_a_limit_reads_no_further_than_it_must(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\nb\xffd\n")
    unit = Unit(0, (Piece(FilePart(path, "text", Reading())),), limit=2)
    assert read(unit) == ["one", "two"]


# Who is held out


@pytest.mark.parametrize("fraction", [0.001, 0.02, 0.1, 0.25, 1 / 3, 0.5])
@pytest.mark.parametrize("key", [0, 2**63 - 1])
def test_the_share_is_right_within_one_from_the_first_document_on(fraction: float, key: int) -> None:
    held_out = is_heldout(key, fraction)
    excess = list(itertools.accumulate(held_out(index) - fraction for index in range(5_000)))
    assert max(map(abs, excess)) <= 1 + 1e-6
    assert max(excess) - min(excess) <= 2 + 1e-6, "between any two"


def test_any_document_of_a_stratum_may_be_the_one() -> None:
    drawn = [next(i for i in range(50) if is_heldout(key, 0.02)(i)) for key in range(1_500)]
    counts = [drawn.count(i) for i in range(50)]
    chi_square = sum((count - 30) ** 2 / 30 for count in counts)
    assert (chi_square - 49) / (2 * 49) ** 0.5 < 5


def test_units_have_choices_of_their_own() -> None:
    chosen = {unit: tuple(i for i in range(400) if unit_heldout(0.02, unit)(i)) for unit in range(24)}
    assert len(set(chosen.values())) == len(chosen)


def test_a_choice_is_one_of_the_number_alone() -> None:
    held_out: Any = unit_heldout(0.1, 7)
    forwards = [held_out(i) for i in range(300)]
    assert [unit_heldout(0.1, 7)(i) for i in reversed(range(300))] == forwards[::-1]
