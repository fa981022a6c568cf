"""A corpus whose scored rows come from other texts, which are read into memory with the corpus' own tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from shoestring.core.errors import DataError
from shoestring.core.family import family_of
from shoestring.core.recipe import Recipe
from shoestring.core.units import counted
from shoestring.data.pack.order import Index, RowIndex, drawn_rows, step_rows
from shoestring.data.pack.windows import sliding_windows
from shoestring.data.read.corpora import texts
from shoestring.data.read.labels import read_labelled
from shoestring.data.read.other_text import open_other, other_data
from shoestring.data.tokenize.prompts import encode_documents, without_long_prompts
from shoestring.data.tokenize.tokenizers import Tokenizer, spelled_bytes
from shoestring.datasets.labelled import Documents, LabelledCorpus
from shoestring.datasets.source import LastPredictions, MaskedRows, Masking, TokenSource, scored
from shoestring.models.batch import Batch

if TYPE_CHECKING:
    from shoestring.datasets.corpus import StoreCorpus


class TextRows:
    """Documents in memory as rows of `length + 1` tokens, packed as those of a store."""

    def __init__(
        self,
        ids: NDArray[np.int64],
        sizes: Index,
        length: int,
        packing: str,
        document_mask: bool,
        marked: int | None = None,
        context: int | None = None,
    ):
        """`marked`: the first of the ids that mark prompts; None if there are none. `context`: tokens by which rows
        overlap; None: they do not."""
        self._ids, self._length, self._document_mask, self._marked = ids, length, document_mask, marked
        self._ends, self._packing = np.cumsum(sizes), None
        self._count, self._windows = max(0, (len(ids) - 1) // length), None
        if context is not None and self._count:
            self._windows = sliding_windows(len(ids), length, context)
            self._count = len(self._windows.starts)
        if packing != "concat":
            from shoestring.data.pack import packing as packings  # imports Numba

            if marked is not None:
                sizes = without_long_prompts(ids, sizes, marked, length + 1)
            self._packing = {"best_fit": packings.best_fit, "pad": packings.pad}[packing](sizes, length + 1)
            self._count = self._packing.rows

    def __len__(self) -> int:
        return self._count

    def order(self, seed: int, step: int, batch: int) -> RowIndex:
        return step_rows(seed, len(self), step, batch)

    def batch(self, index: RowIndex) -> Batch:
        return scored(self._whole(index), index.rows, self._marked, self._windows)

    def _whole(self, index: RowIndex) -> Batch:
        if self._packing is not None:
            return self._packed(index.rows)
        starts = index.rows * self._length if self._windows is None else self._windows.starts[index.rows]
        places = starts[:, None] + np.arange(self._length + 1)
        ids = torch.from_numpy(self._ids[places])
        if not self._document_mask:
            return Batch(ids)
        documents = np.searchsorted(self._ends, places, side="right")
        return Batch(ids, torch.from_numpy(documents - documents[:, :1] + 1), True)

    def _packed(self, rows: Index) -> Batch:
        assert self._packing is not None
        starts, at, size = self._packing.row_starts, self._packing.piece_at, self._packing.piece_size
        ids, segments = np.zeros((2, len(rows), self._length + 1), dtype=np.int64)
        for place, row in enumerate(rows.tolist()):
            filled = 0
            for number, piece in enumerate(range(starts[row], starts[row + 1]), start=1):
                here = slice(filled, filled + int(size[piece]))
                ids[place, here] = self._ids[at[piece] : at[piece] + size[piece]]
                segments[place, here] = number
                filled = here.stop
        return Batch(torch.from_numpy(ids), torch.from_numpy(segments), self._document_mask)


def text_batch(recipe: Recipe, tokenizer: Tokenizer, source: str) -> Batch:
    """The rows of another text that a run scores: `evaluate.rows` of them, drawn over all of it."""
    data, family = recipe.data, family_of(recipe.model)
    corpus = open_other(data, source)
    if data.label is not None:
        assert recipe.model.classes is not None, "checked when the recipe was read"
        labelled = read_labelled(other_data(data, source), recipe.run.seed, recipe.model.classes)
        documents = Documents(labelled, tokenizer, data.length)
        _check(len(documents.labels), source)
        return documents.batch(drawn_rows(recipe.evaluate.rows, len(documents.labels)))
    pairs = other_data(data, source).pair is not None
    ids, sizes = encode_documents(tokenizer, list(texts(corpus)), pairs)
    _check(len(sizes), source)
    hides = family.predicts_hidden(recipe.model)
    masking = Masking.of(recipe, tokenizer, "heldout") if hides else None
    length = data.length if masking is None else masking.special.room(data.length)
    marked = tokenizer.vocab_size if pairs else None
    context = recipe.evaluate.context
    rows = TextRows(ids.astype(np.int64), sizes, length, data.packing, data.document_mask, marked, context)
    if not len(rows):
        raise DataError(f'"{source}", to be scored: no row of {length + 1:,} in its {counted(len(ids), "token")}')
    return _predicted(rows, masking, family.last_predictions(recipe.model), recipe.evaluate.rows, source)


def _predicted(rows: TextRows, masking: Masking | None, last: int | None, most: int, source: str) -> Batch:
    made: TokenSource = rows if last is None else LastPredictions(rows, last)
    if masking is not None:
        made = MaskedRows(rows, masking)
    batch = made.batch(RowIndex.first(drawn_rows(most, len(rows))))
    if not batch.predictions():
        raise DataError(
            f'"{source}", to be scored: nothing is predicted in its {counted(len(rows), "row")}; use more text'
        )
    return batch


def _check(documents: int, source: str) -> None:
    if not documents:
        raise DataError(f'"{source}", to be scored: it holds no document')


class OtherText:
    """A corpus to train on, scored on the rows of other texts, by name; the first one decides which step is best."""

    def __init__(self, base: StoreCorpus | LabelledCorpus, recipe: Recipe, sources: Mapping[str, str]):
        self.base, self.sources = base, sources
        self.tokenizer, self.vocab_size, self.bytes = base.tokenizer, base.vocab_size, base.bytes
        self.class_counts: NDArray[np.int64] | None = base.class_counts
        self.fingerprint = base.fingerprint
        self.texts = {name: text_batch(recipe, base.tokenizer, source) for name, source in sources.items()}

    def training(self, device: torch.device) -> TokenSource:
        return self.base.training(device)

    def heldout(self) -> Batch:
        """The rows of the first text."""
        return next(iter(self.texts.values()))

    @property
    def bytes_per_token(self) -> float | None:
        return self.bytes_per_token_of(self.heldout())

    def bytes_per_token_of(self, batch: Batch) -> float | None:
        """From the bytes that the predicted tokens spell."""
        if not self.base.keeps_bytes:
            return None
        targets, scored = batch.targets().numpy(), batch.predicted().numpy()
        size = sum(spelled_bytes(self.tokenizer, row[there]) for row, there in zip(targets, scored, strict=True))
        return size / max(1, batch.predictions())
