"""The store: rows as a naive packing gives them, and never a wrong token from a damaged file."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core.errors import DataError, StorageError
from shoestring.core.sections import Data
from shoestring.data.pack.order import RowIndex, step_rows
from shoestring.data.store import map_stage as passes
from shoestring.data.store import shards, sizes, store
from shoestring.data.store import work_units as units
from shoestring.data.store.prepare import prepare
from shoestring.data.store.store import Store, StoreRows

CHANCE = random.Random(0)
DOCUMENTS = [
    " ".join(CHANCE.choices(["one", "two", "three", "é", "five", "six", "seven"], k=CHANCE.randint(2, 5)))
    for _ in range(18)
]
LENGTH = 3


def cut(patch: pytest.MonkeyPatch, unit_bytes: int, shard_tokens: int) -> None:
    """Many units and shards of a small corpus."""
    patch.setattr(units, "UNIT_BYTES", unit_bytes)
    patch.setattr(passes, "SHARD_TOKENS", shard_tokens)
    patch.setattr(passes, "BATCH_CHARACTERS", 1)


def make(folder: Path, documents: list[str], tokenizer: str = "words:5", heldout: float = 0.3, seed: int = 0) -> Store:
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / "corpus.txt"
    corpus.write_bytes("\n".join(documents).encode())
    data = Data(source=f"text:{corpus}", tokenizer=tokenizer, heldout=heldout, folder=str(folder / "stores"))
    opened = prepare(data, seed, None, processes=1)
    assert opened is not None
    return opened


def all_rows(rows: StoreRows) -> list[list[int]]:
    return rows.rows(np.arange(len(rows))).tolist()


def content(folder: Path) -> dict[str, list[list[int]]]:
    """Everything that can be read from a store, opened anew."""
    opened = Store(folder)
    return {name: all_rows(opened.split(name, LENGTH)) for name in ("train", "heldout")}


def stream(opened: Store, split: str) -> list[int]:
    return [int(i) for part in opened.split(split, 1).stream() for i in part]


def windows(tokens: list[int], length: int) -> list[list[int]]:
    """Rows of length + 1 tokens; each begins with the token that the one before ended with."""
    found = []
    while len(tokens) > length:
        found.append(tokens[: length + 1])
        tokens = tokens[length:]
    return found


def byte_tokens(document: str) -> list[int]:
    return [byte + 6 for byte in document.encode()] + [2]


def document_sizes(opened: Store, shard: str) -> list[int]:
    ends = shards.Shard(opened.paths.folder / shard).document_ends().tolist()
    return [end - start for start, end in zip([0, *ends], ends)]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of a few documents in several units and shards."""
    cut(monkeypatch, 140, 8)
    folder = make(tmp_path, DOCUMENTS, heldout=0.5).paths.folder
    assert len(list(folder.glob("*-00000-*.tok"))) > 3
    assert len(list(folder.glob("train-00001-*.tok"))) > 1
    return folder


def check_flips(path: Path, folder: Path, masks: tuple[int, ...]) -> int:
    """Flip each byte of a file in turn; returns how many flips did not matter."""
    good, original, harmless = content(folder), path.read_bytes(), 0
    for at in range(len(original)):
        for mask in masks:
            path.write_bytes(original[:at] + bytes([original[at] ^ mask]) + original[at + 1 :])
            try:
                found = content(folder)
            except (DataError, StorageError):
                continue
            assert found == good, f"byte {at} of {path.name} flipped with {mask:#x}"
            harmless += 1
    path.write_bytes(original)
    assert content(folder) == good
    return harmless


@pytest.mark.parametrize("name", ["train-00000-00000.tok", "train-00000-00001.tok", "heldout-00001-00000.tok"])
def test_no_flipped_byte_of_a_shard_is_read(small: Path, name: str) -> None:
    assert check_flips(small / name, small, (0x01, 0xFF)) == 0


@pytest.mark.parametrize(
    ("name", "tokenizer"), [("manifest.json", "words:5"), ("tokenizer.json", "words:5"), ("tokenizer.json", "bytes")]
)
def test_no_flipped_byte_of_a_json_file_changes_a_token(tmp_path: Path, name: str, tokenizer: str) -> None:
    folder = make(tmp_path, DOCUMENTS, tokenizer, heldout=0.5).paths.folder
    check_flips(folder / name, folder, (0x01, 0x20))


@pytest.mark.parametrize("name", ["manifest.json", "tokenizer.json", "train-00000-00000.tok"])
def test_a_truncated_file_is_noticed(small: Path, name: str) -> None:
    good, original = content(small), (small / name).read_bytes()
    for length in range(0, len(original) - 1, 5):
        (small / name).write_bytes(original[:length])
        try:
            assert content(small) == good
        except (DataError, StorageError):
            continue
        assert original[:length].strip() == original.strip(), "only the last newline may be missing"


@pytest.mark.parametrize(
    ("name", "error"),
    [("manifest.json", DataError), ("tokenizer.json", StorageError), ("train-00001-00000.tok", StorageError)],
)
def test_a_missing_file_is_named(small: Path, name: str, error: type[Exception]) -> None:
    (small / name).unlink()
    with pytest.raises(error) as caught:
        content(small)
    assert str(small) in str(caught.value)


def test_a_shard_of_another_store_is_refused(small: Path, tmp_path: Path) -> None:
    backwards = [" ".join(reversed(document.split())) for document in DOCUMENTS]  # as long, and with the same words
    other = make(tmp_path / "other", backwards, heldout=0.5).paths.folder
    mine, theirs = small / "train-00000-00000.tok", other / "train-00000-00000.tok"
    assert mine.stat().st_size == theirs.stat().st_size
    assert mine.read_bytes() != theirs.read_bytes()
    shutil.copy(theirs, mine)
    with pytest.raises(DataError, match=r"train-00000-00000\.tok does not belong to this store"):
        content(small)


def test_shards_of_one_store_cannot_change_places(small: Path) -> None:
    first, second = small / "train-00000-00000.tok", small / "train-00001-00000.tok"
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    with pytest.raises(DataError, match="does not belong to this store"):
        content(small)


def test_another_tokenizer_is_refused(small: Path) -> None:
    assert Store(small, "words:5").manifest.tokenizer == "words:5"
    with pytest.raises(DataError, match='was made with the tokenizer "words:5", not "bytes"'):
        Store(small, "bytes")


@pytest.mark.parametrize("change", ["order", "word", "size", "bytes"])
def test_a_swapped_tokenizer_file_is_refused(small: Path, change: str) -> None:
    path = small / "tokenizer.json"
    values = json.loads(path.read_text())
    words = values["words"]
    changed = {
        "order": {**values, "words": words[::-1]},
        "word": {**values, "words": ["zebra", *words[1:]]},
        "size": {**values, "spec": "words:6"},
        "bytes": {"spec": "bytes"},
    }[change]
    path.write_text(json.dumps(changed))
    with pytest.raises(DataError, match="is not the tokenizer"):
        Store(small)


def test_a_folder_without_a_manifest_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a token store.*shoestring prepare"):
        Store(tmp_path)


@pytest.mark.parametrize("change", [lambda m: m | {"vocab_size": 8}, lambda m: m | {"end": 1}, lambda m: m | {"x": 1}])
def test_an_edited_manifest_is_noticed(small: Path, change: Callable[[dict[str, object]], dict[str, object]]) -> None:
    path = small / "manifest.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(DataError, match="damaged"):
        Store(small)


def test_a_split_too_short_for_a_row_says_how_much_it_holds(small: Path) -> None:
    opened = Store(small)
    held = opened.manifest.splits["train"]
    assert len(opened.split("train", held.tokens - 1)) == 1
    expected = f"train part holds {held.tokens} tokens in {held.documents} documents.*one row needs {held.tokens + 1}"
    with pytest.raises(DataError, match=expected):
        opened.split("train", held.tokens)


def test_rows_outside_are_refused(small: Path) -> None:
    rows = Store(small).split("train", LENGTH)
    for index in (-1, len(rows)):
        with pytest.raises(IndexError, match=f"0 to {len(rows) - 1}"):
            rows.rows(np.array([index]))
    assert rows.rows(np.zeros(0, dtype=np.int64)).shape == (0, LENGTH + 1)


def test_equal_tokens_have_equal_fingerprints(tmp_path: Path) -> None:
    one, two = make(tmp_path / "one", DOCUMENTS), make(tmp_path / "two", DOCUMENTS)
    other = make(tmp_path / "other", [*DOCUMENTS[:-1], "seven two two"])
    assert one.manifest.fingerprint == two.manifest.fingerprint != other.manifest.fingerprint


@settings(max_examples=40, deadline=None)
@given(
    documents=st.lists(st.text(alphabet="ab é日", min_size=1, max_size=30), min_size=4, max_size=25),
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    sizes=st.tuples(st.integers(30, 300), st.integers(1, 50)),
    seed=st.integers(0, 3),
)
def test_rows_are_those_of_a_naive_packing(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[str],
    lengths: list[int],
    sizes: tuple[int, int],
    seed: int,
) -> None:
    documents = [f"{index}{text}".strip() for index, text in enumerate(documents)]  # none is blank, all differ
    with pytest.MonkeyPatch.context() as patch:
        cut(patch, *sizes)
        opened = make(tmp_path_factory.mktemp("store"), documents, "bytes", 0.3, seed)
    counts = opened.manifest.splits
    held = set()
    if counts["heldout"].documents:
        held = set(opened.tokenizer.decode(stream(opened, "heldout")).split("[EOS]")) - {""}
        assert len(held) == counts["heldout"].documents
    for name, mine in (
        ("train", [text for text in documents if text not in held]),
        ("heldout", [text for text in documents if text in held]),
    ):
        tokens = [token for text in mine for token in byte_tokens(text)]
        assert counts[name].tokens == len(tokens)
        assert counts[name].documents == len(mine)
        assert counts[name].text_bytes == sum(len(text.encode()) for text in mine)
        found = [size for shard in counts[name].shards for size in document_sizes(opened, shard.name)]
        assert found == [len(byte_tokens(text)) for text in mine]
        for length in lengths:
            expected = windows(tokens, length)
            if not expected:
                with pytest.raises(DataError, match="one row needs"):
                    opened.split(name, length)
                continue
            rows = opened.split(name, length)
            assert len(rows) == len(expected)
            assert all_rows(rows) == expected
            backwards = np.arange(len(rows))[::-1]
            assert rows.rows(backwards).tolist() == expected[::-1]
            assert rows.bytes_per_token == pytest.approx(counts[name].text_bytes / len(tokens))


# Windows and rows at a random offset, on one store of many shards


class Shown:
    """A store, and the tokens of its training part as one list."""

    def __init__(self, opened: Store):
        self.opened = opened
        self.tokens = stream(opened, "train")
        self.shards = len(opened.manifest.splits["train"].shards)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    chance = random.Random(1)
    documents = ["".join(chance.choices("abcé日 ", k=chance.randint(1, 14))).strip() + "." for _ in range(90)]
    with pytest.MonkeyPatch.context() as patch:
        cut(patch, 250, 16)
        found = Shown(make(tmp_path_factory.mktemp("shown"), documents, "bytes", 0.2))
    assert found.shards > 20
    return found


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_windows_continue_over_the_ends_of_shards(shown: Shown, data: st.DataObject) -> None:
    width = data.draw(st.integers(1, len(shown.tokens)))
    starts = data.draw(st.lists(st.integers(0, len(shown.tokens) - width), max_size=10))
    found = shown.opened.split("train", 1).windows(np.array(starts, dtype=np.int64), width)
    assert found.shape == (len(starts), width) and found.dtype == np.int64
    assert found.tolist() == [shown.tokens[start : start + width] for start in starts]


def test_documents_end_at_the_end_token_in_every_shard(shown: Shown) -> None:
    whole = shown.opened.split("train", 1).segments(np.zeros(1, dtype=np.int64), len(shown.tokens))[0]
    ends = [place + 1 for place, token in enumerate(shown.tokens) if token == 2]
    assert (np.flatnonzero(np.diff(whole)) + 1).tolist() == ends[:-1]
    assert whole[-1] == len(ends) == shown.opened.manifest.splits["train"].documents


def of_epoch(epoch: int, *rows: int) -> RowIndex:
    return RowIndex(np.full(len(rows), epoch), np.array(rows, dtype=np.int64))


def read(rows: StoreRows, index: RowIndex) -> list[list[int]]:
    return rows.windows(rows.starts(index), rows.length + 1).tolist()


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(0, 2**63 - 1))
def test_rows_at_a_random_offset_are_those_of_slicing_from_it(shown: Shown, data: st.DataObject, seed: int) -> None:
    total = len(shown.tokens)
    length = data.draw(st.integers(1, 40) | st.integers(total // 3, total - 1))
    rows, again = (shown.opened.split("train", length, offset_seed=seed) for _ in range(2))
    n = len(rows)
    assert n >= 1
    assert n in ((total - 1) // length, (total - 1) // length - 1), "at most one row is lost to the offset"
    for epoch in (0, 1, 2, 1000):
        index = of_epoch(epoch, *range(n))
        starts = rows.starts(index)
        offset = int(starts[0])
        assert 0 <= offset < length
        assert starts.tolist() == [offset + row * length for row in range(n)], "so no token is predicted twice"
        assert offset + n * length + 1 <= total, "the last row is within the stream"
        assert read(rows, index) == [shown.tokens[at : at + length + 1] for at in starts.tolist()]
        assert again.starts(index).tolist() == starts.tolist(), "a function of the seed and the epoch"
    assert rows.rows(np.arange(n)).tolist() == read(rows, of_epoch(0, *range(n)))
    mixed = [(3, 0), (0, 0), (1000, n - 1), (1, 0)]
    alone = [read(rows, of_epoch(epoch, row))[0] for epoch, row in mixed]
    assert read(rows, RowIndex(*map(np.array, zip(*mixed)))) == alone


def test_epochs_and_seeds_have_offsets_of_their_own(shown: Shown) -> None:
    length = 32
    offsets = {
        tuple(int(rows.starts(of_epoch(epoch, 0))[0]) for epoch in range(8))
        for rows in (shown.opened.split("train", length, offset_seed=seed) for seed in range(6))
    }
    assert len(offsets) == 6
    assert all(len(set(found)) > 4 for found in offsets)


@pytest.mark.parametrize("offset_seed", [None, 5])
@pytest.mark.parametrize("batch", [1, 7, 50])
def test_every_epoch_is_a_permutation_of_its_own_rows(shown: Shown, batch: int, offset_seed: int | None) -> None:
    rows = shown.opened.split("train", 20, offset_seed)
    n = len(rows)
    steps = range(-(-3 * n // batch))
    epochs, order = np.concatenate([rows.order(3, step, batch) for step in steps], axis=1).tolist()
    assert epochs == [place // n for place in range(len(order))]
    for epoch in range(3):
        assert sorted(order[epoch * n : (epoch + 1) * n]) == list(range(n))
    assert len({tuple(order[epoch * n : (epoch + 1) * n]) for epoch in range(3)}) == 3
    assert order == np.concatenate([rows.order(3, step, 1).rows for step in range(len(order))]).tolist()
    read(rows, RowIndex(np.array(epochs), np.array(order)))  # all of them are there


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 900), st.integers(1, 40)), min_size=1, max_size=6))
def test_the_rows_of_a_step_do_not_depend_on_what_was_asked_before(
    shown: Shown, asked: list[tuple[int, int, int]]
) -> None:
    rows = shown.opened.split("train", 20)
    for seed, step, batch in asked:
        found, expected = rows.order(seed, step, batch), step_rows(seed, len(rows), step, batch)
        assert np.array_equal(found, expected)


def test_a_small_store_orders_no_thousands_of_epochs_ahead(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every epoch is a permutation of its own, so of a few rows they are slow."""
    rows = shown.opened.split("train", 200)
    assert len(rows) < 10
    ordered: list[int] = []
    monkeypatch.setattr(store, "step_rows", lambda *given: ordered.append(given[3]) or step_rows(*given))
    rows.order(0, 0, 4)
    assert max(ordered) < 20 * len(rows)


def test_epochs_have_no_end_but_rows_do(shown: Shown) -> None:
    rows = shown.opened.split("train", 20, offset_seed=0)
    for outside in (-1, len(rows)):
        with pytest.raises(IndexError, match=f"0 to {len(rows) - 1}"):
            rows.starts(of_epoch(0, 0, outside))
    assert len(read(rows, of_epoch(10**12, 0))[0]) == 21
    assert rows.rows(np.zeros(0, dtype=np.int64)).shape == (0, 21)


@pytest.mark.parametrize("missing", range(6))
def test_a_stream_of_hardly_a_row_has_smaller_offsets(shown: Shown, missing: int) -> None:
    total = len(shown.tokens)
    length = total - 1 - missing
    rows = shown.opened.split("train", length, offset_seed=0)
    assert len(rows) == 1
    starts = {int(rows.starts(of_epoch(epoch, 0))[0]) for epoch in range(60)}
    assert starts == set(range(missing + 1))


def test_every_token_but_the_first_is_predicted_once(tmp_path: Path) -> None:
    opened = make(tmp_path, ["abcdefghijk"] * 30, "bytes")
    tokens = stream(opened, "train")
    predicted = [token for row in all_rows(opened.split("train", 7)) for token in row[1:]]
    assert predicted == tokens[1 : 1 + len(predicted)]
    assert len(tokens) - 1 - len(predicted) < 7


def test_a_large_store_reports_damage_only_where_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block, itemsize, header = 32, 2, 64
    monkeypatch.setattr(sizes, "BLOCK", block)
    opened = make(tmp_path, [f"document {i} of some" for i in range(12)], "bytes")
    expected = all_rows(opened.split("train", 5))
    path = opened.paths.folder / "train-00000-00000.tok"
    original = path.read_bytes()
    tokens = opened.manifest.splits["train"].tokens
    for at in range(0, tokens * itemsize, 13):
        path.write_bytes(original[: header + at] + bytes([original[header + at] ^ 0x40]) + original[header + at + 1 :])
        with pytest.raises(DataError, match="damaged"):
            Store(opened.paths.folder).split("train", 5)
        with monkeypatch.context() as patch:
            patch.setattr(store, "EAGER_BYTES", 0)
            rows = Store(opened.paths.folder).split("train", 5)
        for index, row in enumerate(expected):
            first, last = index * 5 * itemsize // block, ((index * 5 + 6) * itemsize - 1) // block
            if first <= at // block <= last:
                with pytest.raises(DataError, match=f"block {at // block} of its content"):
                    rows.rows(np.array([index]))
            else:
                assert rows.rows(np.array([index])).tolist() == [row]
        with pytest.raises(DataError, match="damaged"):
            list(rows.stream())


def test_a_large_store_gives_the_rows_of_a_small_one(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = content(small)
    monkeypatch.setattr(store, "EAGER_BYTES", 0)
    assert content(small) == good
