"""Windows that slide over a text: every token but the first is scored once, with enough before it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoestring.data.pack.order import RowIndex
from shoestring.data.pack.windows import sliding_windows
from shoestring.datasets.other_text import TextRows


@st.composite
def texts(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """Sizes of documents, the length of rows, and their context."""
    length = draw(st.integers(1, 12))
    sizes = draw(st.lists(st.integers(1, 15), min_size=1, max_size=8))
    if sum(sizes) < length + 1:
        sizes.append(length + 1)
    return sizes, length, draw(st.integers(0, length - 1))


@given(texts())
def test_every_token_is_predicted_once_with_its_context_before_it(text: tuple[list[int], int, int]) -> None:
    sizes, length, context = text
    tokens = sum(sizes)
    starts, firsts, _ = sliding_windows(tokens, length, context)
    seen = [
        (start + at + 1, at + 1)  # the token, and how many before it are in the window
        for start, first in zip(starts.tolist(), firsts.tolist(), strict=True)
        for at in range(first, length)
    ]
    assert [place for place, _ in seen] == list(range(1, tokens))
    assert all(before >= min(place, context + 1) for place, before in seen)
    assert starts[0] == firsts[0] == 0 and starts[-1] + length + 1 == tokens
    assert np.all(np.diff(starts)[:-1] == length - context)


@given(texts(), st.booleans())
def test_rows_of_documents_predict_what_they_should(text: tuple[list[int], int, int], document_mask: bool) -> None:
    """With a document mask, all but the first token of each document; else all but the first of the text."""
    sizes, length, context = text
    ids = np.arange(sum(sizes))  # each token is its place
    rows = TextRows(ids, np.array(sizes), length, "concat", document_mask, context=context)
    batch = rows.batch(RowIndex.first(np.arange(len(rows))))
    assert batch.ids.shape == (len(rows), length) and batch.context == context
    scored = batch.targets()[batch.predicted()].tolist()
    unseen = np.cumsum([0, *sizes])[:-1] if document_mask else [0]
    assert scored == [place for place in ids.tolist() if place not in unseen]
    assert torch.equal(batch.ids[batch.predicted()] + 1, batch.targets()[batch.predicted()])


def test_a_text_of_one_row_and_rows_without_context() -> None:
    assert [part.tolist() for part in sliding_windows(9, 8, 5)[:2]] == [[0], [0]]
    assert [part.tolist() for part in sliding_windows(25, 8, 0)[:2]] == [[0, 8, 16], [0, 0, 0]]
    assert [part.tolist() for part in sliding_windows(27, 8, 0)[:2]] == [[0, 8, 16, 18], [0, 0, 0, 6]]
    assert [part.tolist() for part in sliding_windows(14, 8, 6)[:2]] == [[0, 2, 4, 5], [0, 6, 6, 7]]


@pytest.mark.parametrize("marked", [None, 100])
def test_prompts_stay_unpredicted(marked: int | None) -> None:
    ids = np.arange(40) + 100 * (np.arange(40) % 5 < 2) * (marked is not None)
    rows = TextRows(ids, np.full(8, 5), 8, "concat", False, marked, context=3)
    batch = rows.batch(RowIndex.first(np.arange(len(rows))))
    scored = batch.targets()[batch.predicted()].tolist()
    assert scored == [place for place in range(1, 40) if marked is None or place % 5 >= 2]
