"""A store of some extents: drawn over the corpus, the same whatever was read before, and extended to the rest."""

from __future__ import annotations

import gzip
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoestring.core.sections import Data
from shoestring.data.read.corpora import open_corpus
from shoestring.data.read.documents import Skipped
from shoestring.data.store import prepare as preparing
from shoestring.data.store import work_units
from shoestring.data.store.map_stage import PASSES
from shoestring.data.store.prepare import prepare
from shoestring.data.store.store import SplitEntry, Store
from shoestring.data.store.work_units import lay_out

LINES = [f"line {n:05d} {'x' * (n % 23 + 1)}" for n in range(2_000)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, units and extents of a few documents, and no measuring."""
    monkeypatch.setattr(work_units, "FIRST_BYTES", 1 << 11)
    monkeypatch.setattr(work_units, "UNIT_BYTES", 1 << 13)
    monkeypatch.setattr(work_units, "BLOCK_BYTES", 1 << 8)
    monkeypatch.setattr("shoestring.data.read.corpora.BLOCK_BYTES", 1 << 8)
    monkeypatch.setattr(preparing, "_check_room", lambda *_: None)


def corpus_in(folder: Path, packed: bool = False) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(LINES).encode()
    path = folder / ("corpus.txt.gz" if packed else "corpus.txt")
    path.write_bytes(gzip.compress(text, mtime=0) if packed else text)
    return f"text:{path}"


def made(source: str, folder: Path, share: float | None, heldout_tokens: int = 0, **more: Any) -> Store:
    data = Data(source=source, tokenizer=more.pop("tokenizer", "bytes"), folder=str(folder), heldout=0.1, **more)
    store = prepare(data, 0, None, processes=1, share=share, heldout_tokens=heldout_tokens)
    assert store is not None
    return store


def texts_of(store: Store, split: str, entry: SplitEntry | None = None) -> list[str]:
    entry = entry or store.manifest.splits[split]
    shards = [store._shard(shard) for shard in entry.shards]
    return [
        bytes(int(i) - 6 for i in part[:-1]).decode()
        for shard in shards
        for part in np.split(shard.ids(0, shard.tokens), shard.document_ends().astype(int)[:-1])
    ]


def files_of(store: Store) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(store.paths.folder.iterdir()) if path.suffix}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("packed", [False, True])
def test_extents_are_a_partition_of_the_corpus(tmp_path: Path, packed: bool) -> None:
    extents = lay_out(open_corpus(corpus_in(tmp_path, packed)), None)
    assert len(extents) >= 3
    read = [[document.text for unit in extent.units for document in unit.documents(Skipped())] for extent in extents]
    assert sorted(itertools.chain(*read)) == LINES
    assert [extent.share for extent in extents] == sorted({extent.share for extent in extents})
    assert extents[-1].share == 1
    numbers = [unit.number for extent in extents for unit in extent.units]
    assert numbers == list(range(len(numbers)))


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 3_000), min_size=1, max_size=5),
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=30),
)
def test_extents_of_any_files_are_a_partition(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], lengths: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("files")
    texts: list[str] = []
    for number, size in enumerate(sizes):
        lines = [f"{number} {line} {'y' * lengths[line % len(lengths)]}" for line in range(size // 50)]
        (folder / f"{number}.txt").write_text("\n".join(lines) if lines else "only")
        texts += lines or ["only"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work_units, "FIRST_BYTES", 500)
        patch.setattr(work_units, "UNIT_BYTES", 1_000)
        patch.setattr("shoestring.data.read.corpora.BLOCK_BYTES", 100)
        units = [unit for extent in lay_out(open_corpus(f"text:{folder}"), None) for unit in extent.units]
        assert sorted(d.text for unit in units for d in unit.documents(Skipped())) == sorted(texts)


@pytest.mark.usefixtures("small")
def test_every_document_is_as_likely_to_be_in_the_first_extents(tmp_path: Path) -> None:
    """Chi-square over tenths of the file, of the first fifth of 60 corpora that differ in their size."""
    counts = np.zeros(10)
    for more in range(60):
        path = tmp_path / f"{more}.txt"
        path.write_text("\n".join([*LINES, *(["z" * 20] * 13 * more)]))
        extents = [extent for extent in lay_out(open_corpus(f"text:{path}"), None) if extent.share < 0.2]
        for extent in extents:
            for unit in extent.units:
                for piece in unit.pieces:
                    assert piece.end is not None
                    middle = (piece.begin + piece.end) / 2 / path.stat().st_size
                    counts[int(10 * middle)] += (piece.end - piece.begin) / 256
    expected = counts.sum() / 10
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # the 99.9 % point of 9 degrees of freedom


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("more", [{}, {"tokenizer": "words:200"}, {"unique": True}])
@pytest.mark.parametrize("packed", [False, True])
def test_an_extended_store_is_one_made_at_once(tmp_path: Path, packed: bool, more: dict[str, Any]) -> None:
    source = corpus_in(tmp_path, packed)
    for share in (0.1, 0.3, 0.31, 0.8):
        steps = made(source, tmp_path / "steps", share, 3_000, **more)
        once = made(source, tmp_path / f"once-{share}", share, 3_000, **more)
        assert files_of(steps) == files_of(once)
    assert files_of(made(source, tmp_path / "steps", None, 3_000, **more)) == files_of(
        made(source, tmp_path / "all", None, 3_000, **more)
    )


@pytest.mark.usefixtures("small")
def test_held_out_documents_are_never_trained_on_and_scored_ones_stay(tmp_path: Path) -> None:
    source, scored = corpus_in(tmp_path), []
    held_out: set[str] = set()
    trained: set[str] = set()
    for share in (0.05, 0.2, 0.6, None):
        store = made(source, tmp_path / "store", share, 2_000)
        held_out |= set(texts_of(store, "heldout"))
        trained |= set(texts_of(store, "train"))
        assert not held_out & trained
        scored.append(texts_of(store, "heldout", store.manifest.splits["heldout"].with_tokens(2_000)))
    assert scored[0] and all(texts == scored[0] for texts in scored)
    assert Counter(trained) + Counter(held_out) == Counter(LINES)


@pytest.mark.usefixtures("small")
def test_a_small_share_reads_little_for_training_and_enough_for_scoring(tmp_path: Path) -> None:
    store = made(corpus_in(tmp_path), tmp_path / "store", 0.01, 4_000)
    train, held_out = (store.manifest.splits[split] for split in ("train", "heldout"))
    assert train.documents < 0.1 * len(LINES)
    assert held_out.tokens >= 4_000 and len(held_out.extents) > len(train.extents)
    numbers = [int(text.split()[1]) for text in texts_of(store, "heldout")]
    assert min(numbers) < 500 and max(numbers) > 1_500, "from all of the file"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["tokens", "heldout", "hash"])
def test_an_extension_that_was_stopped_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    source, more = corpus_in(tmp_path), {"unique": True}
    before = made(source, tmp_path / "store", 0.1, 1_500, **more)
    whole, calls = PASSES[name], itertools.count()

    def stop(*given: Any) -> None:
        if next(calls) == 1:
            raise KeyboardInterrupt
        whole(*given)

    monkeypatch.setitem(PASSES, name, stop)
    with pytest.raises(KeyboardInterrupt):
        made(source, tmp_path / "store", 0.3, 5_000, **more)
    monkeypatch.setitem(PASSES, name, whole)
    assert Store(before.paths.folder).manifest == before.manifest, "what is there can be read meanwhile"
    again, once = (made(source, tmp_path / folder, 0.3, 5_000, **more) for folder in ("store", "once"))
    assert files_of(again) == files_of(once)


def test_a_small_corpus_is_one_extent_in_its_own_order(tmp_path: Path) -> None:
    store = made(corpus_in(tmp_path), tmp_path / "store", 0.01)
    train = texts_of(store, "train")
    assert train == sorted(train) and len(train) == 0.9 * len(LINES)
    assert store.manifest.splits["train"].extents == ()
