"""Packing: every token where the ledger says, rows as naive packings give them, at any number of documents."""

import gzip
import re
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoestring.core.errors import DataError
from shoestring.data.pack.bin_packing import MAX_CAPACITY_SEARCHED, best_fit_decreasing, full_rows
from shoestring.data.pack.packing import MAX_CAPACITY, Ledger, Packing, best_fit, pack, pad

checked = settings(max_examples=40, deadline=None)
LENGTHS = st.lists(st.integers(0, 40), max_size=60)
CAPACITIES = st.integers(2, 24)
REAL_DATA = Path(__file__).parents[3] / "shared" / "data"

Packer = Callable[[NDArray[np.integer], int], Packing]
Piece = tuple[int, int]
"""Where a piece begins and ends in the stream."""


def decreasing(lengths: NDArray[np.integer], capacity: int) -> Packing:
    return pack(lengths, capacity, best_fit_decreasing)


def searched(lengths: NDArray[np.integer], capacity: int) -> Packing:
    """Full rows, looked for three sizes at a time."""
    return pack(lengths, capacity, lambda counts, capacity: full_rows(counts, capacity, 3, 10**8)[0])


def searched_a_little(lengths: NDArray[np.integer], capacity: int) -> Packing:
    """With the steps for a few rows only."""
    return pack(lengths, capacity, lambda counts, capacity: full_rows(counts, capacity, 3, 15_010)[0])


PACKERS = [best_fit, searched, searched_a_little, pad]


def array(lengths: list[int]) -> NDArray[np.int64]:
    return np.array(lengths, dtype=np.int64)


def pieces_by_row(packing: Packing) -> list[list[Piece]]:
    pieces = [(at, at + size) for at, size in zip(packing.piece_at.tolist(), packing.piece_size.tolist())]
    starts = packing.row_starts.tolist()
    return [pieces[first:last] for first, last in pairwise(starts)]


def documents_of(lengths: list[int]) -> list[range]:
    """The stream's places that each document takes."""
    starts = np.cumsum([0, *lengths]).tolist()
    return [range(first, last) for first, last in pairwise(starts)]


def cut(document: range, capacity: int) -> list[Piece]:
    """The pieces of a document; each begins with the last token of the one before."""
    pieces = []
    while len(document) > 1:
        pieces.append((document[0], document[:capacity][-1] + 1))
        document = document[capacity - 1 :]
    return pieces


def naive_best_fit(lengths: list[int], capacity: int) -> list[list[Piece]]:
    """Best-fit decreasing, looking at every row for every piece."""
    pieces = [piece for document in documents_of(lengths) for piece in cut(document, capacity)]
    rows: list[list[Piece]] = []
    rooms: list[int] = []
    for first, last in sorted(pieces, key=lambda piece: piece[0] - piece[1]):
        fitting = [(room, row) for row, room in enumerate(rooms) if room >= last - first]
        if not fitting:
            rows.append([])
            rooms.append(capacity)
        row = min(fitting)[1] if fitting else len(rows) - 1
        rows[row].append((first, last))
        rooms[row] -= last - first
    return [sorted(row) for row in rows]


def fewest_rows(sizes: list[int], capacity: int) -> int:
    """By trying every row for every piece."""

    def fewest(sizes: list[int], rooms: list[int]) -> int:
        if not sizes:
            return len(rooms)
        size, *rest = sizes
        opened = fewest(rest, [*rooms, capacity - size])
        into = [[*rooms[:row], room - size, *rooms[row + 1 :]] for row, room in enumerate(rooms) if room >= size]
        return min([opened, *(fewest(rest, filled) for filled in into)])

    return fewest(sizes, [])


def padding(packing: Packing, capacity: int) -> float:
    return packing.ledger.padded / (packing.rows * capacity)


def story_lengths(documents: int) -> NDArray[np.int64]:
    """As those of short stories in words: most about 170, one in ten two or three times as long, none below 70."""
    generator = np.random.default_rng(0)
    usual = generator.lognormal(np.log(170), 0.22, documents)
    long = generator.lognormal(np.log(380), 0.35, documents)
    return np.where(generator.random(documents) < 0.9, usual, long).clip(70, 974).astype(np.int64)


@pytest.mark.parametrize("packer", PACKERS)
@checked
@given(LENGTHS, CAPACITIES)
@example([], 5)
@example([0, 0], 5)
@example([1], 2)
@example([7], 8)
@example([8], 8)
@example([9], 8)
@example([100, 99, 98], 4)
def test_every_token_is_placed_as_the_ledger_says(packer: Packer, lengths: list[int], capacity: int) -> None:
    packing = packer(array(lengths), capacity)
    rows, ledger = pieces_by_row(packing), packing.ledger
    assert len(rows) == packing.rows
    assert len(packing.piece_at) == len(packing.piece_size) == packing.row_starts[-1]
    places = np.zeros(sum(lengths), dtype=np.int64)
    padded = 0
    for row in rows:
        filled = [token for first, last in row for token in range(first, last)]
        assert 0 < len(filled) <= capacity
        assert filled == sorted(set(filled)), "a row holds a token once, in the order of the stream"
        padded += capacity - len(filled)
        places[filled] += 1
    assert ledger == Ledger(
        tokens=sum(lengths),
        used=int((places > 0).sum()),
        cropped=int((places == 0).sum()),
        padded=padded,
        repeated=int((places - 1).clip(0).sum()),
    )
    assert ledger.tokens == ledger.used + ledger.cropped
    assert packing.rows * capacity == ledger.used + ledger.repeated + ledger.padded


@pytest.mark.parametrize("packer", PACKERS)
@checked
@given(LENGTHS, CAPACITIES)
def test_every_token_but_a_documents_first_is_predicted_once(packer: Packer, lengths: list[int], capacity: int) -> None:
    rows = pieces_by_row(packer(array(lengths), capacity))
    predicted = sorted(token for row in rows for first, last in row for token in range(first + 1, last))
    assert predicted == [token for document in documents_of(lengths) for token in document[1:]]


@pytest.mark.parametrize("packer", PACKERS)
@checked
@given(LENGTHS, CAPACITIES)
def test_documents_are_cut_only_where_they_exceed_a_row(packer: Packer, lengths: list[int], capacity: int) -> None:
    packing = packer(array(lengths), capacity)
    pieces = sorted(piece for row in pieces_by_row(packing) for piece in row)
    assert pieces == [piece for document in documents_of(lengths) for piece in cut(document, capacity)]
    assert packing.ledger.cropped == lengths.count(1)


@settings(max_examples=120, deadline=None)
@given(LENGTHS, CAPACITIES)
def test_best_fit_decreasing_is_that_of_looking_at_every_row(lengths: list[int], capacity: int) -> None:
    assert pieces_by_row(decreasing(array(lengths), capacity)) == naive_best_fit(lengths, capacity)


def mixed_lengths(seed: int) -> NDArray[np.int64]:
    generator = np.random.default_rng(seed)
    return [
        generator.integers(0, 60, 800),
        generator.geometric(0.05, 800),
        generator.choice([3, 5, 7, 11, 31], 800),
        generator.lognormal(3, 1, 800).astype(np.int64),
    ][seed]


@pytest.mark.parametrize("capacity", [30, 65, 257])
@pytest.mark.parametrize("seed", range(4))
def test_best_fit_decreasing_of_many_documents_is_that_of_looking_at_every_row(seed: int, capacity: int) -> None:
    lengths = mixed_lengths(seed)
    assert pieces_by_row(decreasing(lengths, capacity)) == naive_best_fit(lengths.tolist(), capacity)


@settings(max_examples=120, deadline=None)
@given(LENGTHS, CAPACITIES)
@example([6, 5, 4, 4, 3, 2], 12)
def test_best_fit_is_best_fit_decreasing_or_has_fewer_rows(lengths: list[int], capacity: int) -> None:
    rows, naive = pieces_by_row(best_fit(array(lengths), capacity)), naive_best_fit(lengths, capacity)
    assert rows == naive or len(rows) < len(naive)


@pytest.mark.parametrize("capacity", [30, 65, 257])
@pytest.mark.parametrize("seed", range(4))
def test_best_fit_of_many_documents_needs_no_more_rows_than_the_naive_one(seed: int, capacity: int) -> None:
    lengths = mixed_lengths(seed)
    assert best_fit(lengths, capacity).rows <= len(naive_best_fit(lengths.tolist(), capacity))


@checked
@given(st.lists(st.integers(2, 14), max_size=7), st.integers(14, 20))
@example([6, 5, 4, 4, 3, 2], 14)
def test_no_plan_has_fewer_rows_than_there_must_be(lengths: list[int], capacity: int) -> None:
    fewest = fewest_rows(lengths, capacity)
    assert all(packer(array(lengths), capacity).rows >= fewest for packer in PACKERS)


def test_full_rows_are_found_where_best_fit_decreasing_leaves_room() -> None:
    lengths = array([6, 5, 4, 4, 3, 2])
    assert decreasing(lengths, 12).rows == 3
    assert pieces_by_row(best_fit(lengths, 12)) == [[(0, 6), (11, 15), (22, 24)], [(6, 11), (15, 19), (19, 22)]]


@pytest.mark.parametrize("packer", [best_fit, decreasing, searched, searched_a_little])
@checked
@given(LENGTHS, CAPACITIES)
def test_rows_are_in_the_order_of_their_longest_piece(packer: Packer, lengths: list[int], capacity: int) -> None:
    rows = pieces_by_row(packer(array(lengths), capacity))
    longest = [max(last - first for first, last in row) for row in rows]
    assert longest == sorted(longest, reverse=True)


@pytest.mark.parametrize("packer", [best_fit, searched])
@checked
@given(LENGTHS, CAPACITIES)
def test_the_order_of_documents_does_not_change_the_ledger(packer: Packer, lengths: list[int], capacity: int) -> None:
    assert packer(array(lengths[::-1]), capacity).ledger == packer(array(lengths), capacity).ledger


@pytest.mark.parametrize(("capacity", "most"), [(513, 0.01), (1025, 0.001), (2049, 0.001)])
def test_stories_are_packed_with_little_padding(capacity: int, most: float) -> None:
    lengths = story_lengths(40_000)
    packing = best_fit(lengths, capacity)
    assert lengths.min() >= 70
    assert padding(packing, capacity) <= most
    assert padding(decreasing(lengths, capacity), capacity) > 4 * most


@pytest.mark.realdata
def test_real_stories_are_packed_with_little_padding() -> None:
    path = REAL_DATA / "tinystories" / "stories.txt.gz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    stories = gzip.decompress(path.read_bytes()).decode().split("<|endoftext|>\n")
    lengths = array([len(re.findall(r"\w+(?:'\w+)?|[^\w\s]", story)) for story in stories if story.strip()])
    assert len(lengths) == 8_953
    for end_token in (0, 1):
        for capacity, most in ((513, 0.01), (1025, 0.001), (2049, 0.001)):
            assert padding(best_fit(lengths + end_token, capacity), capacity) <= most


def test_a_search_stops_when_its_steps_are_spent() -> None:
    lengths = np.random.default_rng(0).integers(10_000, 22_000, 2_000)
    counts = np.bincount(lengths)
    fills, left = full_rows(counts, 65_537, 32, 1_000_000)
    assert -100_000 < left <= 0
    assert full_rows(counts, 65_537, 32, 1_000_000) == (fills, left)
    assert padding(pack(lengths, 65_537, lambda *_: fills), 65_537) < padding(decreasing(lengths, 65_537), 65_537)


def test_rows_too_long_to_search_are_best_fit_decreasing() -> None:
    capacity = MAX_CAPACITY_SEARCHED + 1
    lengths = np.random.default_rng(0).integers(capacity // 5, capacity // 3, 300)
    assert pieces_by_row(best_fit(lengths, capacity)) == pieces_by_row(decreasing(lengths, capacity))
    assert best_fit(lengths, capacity - 1).rows < decreasing(lengths, capacity - 1).rows


@checked
@given(LENGTHS, CAPACITIES)
def test_pad_gives_every_piece_a_row(lengths: list[int], capacity: int) -> None:
    pieces = [piece for document in documents_of(lengths) for piece in cut(document, capacity)]
    assert pieces_by_row(pad(array(lengths), capacity)) == [[piece] for piece in pieces]


@pytest.mark.parametrize("packer", PACKERS)
def test_types_are_those_promised(packer: Packer) -> None:
    packing = packer(np.array([5, 9, 30], dtype=np.uint64), 8)
    assert packing.row_starts.dtype == packing.piece_at.dtype == np.int64
    assert packing.piece_size.dtype == np.int32
    assert all(type(value) is int for value in vars(packing.ledger).values())


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.uint64])
def test_rows_do_not_depend_on_the_type_of_lengths_nor_on_the_call(packer: Packer, dtype: type[np.integer]) -> None:
    lengths = np.random.default_rng(0).integers(0, 300, 500)
    given_lengths = lengths.astype(dtype)
    one, other = packer(lengths, 129), packer(given_lengths, 129)
    assert pieces_by_row(one) == pieces_by_row(other)
    assert one.ledger == other.ledger
    assert (given_lengths == lengths).all(), "the argument is left alone"


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize(
    ("lengths", "capacity", "message"),
    [
        ([3], 1, "a row of 1 tokens"),
        ([3], 0, "a row of 0 tokens"),
        ([3], MAX_CAPACITY + 1, "a row of 2,147,483,648 tokens"),
        ([3, -1], 4, "document 1 has -1 tokens"),
        ([[3, 4]], 4, "one row of integers"),
        ([3.5], 4, "not float64"),
    ],
)
def test_bad_input_is_refused(packer: Packer, lengths: list[int], capacity: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        packer(np.array(lengths), capacity)


def test_differences_that_wrapped_around_are_refused() -> None:
    with pytest.raises(DataError, match="document 1 has -3 tokens"):
        best_fit(np.array([9, 2**64 - 3], dtype=np.uint64), 4)


def test_a_large_capacity_costs_no_memory_where_documents_are_short() -> None:
    assert pieces_by_row(best_fit(array([3, 4]), MAX_CAPACITY)) == [[(0, 3), (3, 7)]]


@pytest.mark.parametrize("shortest", [2, 70])
def test_many_documents_take_little_memory_and_little_padding(shortest: int) -> None:
    lengths = np.random.default_rng(0).lognormal(np.log(180), 0.8, 200_000).astype(np.int64) + shortest
    best_fit(lengths[:100], 1025)
    tracemalloc.start()
    try:
        packing = best_fit(lengths, 1025)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 * len(lengths) + 1_000_000
    assert padding(packing, 1025) < 0.001
